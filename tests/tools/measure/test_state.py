from __future__ import annotations

import gzip
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feedline.tools.measure.state import OwnGenerators, handles_in, held_in, not_picklable


class Made:
    """A dataset, or a part of one."""

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)

    # Any: parts of every kind.
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def test_large_containers_are_found_with_their_paths() -> None:
    dataset = Made(
        files=[f"train/{number:08d}.jpg" for number in range(10_000)],
        labels=np.zeros(10**6),
        inner=Made(table={str(number): number + 1000 for number in range(5000)}),
        names=np.array([f"name {number}" for number in range(2000)], object),
        few=[1, 2, 3],
    )
    found = {held.path: held for held in held_in(dataset)}
    assert set(found) == {"dataset.files", "dataset.inner.table", "dataset.names"}
    files = found["dataset.files"]
    assert files.items == 10_000
    assert 600_000 < files.bytes < 900_000, "a pointer and a string of 67 bytes each"
    assert files.shared_bytes is not None
    assert files.shared_bytes < files.bytes / 3


def test_only_generators_that_were_used_are_listed() -> None:
    dataset = Made(
        own=np.random.default_rng(0), old=np.random.RandomState(0), plain=random.Random(0), torch=torch.Generator(),
        idle=np.random.default_rng(0), draw=np.random.random,
    )  # fmt: skip
    generators = OwnGenerators(dataset)
    assert generators.drawn_from() == ()
    dataset.own.random()
    dataset.old.random_sample()
    dataset.plain.random()
    torch.rand(1, generator=dataset.torch)
    dataset.draw()
    assert generators.drawn_from() == ("dataset.own", "dataset.old", "dataset.plain", "dataset.torch")


def why_not(dataset: Any, most_s: float = 60.0) -> str:
    reason, advice = not_picklable(dataset, time.monotonic() + most_s)
    assert (reason is None) == (not advice)
    return reason or ""


class _Unreadable:
    def __getstate__(self) -> dict[str, Any]:
        return {"a": 1}

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise ValueError("of another version")


def test_objects_that_cannot_be_pickled_or_unpickled() -> None:
    assert "dataset[0] is of type _thread.lock" in why_not([threading.Lock()])
    assert "but not unpickled: ValueError: of another version" in why_not(_Unreadable())
    assert why_not({"rows": np.zeros(10**6)}) == ""
    assert why_not([str(number) for number in range(10**5)], -1.0) == "", "there was no time to find out"


def test_a_handle_is_opened_again_as_it_was(tmp_path: Path) -> None:
    packed, text = tmp_path / "a.gz", tmp_path / "a.txt"
    packed.write_bytes(gzip.compress(b"abc"))
    text.write_bytes("é".encode("latin-1"))
    for handle in (gzip.open(packed), text.open(encoding="latin-1")):  # noqa: SIM115
        (found,) = handles_in(Made(file=handle), on_threads=True)
        with handle, eval(found.opening, {"gzip": gzip}) as again:
            assert again.read() == handle.read()


def test_handles_of_libraries_are_opened_again_as_they_were(tmp_path: Path) -> None:
    h5py, lmdb = pytest.importorskip("h5py"), pytest.importorskip("lmdb")
    h5py.File(tmp_path / "self.h5", "w", libver="latest").close()
    with h5py.File(tmp_path / "self.h5", "r", swmr=True) as file:
        (found,) = handles_in(Made(file=file))
    with eval(found.opening, {"h5py": h5py}) as again:
        assert again.swmr_mode
    with lmdb.open(str(tmp_path / "a.lmdb"), subdir=False) as environment:
        found = handles_in(Made(environment=environment))[0]
    eval(found.opening, {"lmdb": lmdb}).close()
