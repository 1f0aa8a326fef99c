"""The fix of every finding, applied to the dataset of `slow_datasets` that has it: the printed code is run.

`Fix.setup` returns what a probe would measure of the dataset, so that no probe is needed to get the code.
"""

from __future__ import annotations

import copy
import io
import json
import pickle
import re
import socket
import sqlite3
import textwrap
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data

import feedline
from feedline.loader.base import session_of
from feedline.system.process import scheduled_s
from feedline.system.timing import Clock
from feedline.tools.measure.measured import (
    FloatField,
    Held,
    Lock,
    Measured,
    OpenHandle,
    Reopened,
    SlowImages,
    SlowRows,
    State,
    Threads,
)
from tests.tools.advise import diseases, slow_datasets
from tests.tools.advise.measurements import HEADROOM, MIB, batch, loader, measured, samples

# Any, throughout: datasets, loaders, batches, and what the code turns them into.
Names = dict[str, Any]


def parts_of(code: str) -> dict[str, str]:
    """Return the code by its place: "init", "get", "loop", and "" for code that may go anywhere."""
    parts: dict[str, list[str]] = {"": []}
    place = ""
    for line in code.splitlines():
        if found := re.match(r"# (in|at the end of) (__init__|__getitem__|the training loop)", line):
            place = {"__init__": "init", "__getitem__": "get"}.get(found[2], "loop")
        parts.setdefault(place, []).append(line)
    return {place: "\n".join(lines) for place, lines in parts.items()}


def names_for(**more: Any) -> Names:
    """Return the names that a program with the pasted code has imported."""
    import h5py
    import lmdb

    modules = {
        "copy": copy,
        "feedline": feedline,
        "np": np,
        "torch": torch,
        "io": io,
        "json": json,
        "sqlite3": sqlite3,
        "pickle": pickle,
    }
    return {**modules, "h5py": h5py, "lmdb": lmdb, "socket": socket, "threading": threading, **more}


def pasted_loader(code: str, dataset: Any, **own: Any) -> Any:
    """Run code that creates a loader; the other arguments of the user's loader are kept."""
    made: list[Any] = []

    def make(data: Any, **given: Any) -> Any:
        kept = {key: value for key, value in own.items() if not ("batch_sampler" in given and key in _OF_BATCHES)}
        made.append(feedline.DataLoader(data, **{**kept, **given}))
        return made[-1]

    exec(code, names_for(DataLoader=make, dataset=dataset))
    return made[-1]


_OF_BATCHES = ("batch_size", "shuffle", "sampler")


def pasted_class(kind: Any, code: str, rest: str, *arguments: Any, **attributes: Any) -> Any:
    """Return a dataset of a class with the pasted code; `rest` is the rest of its `__getitem__`."""
    parts = parts_of(code)
    init = textwrap.indent(parts.get("init", ""), " " * 8)
    get = textwrap.indent(parts.get("get", ""), " " * 8)
    source = f"""
class Pasted(kind):
    def __init__(self):
        kind.__init__(self, *arguments)
        vars(self).update(attributes)
{init}
    def __getitem__(self, index):
{get}
        return {rest or "kind.__getitem__(self, index)"}
"""
    names = names_for(kind=kind, arguments=arguments, attributes=attributes)
    exec(source, names)
    return names["Pasted"]()


def close_handles(dataset: Any) -> None:
    """Close the open handles of a dataset of `slow_datasets`, or of its fix."""
    held = [getattr(dataset, name, None) for name in ("handle", "file")]
    for handle in (*held, getattr(getattr(dataset, "local", None), "handle", None)):
        if handle is not None:
            handle.close()


