from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

import feedline
from scripts import dist

ROOT = Path(__file__).resolve().parents[2]


def test_differences_are_named() -> None:
    assert dist.differences({"a": b"1", "b": b"2"}, {"a": b"1", "b": b"2"}) == []
    assert dist.differences({"a": b"1", "b": b"2", "c": b""}, {"a": b"1", "b": b"3", "d": b""}) == ["b", "c", "d"]


def test_rejects_a_tag_of_another_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TAG", "v0.0.1")
    assert dist.main() == 1
    assert f"would be v{feedline.__version__}" in capsys.readouterr().err


def test_the_version_is_read_without_an_import() -> None:
    assert dist.version_of((ROOT / "src/feedline/__init__.py").read_text("utf-8")) == feedline.__version__


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("build") is None, reason="make dist installs it")
@pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="make dist installs it")
@pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="not a clone")
def test_two_builds_are_the_same(tmp_path: Path) -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
    one, two = (dist.build(head.stdout.strip(), tmp_path / name) for name in "ab")
    assert len(one) == 2
    assert dist.differences(one, two) == []
