"""Datasets, the finding that the doctor must have of each, and its fix, whose printed code is run."""

from __future__ import annotations

import copy
import io
import json
import re
import sqlite3
import textwrap
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
import torch.utils.data

import feedline
from feedline.loader.base import session_of
from feedline.system.process import scheduled_s

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

    modules = (copy, feedline, torch, io, json, sqlite3, h5py, threading)
    return {**{module.__name__: module for module in modules}, "np": np, **more}


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


def pasted_class(kind: Any, code: str, rest: str = "", **arguments: Any) -> Any:
    """Return a dataset of a class with the pasted code; `rest` is the rest of its `__getitem__`."""
    parts = parts_of(code)
    init = textwrap.indent(parts.get("init", ""), " " * 8)
    get = textwrap.indent(parts.get("get", ""), " " * 8)
    source = f"""
class Pasted(kind):
    def __init__(self):
        kind.__init__(self, **arguments)
{init}
    def __getitem__(self, index):
{get}
        return {rest or "kind.__getitem__(self, index)"}
"""
    names = names_for(kind=kind, arguments=arguments)
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


def batches_per_worker_s(loader: Any) -> float:
    """Return the rate per second of CPU time of the only worker."""
    (pid,) = session_of(loader).resources.worker_pids
    return _rate(loader, lambda: scheduled_s(pid)[0])


def threads_per_s(loader: Any) -> float:
    """Return the rate in wall-clock time: other programs hardly affect samples that sleep."""
    return _rate(loader, time.perf_counter)


def _rate(loader: Any, clock: Callable[[], float]) -> float:
    batches, count, began_s = iter(loader), 0, clock()
    while clock() - began_s < _ROUND_S:
        if next(batches, None) is None:
            batches = iter(loader)
        count += 1
    return count / (clock() - began_s)


WORKER = (batches_per_worker_s, {"batch_size": 32, "num_workers": 1, "persistent_workers": True})
"""How a gain of samples is measured: with one worker."""


# -- cases -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A dataset or loader, what the doctor must find, and the fix of that."""

    source: str
    """`module:name`."""
    own: str | None
    """The finding; None for a healthy one."""
    make: Callable[[], Any]
    """Creates the dataset to fix."""
    needs: str | None = None
    """The package that it needs."""
    also: tuple[str, ...] = ()
    """Other findings that are correct."""
    is_probed: bool = True
    """False if what a probe finds depends on the machine."""
    is_fixed: bool = True
    """False if the fix cannot be tested with it."""
    fixed: Callable[[str, Any], Any] | None = None
    """Creates the fixed dataset from the code and the slow dataset; None if the code creates a loader."""
    own_arguments: Names = field(default_factory=dict)
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

    @property
    def name(self) -> str:
        return self.source.partition(":")[2]

    def arguments(self) -> Names:
        """Return the loader's arguments for a short epoch."""
        return {"batch_size": 8, "sampler": range(32), **self.own_arguments}

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
        dataset = self.make()
        loaders = (
            feedline.DataLoader(dataset, **{**options, **self.own_arguments, **self.only_slow}),
            self.fixed_loader(code, dataset, **{**options, **self.own_arguments}),
        )
        for one in loaders:
            next(iter(one))  # starts its workers
        rates: tuple[list[float], list[float]] = ([], [])
        for _ in range(_ROUNDS):
            for one, found in zip(loaders, rates, strict=True):
                found.append(rate(one))
        for one in loaders:
            one.close()
        return float(np.median(rates[1]) / np.median(rates[0]))


CASES: dict[str, Case] = {}
"""By the name of the dataset, or of the function that makes the loader."""

Made = TypeVar("Made", bound=Callable[[], Any])


def case(own: str | None = None, *, of: Callable[[], Any] | None = None, **details: Any) -> Callable[[Made], Made]:
    """Register a dataset or loader with its finding; `of` creates the dataset that its fix is applied to."""

    def register(made: Made) -> Made:
        CASES[made.__name__] = Case(f"{made.__module__}:{made.__name__}", own, of or made, **details)
        return made

    return register


def pasted(rest: str = "", **arguments: Any) -> Callable[[str, Any], Any]:
    """Fix a dataset by pasting the code into its class."""
    return lambda code, dataset: pasted_class(type(dataset), code, rest, **arguments)


def changed(code: str, dataset: Any) -> Any:
    """Return a dataset whose samples the code changes."""
    parts = parts_of(code)
    source = f"""
class Changed(kind):
    def __getitem__(self, index):
        sample = dict(kind.__getitem__(self, index))
{textwrap.indent(parts[""] or parts["get"], " " * 8)}
        return sample
"""
    names = names_for(kind=type(dataset))
    exec(source, names)
    return names["Changed"]()


def created(code: str, dataset: Any) -> Any:
    """Run code that creates a dataset."""
    names = names_for(dataset=dataset)
    exec(code, names)
    return names["dataset"]


def in_loop(code: str, one: Any) -> Any:
    """Run the training loop's part of the code on a batch."""
    names = names_for(batch=one, device="cpu")
    exec(code, names)
    return names["batch"]