def plain(value: Any) -> Any:
    """Return a batch as arrays, lists and dicts, for comparison."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, dict):
        return {key: plain(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(held) for held in value]
    return value


def equal(before: Iterable[Any], after: Iterable[Any]) -> None:
    """Raise AssertionError if batches differ."""
    np.testing.assert_equal(plain(list(after)), plain(list(before)))


def equal_in_any_order(before: Iterable[Any], after: Iterable[Any]) -> None:
    """Raise AssertionError if the samples differ."""
    labels = [sorted(int(label) for one in batches for label in one["y"]) for batches in (before, after)]
    assert labels[0] == labels[1]


# -- measuring gains ---------------------------------------------------------------------------------------------------

_ROUND_S = 0.3
_ROUNDS = 5


def _batches_per_s(loader: Any) -> float:
    """Return the rate without workers. Time in which other programs had the cores does not count."""
    clock, count, batches = Clock(), 0, iter(loader)
    before = clock.now()
    while not count or clock.since(before)[0] < _ROUND_S:
        if next(batches, None) is None:
            batches = iter(loader)
        count += 1
    return count / clock.since(before)[0]


def _batches_per_worker_s(loader: Any) -> float:
    """Return the rate per second of CPU time of the only worker."""
    batches = iter(loader)
    next(batches)
    count, (pid,) = 0, session_of(loader).resources.worker_pids
    before_s, computed_s = scheduled_s(pid)[0], 0.0
    while computed_s < _ROUND_S:
        if next(batches, None) is None:
            batches = iter(loader)
        count += 1
        computed_s = scheduled_s(pid)[0] - before_s
    return count / computed_s


def _threads_per_s(loader: Any) -> float:
    """Return the rate in wall-clock time: other programs hardly affect samples that sleep."""
    batches = iter(loader)
    next(batches)
    count, began_s = 0, time.perf_counter()
    while time.perf_counter() - began_s < _ROUND_S:
        if next(batches, None) is None:
            batches = iter(loader)
        count += 1
    return count / (time.perf_counter() - began_s)


WORKER = (_batches_per_worker_s, {"batch_size": 32, "num_workers": 1, "persistent_workers": True})
"""How a gain of samples is measured: with one worker."""


# -- fixes -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fix:
    """A dataset of `slow_datasets`, and its fix."""

    finding: str
    slow: Callable[[], Any]
    """Creates the dataset."""
    setup: Callable[[Any], Measured]
    """Returns what a probe would measure of it."""
    fixed: Callable[[str, Any], Any] | None = None
    """Creates the fixed dataset from the code and the slow dataset; None if the code creates a loader."""
    own: Names = field(default_factory=dict)
    """Arguments of the user's loader that are kept; for the comparison, its batches are made without workers."""
    only_slow: Names = field(default_factory=dict)
    """Arguments of the user's loader that the fix removes."""
    before: Callable[[Any], Any] | None = None
    """Returns the batches to compare with; None for those of a plain loader."""
    after: Callable[[str, Any], Any] = lambda code, one: one
    """What the training loop does with a fixed batch."""
    same: Callable[[Any, Any], None] = equal
    gain: tuple[Callable[[Any], float], Names] | None = None
    """How its gain is measured, and the loaders' arguments for that."""

    def arguments(self) -> Names:
        """Return the loader's arguments for a short epoch."""
        return {"batch_size": 8, "sampler": range(32), **self.own}

    def fixed_loader(self, code: str, dataset: Any, **options: Any) -> Any:
        """Return a loader with the fix applied."""
        if self.fixed is None:
            return pasted_loader(code, dataset, **options)
        return feedline.DataLoader(self.fixed(code, dataset), **options)

    def check(self, code: str, dataset: Any) -> None:
        """Raise AssertionError if the fixed batches differ from those of the dataset."""
        slow_arguments = {**self.arguments(), **self.only_slow}
        plain_loader = feedline.DataLoader(dataset, **{**slow_arguments, "num_workers": 0, "engine": None})
        before = list(plain_loader) if self.before is None else self.before(dataset)
        loader = self.fixed_loader(code, dataset, **self.arguments())
        try:
            after = [self.after(code, one) for one in loader]
        finally:
            loader.close()
            close_handles(loader.dataset)
        self.same(before, after)

    def measured_gain(self, code: str) -> float:
        """Return how many times as fast the fix is: the ratio of medians of alternating rounds."""
        assert self.gain is not None
        rate, options = self.gain
        dataset = self.slow()
        loaders = (
            feedline.DataLoader(dataset, **{**options, **self.own, **self.only_slow}),
            self.fixed_loader(code, dataset, **{**options, **self.own}),
        )
        rates: tuple[list[float], list[float]] = ([], [])
        for _ in range(_ROUNDS):
            for one, found in zip(loaders, rates, strict=True):
                found.append(rate(one))
        for one in loaders:
            one.close()
        return float(np.median(rates[1]) / np.median(rates[0]))


