"""Datasets and outputs that the tests of packing share."""

from __future__ import annotations

import json
import os
import re
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch  # noqa: F401  it keeps files open from its import on, which a test would seem to leave behind

import feedline
from feedline.tools.write import Packed, Stage
from feedline.tools.write.opening import open_source

FORMATS = ("lmdb", "hdf5", "tar", "parquet", "npy")
SINGLE = {"lmdb": "out.lmdb", "hdf5": "out.h5", "tar": "out.tar", "parquet": "out.parquet", "npy": "out"}
"""The name of an unsharded output: a file, or a folder for npy."""
SHARDED = ("hdf5", "tar", "parquet")


class Mixed:
    """An image, a vector, a label and a name, as in most datasets."""

    def __init__(self, count: int = 100) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= self.count:
            raise IndexError(index)
        return mixed(index)


class Stream:
    """The same, as an iterable dataset."""

    def __init__(self, count: int = 100) -> None:
        self.count = count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(mixed, range(self.count))


def mixed(index: int) -> dict[str, Any]:
    rng = np.random.default_rng(index)
    return {
        "image": rng.integers(0, 256, (6, 5, 3), np.uint8),
        "vector": rng.standard_normal(4, np.float32),
        "label": index % 10,
        "name": f"näme {index} ☃" if index % 3 else "",
    }


def content(path: Path) -> dict[str, bytes]:
    """Return every byte of a file or folder, by relative path."""
    if path.is_file():
        return {"": path.read_bytes()}
    return {one.relative_to(path).as_posix(): one.read_bytes() for one in path.rglob("*") if one.is_file()}


CRASHES = ("fsync", "replace", "rename", "unlink", "mkdir", "rmdir", "pwrite")
"""Functions of `os` at which a process is killed: those that decide what is left after a crash."""


def in_child(act: Callable[[], Any], *, kill_at: int = 0) -> bool:
    """Call a function in a forked process, which SIGKILL ends right before its `kill_at`-th call of `CRASHES`.

    Returns:
        True if the function returned.
    """
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if kill_at:
                _kill_at(kill_at)
            act()
            status = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL), f"the child failed with {status}; its traceback is above"
    return status == 0


def _kill_at(number: int) -> None:
    left = [number]

    def watched(call: Any) -> Any:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return wrapper

    for name in CRASHES:
        setattr(os, name, watched(getattr(os, name)))


def pack_as(format_: str, folder: Path, samples: Any, **options: Any) -> Packed:
    """Pack samples into an unsharded output of this format."""
    return feedline.pack(samples, folder / SINGLE[format_], format=format_, workers=0, **options)


def read(packed: Packed | Path) -> list[dict[str, Any]]:
    """Return all samples of an output, by the names of their fields."""
    with open_source(str(packed if isinstance(packed, Path) else packed.path)) as opened:
        assert opened.stored is not None
        names = [field["name"] for field in opened.stored["fields"]]
        return [named(sample, names) for sample in (opened.dataset[place] for place in range(len(opened.dataset)))]


def named(sample: Any, names: list[str]) -> dict[str, Any]:
    """Return the values of a sample by its own names, or by these."""
    if isinstance(sample, dict):
        return sample
    return dict(zip(names, sample if isinstance(sample, (tuple, list)) else (sample,), strict=True))


def counts_in(packed: Packed) -> list[int]:
    """Return the number of samples in each shard."""
    return [shard["samples"] for shard in json.loads((packed.path / "feedline.json").read_bytes())["shards"]]


def without_workers(line: str) -> str:
    """Return a line that `pack` or `inspect` prints, with a loader that makes its batches in the training loop."""
    return re.sub(r"\bworkers=\d+", "workers=0", line)


def stored_in(path: Path) -> dict[str, Any]:
    """Return what `pack` stored with the samples."""
    with open_source(str(path)) as opened:
        assert opened.stored is not None
        return opened.stored


def canonical(value: Any) -> Any:
    """Return a form in which equal values are equal: numbers by value, arrays also by type, fields in their order."""
    if isinstance(value, np.ndarray) and value.ndim:
        native = value.dtype.newbyteorder("=")
        return native.str, value.shape, np.ascontiguousarray(value, native).tobytes()
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.item()
    if isinstance(value, dict):
        return [(key, canonical(one)) for key, one in value.items()]
    if isinstance(value, (list, tuple)):
        return [canonical(one) for one in value]
    return "nan" if value != value else value


class DieAt:
    """Kills its process when `count` samples are packed."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, stage: Stage) -> None:
        if stage.name == "packing" and stage.done >= self.count:
            os.kill(os.getpid(), 9)
