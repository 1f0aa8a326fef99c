"""What `make dist-test` does in environments of their own, done here: so that it works before a wheel is built."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from scripts import smoke

NEEDS = {"json": "orjson", "text": "tokenizers", "gpu": "torchvision"}
"""What the environment of tests may lack."""


@pytest.mark.parametrize("extra", sorted(smoke.TRIED.keys() - {"nothing", "ray", "notebook", "jax", "gpu"}))
def test_one_tiny_use(extra: str, tmp_path: Path) -> None:
    if extra in NEEDS and importlib.util.find_spec(NEEDS[extra]) is None:
        pytest.skip(f"needs {NEEDS[extra]}")
    smoke.TRIED[extra](tmp_path)


def test_groups_are_of_known_extras() -> None:
    assert all(name in smoke.TRIED for names in smoke.GROUPS.values() for name in names)
