"""The smoke tests of `make dist-test`, run in this environment, so that they work before a wheel is built."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from scripts import smoke
from tests import program_server

COMMAND = "import sys\nfrom feedline.tools.cli.main import main\nsys.exit(main(sys.argv[1:]))"
NEEDS = {"json": "orjson", "text": "tokenizers", "gpu": "torchvision"}
"""Packages that the test environment may lack."""


def forked_command(*words: object, status: int = 0) -> str:
    """Do what `_command` does, in a process that has already imported torch."""
    done = program_server.run(COMMAND, *words)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param(name, marks=[] if name in ("lmdb", "pack") else pytest.mark.slow)
        # lance does not allow forks.
        for name in sorted(smoke.TRIED.keys() - {"nothing", "ray", "notebook", "jax", "gpu", "lance"})
    ],
)
def test_the_smoke_test_of_each_extra(extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if extra in NEEDS and importlib.util.find_spec(NEEDS[extra]) is None:
        pytest.skip(f"needs {NEEDS[extra]}")
    monkeypatch.setattr(smoke, "_command", forked_command)
    smoke.TRIED[extra](tmp_path)


def test_groups_consist_of_known_extras() -> None:
    assert all(name in smoke.TRIED for names in smoke.GROUPS.values() for name in names)