def _rows(library: str, code: str, name: str) -> Callable[[Any], Measured]:
    """Return what a probe measures of rows in a file of the current folder, which a source reads."""

    def setup(_: Any) -> Measured:
        path = str(Path.cwd() / name)
        source = f"dataset = feedline.datasets.{code.format(path)}"
        rows = SlowRows(library, path, 9e-4, code.partition("(")[0], source, row_s=1e-5)
        return measured(samples=samples(rows=rows))

    return setup


def _reopened_as(way: str) -> Callable[[Any], Measured]:
    def setup(dataset: Any) -> Measured:
        return measured(samples=samples(reopened=(Reopened(str(dataset.path), 200, 80_000, way, 9e-4),)))

    return setup


def _oversized(dataset: Any) -> Measured:
    path = str(getattr(dataset, "paths", ["/data/0.jpg"])[0])
    side = diseases.SIDE
    return measured(samples=samples(images=SlowImages("Pillow", path, 1.92e6, (side, side), 9e-4, 2e-4)))


def _pasted(kind: type, rest: str = "", **attributes: Any) -> Callable[[str, Any], Any]:
    return lambda code, _: pasted_class(kind, code, rest, **attributes)


def _handle(library: str) -> Callable[[Any], Measured]:
    handle = OpenHandle("dataset.handle", f"an open {library}", "All share it.", "Open it later.")
    return lambda _: measured(state=State(handles=(handle,)))


def _reopened(code: str, dataset: Any) -> Any:
    """LMDB can be open only once per process: each worker opens its own, and the first is closed."""
    path = dataset.handle.path()
    dataset.handle.close()
    return pasted_class(slow_datasets.Holding, code, "", None, path=path)


def _any_path(code: str) -> str:
    """Return the code with the path of the sample instead of the file that it names."""
    return re.sub(r"open\('[^']*'", "open(self.paths[index % 4]", code)


def _alike(before: Any, after: Any) -> None:
    """Raise AssertionError if images differ by more than another way to resize explains."""
    for one, other in zip(before, after, strict=True):
        assert one.shape == other.shape
        assert (one.float() - other.float()).abs().mean() < one.float().std() / 20


def _in_loop(code: str, one: Any) -> Any:
    """Run the training loop's part of the code on a batch."""
    names = names_for(batch=one, device="cpu")
    exec(code, names)
    return names["batch"]


class Bytes(slow_datasets.Floats):
    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.images[index % 20])


class WholeBytes(slow_datasets.WholeFloats):
    def __getitem__(self, index: int) -> Any:
        return self.images[index % 20]


class FewLengths(slow_datasets.Lengths):
    length = 320


class FewSorted(slow_datasets.Sorted):
    length = 64

    def __getitem__(self, index: int) -> Any:
        return self.rows[index], index // 8


class FewFiles(slow_datasets.LargeList):
    length = 1000


def _float_field(dtype: str, *, is_scaled: bool) -> Callable[[Any], Measured]:
    floats = FloatField("sample", dtype, is_scaled, convert_s=5e-4, sample_bytes=600_000)
    return lambda _: measured(batch=batch(floats=(floats,)))


def _changed(code: str, dataset: Any) -> Any:
    """Return a dataset whose samples the code changes."""
    source = f"""
class Changed(kind):
    def __getitem__(self, index):
        sample = dict(kind.__getitem__(self, index))
{textwrap.indent(parts_of(code)[""], " " * 8)}
        return sample
"""
    names = names_for(kind=type(dataset))
    exec(source, names)
    return names["Changed"]()


def _objects(kind: str, name: str) -> Callable[[Any], Measured]:
    setup = {"object_bytes": 1 << 20, "sent_s": 0.06, "carry_s": 0.06, "bytes": 1 << 20, "object_kind": kind}
    return lambda _: measured(batch=batch(**setup, objects=f"{name} (list)"))


def _split(code: str, one: Any) -> Any:
    """Split the texts of a batch, and order them as the default collate function does: word by word."""
    found = []
    for text in one["words"]:
        names = names_for(text=text)
        exec(parts_of(code)["loop"], names)
        found.append(names["texts"])
    return {"words": [list(words) for words in zip(*found, strict=True)]}


