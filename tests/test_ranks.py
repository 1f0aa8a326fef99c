"""Which rank this is."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from feedline.errors import BadOption
from feedline.ranks import own_share, rank_if_known
from feedline.types import Share

distributed = pytest.importorskip("torch.distributed")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_alone_without_a_launcher() -> None:
    assert own_share(None, None, "pad") == Share(0, 1, "pad")


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert own_share(None, None, "drop") == Share(2, 4, "drop")
    assert own_share(1, None, "drop") == Share(1, 4, "drop")
    assert own_share(1, 3, "drop") == Share(1, 3, "drop")


@pytest.mark.parametrize(
    ("rank", "world_size", "match"),
    [
        ("two", "4", "RANK='two'"),
        ("1", "many", "WORLD_SIZE='many'"),
        ("4", "4", "rank=4"),
        ("-1", "4", "rank=-1"),
        ("0", "0", "world_size=0"),
    ],
)
def test_bad_environment(rank: str, world_size: str, match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world_size)
    with pytest.raises(BadOption, match=match):
        own_share(None, None, "pad")


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_half_an_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "2")
    with pytest.raises(BadOption, match="both are needed"):
        own_share(None, None, "pad")


def test_a_world_of_one_needs_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert own_share(None, None, "pad") == Share(0, 1, "pad")


def test_process_group_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_rank", lambda: 5)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 8)
    assert own_share(None, None, "pad") == Share(5, 8, "pad")


class Jax:
    """As much of JAX as is looked at. `tests/frameworks_real/test_jax.py` has the real one."""

    def __init__(self, *, initialized: bool) -> None:
        self.distributed = SimpleNamespace(is_initialized=lambda: initialized)

    def process_index(self) -> int:
        raise AssertionError("it would start the devices")


def test_processes_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    state = SimpleNamespace(global_state=SimpleNamespace(process_id=1, num_processes=3))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "jax._src.distributed", state)
    monkeypatch.setitem(sys.modules, "jax", Jax(initialized=False))
    assert own_share(None, None, "pad") == Share(0, 2, "pad")
    monkeypatch.setitem(sys.modules, "jax", Jax(initialized=True))
    assert own_share(None, None, "pad") == Share(1, 3, "pad")
    assert rank_if_known() == (1, 3)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_rank", lambda: 5)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 8)
    assert own_share(None, None, "pad") == Share(5, 8, "pad"), "torch's group comes first"


def test_real_process_group(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        assert own_share(None, None, "exact") == Share(0, 1, "exact")
    finally:
        distributed.destroy_process_group()
