"""Every example runs as its docstring says, prints what the docstring points to, and is on the page of examples."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest

from tests import program_server

ROOT = Path(__file__).resolve().parents[2]
FILES = {file.name: file for file in sorted((ROOT / "examples").glob("*.py"))}
PAGE = ROOT / "docs" / "examples" / "index.md"

QUICK = ("object_storage.py", "own_sampler.py", "own_scheduler.py")
"""Examples that `make test` runs; the others are slow."""

ELSEWHERE = {
    "accelerate_training.py": "frameworks_real/test_accelerate.py",
    "growing_file.py": "datasets/formats/streams/test_growing_file.py",
    "jax_training.py": "frameworks_real/test_jax.py",
    "lightning_training.py": "frameworks_real/test_lightning.py",
    "ray_training.py": "frameworks_real/test_ray_train.py",
    "ray_workers.py": "workers/ray/test_example.py",
    "torchrun_training.py": "frameworks_real/test_torchrun.py",
    "trainer_training.py": "frameworks_real/test_trainer.py",
}
"""Examples that need a framework, a cluster or several launches, and the tests that run them."""

HERE = [name for name in FILES if name not in ELSEWHERE]


def docstring_of(name: str) -> str:
    """Return the docstring of an example, on one line per paragraph."""
    text = ast.get_docstring(ast.parse(FILES[name].read_text(encoding="utf-8"))) or ""
    return "\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def phrases_to_look_at(name: str) -> list[str]:
    found = re.search(r"^Look at: (.*)$", docstring_of(name), re.MULTILINE)
    return re.findall(r'"([^"]+)"', found[1]) if found else []


def missing_packages(name: str) -> list[str]:
    """Return the packages that an example imports and that are not installed."""
    tree = ast.parse(FILES[name].read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    packages = {module.partition(".")[0] for module in imported} - set(sys.stdlib_module_names)
    return sorted(package for package in packages if importlib.util.find_spec(package) is None)


@pytest.mark.timeout(600)  # two launches of torchrun, on a busy machine
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in HERE])
def test_example_runs_and_prints_what_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = missing_packages(name)
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("FEEDLINE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "empty"
    folder.mkdir()
    done = program_server.run(FILES[name], cwd=folder, timeout_s=550)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [phrase for phrase in phrases_to_look_at(name) if phrase not in done.stdout] == [], done.stdout
    assert list(folder.iterdir()) == [], "an example writes into a temporary folder only"
    assert not (tmp_path / "cache").exists(), "and not into the user's cache"


@pytest.mark.parametrize("name", FILES)
def test_docstring_says_how_to_run_it_what_it_shows_and_what_to_look_at(name: str) -> None:
    text = docstring_of(name)
    assert f"examples/{name}" in text
    assert re.search(r"^Shows: ", text, re.MULTILINE)
    assert re.search(r"^Look at: ", text, re.MULTILINE)
    assert name in ELSEWHERE or phrases_to_look_at(name)


@pytest.mark.parametrize(("name", "test"), ELSEWHERE.items())
def test_example_that_is_not_run_here_is_run_by_another_test(name: str, test: str) -> None:
    assert Path(name).stem in (ROOT / "tests" / test).read_text(encoding="utf-8")


def test_the_page_lists_every_example_and_nothing_else() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(\.\./\.\./examples/(\w+\.py)\)", page)) == FILES.keys()