def _given(**setup: Any) -> Callable[[Any], Measured]:
    return lambda _: measured(**setup)


def _stored(code: str, dataset: Any) -> Any:
    """Write the pickle and read it back."""
    names = names_for(dataset=dataset)
    exec(code, names)
    return names["dataset"]


def _drawn(before: Any, after: Any) -> None:
    """Raise AssertionError if samples draw the same numbers."""
    assert len({float(value) for one in after for value in one}) == 32


def _mixed(before: Any, after: Any) -> None:
    """Raise AssertionError if samples differ, or if a batch still holds one class."""
    classes, mixed = ([one[1].tolist() for one in batches] for batches in (before, after))
    assert sorted(np.concatenate(classes)) == sorted(np.concatenate(mixed))
    assert {len(set(one)) for one in classes} == {1}
    assert max(len(set(one)) for one in mixed) > 1


def _numbers(code: str, _: Any) -> Any:
    class Drawing(slow_datasets.Healthy):
        def __getitem__(self, index: int) -> Any:
            return eval(code, names_for())

    return Drawing()


_LENGTHS = tuple(np.random.default_rng(0).integers(1, 1000, 640).tolist())
_PADDING = {"collate_fn": feedline.collate.pad(lengths=False), "sampler": range(640), "batch_size": 32}
_LOCKED = Threads({1: 1000.0, 2: 1000.0})
_TWO = {"num_workers": 2}

