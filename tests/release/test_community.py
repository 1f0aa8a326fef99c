"""Files for contributors, and for the CI that checks their work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


# Any: YAML. `on` is read as a boolean.
def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def steps_of(path: Path) -> list[dict[str, Any]]:
    return [step for job in load(path)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize(
    "name",
    [
        "CODE_OF_CONDUCT.md", "CITATION.cff", "SECURITY.md", "CONTRIBUTING.md", "LICENSE", "CHANGELOG.md",
        ".github/CODEOWNERS", ".github/PULL_REQUEST_TEMPLATE.md",
    ],
)  # fmt: skip
def test_the_usual_project_files_exist(name: str) -> None:
    assert (ROOT / name).read_text("utf-8").strip()


def test_links_in_project_files_are_valid() -> None:
    for name in ("CODE_OF_CONDUCT.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md"):
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", (ROOT / name).read_text("utf-8")):
            assert (ROOT / target).exists(), f"{name}: {target}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_only_commands_of_the_makefile(path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    commands = [step["run"] for step in steps_of(path) if "run" in step]
    assert commands
    for command in commands:
        words = command.split()
        assert words[0] == "make"
        assert "\n" not in command.strip()
        named = set(re.sub(r'\w+=("[^"]*"|\S+)', "", command).split()[1:])
        assert named
        assert named <= targets, command


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_have_minimal_permissions(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())
    assert "secrets." not in path.read_text("utf-8")
    runs = "\n".join(step.get("run", "") for step in steps_of(path))
    assert "${{" not in runs, "untrusted text would become part of the command"


def test_linux_is_tested_with_every_python_of_the_metadata() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    pythons = set(re.findall(r"Python :: (3\.\d+)", project))
    jobs = load(ROOT / ".github/workflows/test.yml")["jobs"]
    assert set(jobs["test"]["strategy"]["matrix"]["python"]) == pythons
    sessions = {row["session"] for row in jobs["versions"]["strategy"]["matrix"]["include"]}
    assert {f"no_extras-{python}" for python in pythons} <= sessions
    functions = set(re.findall(r"^def (\w+)\(session: nox.Session\)", (ROOT / "noxfile.py").read_text("utf-8"), re.M))
    assert {session.partition("-")[0] for session in sessions} <= functions


def test_releases_are_published_without_a_password() -> None:
    jobs = load(ROOT / ".github/workflows/release.yml")["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"] == "release"
    (publishing,) = [step for step in jobs["publish"]["steps"] if "pypi-publish" in step.get("uses", "")]
    assert "with" not in publishing


def test_the_citation_agrees_with_the_package() -> None:
    citation = load(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["authors"] == [{"name": "The feedline developers"}]
    assert citation["license"] == "Apache-2.0"