FIXES = {
    "Failing": Fix(
        "failing-samples",
        slow_datasets.Failing,
        _given(samples=samples(failed=3, failure="sample 3:\n...")),
        before=lambda dataset: [[index for index in range(32) if index % 10 != 3]],
        same=lambda before, after: np.testing.assert_equal([int(y) for one in after for y in one["y"]], before[0]),
    ),
    "OwnThread": Fix(
        "fails-on-threads",
        slow_datasets.OwnThread,
        _given(threads=Threads({}, failure="..."), loader=loader(engine="thread")),
        own=_TWO,
        only_slow={"num_workers": 0},
    ),
    "Waiting": Fix(
        "waiting",
        slow_datasets.Waiting,
        _given(samples=samples(cpu_share=0.1), threads=Threads({1: 100.0, 2: 200.0, 8: 780.0})),
        gain=(_threads_per_s, {"batch_size": 32, "persistent_workers": True, "num_workers": 1, "engine": "thread"}),
    ),
    "Locked": Fix("serialised", slow_datasets.Locked, _given(threads=_LOCKED, headroom=HEADROOM)),
    "Reopening": Fix(
        "reopened-file",
        slow_datasets.Reopening,
        _reopened_as("npy"),
        _pasted(slow_datasets.Reopening, "rows[index % 1000]"),
        gain=WORKER,
    ),
    "ReopeningLines": Fix(
        "reopened-file",
        slow_datasets.ReopeningLines,
        _reopened_as("lines"),
        _pasted(slow_datasets.ReopeningLines, "np.array([float(value) for value in lines[index % 1000].split()])"),
        gain=WORKER,
    ),
    "ReopeningJSON": Fix(
        "reopened-file",
        slow_datasets.ReopeningJSON,
        _reopened_as("json"),
        _pasted(slow_datasets.ReopeningJSON, "np.array(items[index % 1000])"),
        gain=WORKER,
    ),
    "ReopeningWhole": Fix(
        "reopened-file",
        slow_datasets.ReopeningWhole,
        _reopened_as("bytes"),
        _pasted(slow_datasets.ReopeningWhole, "np.frombuffer(content)[index % 1000 * 64 :][:64].copy()"),
        gain=WORKER,
    ),
    "ReopeningParts": Fix(
        "reopened-file",
        slow_datasets.ReopeningParts,
        _reopened_as("part"),
        _pasted(
            slow_datasets.ReopeningParts, "np.frombuffer((file.seek(index % 1000 * 512), file.read(512))[1]).copy()"
        ),
        gain=WORKER,
    ),
    "ReopeningHDF5": Fix(
        "reopened-file",
        slow_datasets.ReopeningHDF5,
        _reopened_as("h5py"),
        _pasted(slow_datasets.ReopeningHDF5, "file['rows'][index % 1000]"),
        gain=WORKER,
    ),
    "ReopeningSQLite": Fix(
        "reopened-file",
        slow_datasets.ReopeningSQLite,
        _reopened_as("sqlite3"),
        _pasted(
            slow_datasets.ReopeningSQLite, "np.array(list(file.execute('SELECT value FROM rows WHERE id = 1'))[0])"
        ),
        gain=WORKER,
    ),
    "PandasRows": Fix(
        "slow-source",
        diseases.PandasRows,
        _rows("pandas", "CSVDataset({!r})", "rows.csv"),
        _stored,
        after=lambda code, one: [np.stack([one[f"x{column}"] for column in range(20)], axis=1), one["label"]],
        gain=WORKER,
    ),
    "CSVAgain": Fix(
        "slow-source",
        diseases.CSVAgain,
        _rows("", "CSVDataset({!r})", "rows.csv"),
        _stored,
        after=lambda code, one: [np.stack([one[f"x{column}"] for column in range(20)], axis=1), one["label"]],
        gain=WORKER,
    ),
    "ChunkedRows": Fix(
        "slow-source",
        diseases.ChunkedRows,
        _rows("h5py", "HDF5Dataset({!r}, fields=('x', 'labels/y'))", "rows.h5"),
        _stored,
        gain=WORKER,
    ),
    "ParquetAgain": Fix(
        "slow-source",
        diseases.ParquetAgain,
        _rows("pyarrow", "ParquetDataset({!r})", "rows.parquet"),
        _stored,
        gain=WORKER,
    ),
    "LinesAgain": Fix(
        "slow-source",
        diseases.LinesAgain,
        _rows("", "JSONLines({!r})", "rows.jsonl"),
        _stored,
        gain=WORKER,
    ),
    "OwnLock": Fix(
        "serialised",
        diseases.OwnLock,
        _given(samples=samples(locks=(Lock("dataset.lock", 1.0),)), headroom=HEADROOM),
    ),
    "Photos": Fix(
        "slow-source",
        diseases.Photos,
        _oversized,
        lambda code, _: pasted_class(diseases.Photos, _any_path(code), "image"),
        same=_alike,
        gain=WORKER,
    ),
    "Stragglers": Fix(
        "stragglers",
        slow_datasets.Stragglers,
        _given(samples=samples(seconds=(1e-3,) * 190 + (0.05,) * 10, repeated=(("1", 0.05), ("2", 0.05)))),
        own=_TWO,
        same=equal_in_any_order,
    ),
    "unsendable": Fix(
        "unpicklable",
        slow_datasets.Healthy,
        _given(batch=batch(not_picklable="it holds a generator")),
        own={**_TWO, "collate_fn": slow_datasets._one_by_one},
        before=lambda dataset: [[dataset[place] for place in range(first, first + 8)] for first in range(0, 32, 8)],
        after=lambda code, one: list(one),
    ),
    "Objects": Fix(
        "slow-collate", slow_datasets.Objects, _objects("texts", "words"), _changed, after=_split, gain=WORKER
    ),
    "Numbers": Fix(
        "slow-collate",
        slow_datasets.Numbers,
        _objects("numbers", "values"),
        _changed,
        after=lambda code, one: {"values": list(one["values"].T)},
        gain=WORKER,
    ),
    "Floats": Fix(
        "floats",
        slow_datasets.Floats,
        _float_field("float32", is_scaled=True),
        lambda code, _: Bytes(),
        after=_in_loop,
        gain=WORKER,
    ),
    "WholeFloats": Fix(
        "floats",
        slow_datasets.WholeFloats,
        _float_field("float64", is_scaled=False),
        lambda code, _: WholeBytes(),
        after=_in_loop,
        gain=WORKER,
    ),
    "needless_collate": Fix(
        "slow-collate",
        slow_datasets.Wide,
        _given(batch=batch(collate_s=0.064, carry_s=0.064, is_custom=True, by_default_s=1e-3)),
        only_slow={"collate_fn": slow_datasets._as_by_default},
        gain=(_batches_per_s, {"batch_size": 128}),
    ),
    "Lengths": Fix(
        "padding",
        FewLengths,
        _given(samples=samples(lengths=_LENGTHS)),
        only_slow=_PADDING,
        before=lambda dataset: sorted(len(dataset[index]) for index in range(len(dataset))),
        after=lambda code, one: (one != 0).sum(axis=1).tolist(),
        same=lambda before, after: np.testing.assert_equal(sorted(length for one in after for length in one), before),
    ),
    "plain_file": Fix(
        "shared-handle",
        slow_datasets.plain_file,
        _handle("file (io.BufferedRandom)"),
        lambda code, _: pasted_class(slow_datasets.ReadsHandle, code, "", None, path=_written()),
    ),
    "sqlite_handle": Fix(
        "shared-handle",
        slow_datasets.sqlite_handle,
        _handle("sqlite3.Connection"),
        lambda code, _: pasted_class(slow_datasets.Holding, code, "", None, path=":memory:"),
    ),
    "hdf5_handle": Fix(
        "shared-handle",
        slow_datasets.hdf5_handle,
        _handle("h5py.File"),
        lambda code, _: pasted_class(slow_datasets.Holding, code, "", None, path=slow_datasets.ReopeningHDF5().path),
    ),
    "lmdb_handle": Fix(
        "shared-handle",
        slow_datasets.lmdb_handle,
        _handle("lmdb.Environment"),
        lambda code, dataset: _reopened(code, dataset),
    ),
    "socket_handle": Fix(
        "shared-handle",
        lambda: slow_datasets.Holding(socket.create_server(("127.0.0.1", 0))),
        _handle("socket.socket"),
        lambda code, dataset: pasted_class(slow_datasets.Holding, code, "", None, address=dataset.handle.getsockname()),
    ),
    "handle_on_threads": Fix(
        "shared-handle",
        slow_datasets.plain_file,
        lambda _: measured(
            state=State(thread_handles=(OpenHandle("dataset.handle", "an open file", "They share it.", "..."),)),
            loader=loader(engine="thread"),
        ),
        lambda code, _: pasted_class(
            slow_datasets.ReadsHandle,
            code,
            "(handle.seek(index % 900), np.frombuffer(handle.read(64), np.uint8).copy())[1]",
            None,
            path=_written(),
        ),
    ),
    "Reused": Fix(
        "reused-samples",
        slow_datasets.Reused,
        _given(samples=samples(reused="x")),
        _changed,
        before=lambda _: feedline.DataLoader(slow_datasets.Healthy(), batch_size=8, sampler=range(32)),
    ),
    "sorted_classes": Fix(
        "sorted-labels",
        FewSorted,
        _given(samples=samples(sorted_labels="sample[1]"), loader=loader(is_sequential=True)),
        own={"sampler": None},
        same=_mixed,
    ),
    "OwnRandom": Fix(
        "copied-random",
        slow_datasets.OwnRandom,
        _given(state=State(own_generators=("dataset.rng",))),
        _numbers,
        same=_drawn,
    ),
    "global_python": Fix(
        "copied-random",
        slow_datasets.global_python,
        _given(state=State(global_generators=("random",))),
        _numbers,
        same=_drawn,
    ),
    "Unpicklable": Fix(
        "unpicklable",
        slow_datasets.Unpicklable,
        _given(state=State(not_picklable="dataset.transform is a lambda", pickle_advice="Define it elsewhere.")),
        own=_TWO,
    ),
    "LargeList": Fix(
        "copied-objects",
        FewFiles,
        _given(state=State(held=(Held("dataset.files", 300_000, 100 * MIB, 20 * MIB),))),
        _pasted(FewFiles),
    ),
    "restarting": Fix("workers-restarted", slow_datasets.Few, _given(loader=loader(start_s=12.5, workers=2))),
    "too_many_workers": Fix(
        "too-many-workers", slow_datasets.Healthy, _given(loader=loader(workers=16), headroom=HEADROOM), own=_TWO
    ),
    "too_few_workers": Fix("too-few-workers", slow_datasets.Healthy, _given(loader=loader(workers=1)), own=_TWO),
}
"""By the name of the dataset, or of the loader that has the problem."""


def _written() -> Path:
    """Return a file with the content of `slow_datasets.plain_file`."""
    path = Path.cwd() / "handle.bin"
    path.write_bytes(bytes(1000))
    return path
