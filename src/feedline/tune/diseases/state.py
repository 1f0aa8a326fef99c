"""What a dataset is made of and workers do not get well: handles, generators, large objects; what it keeps."""

from __future__ import annotations

from collections.abc import Iterator

from feedline.tune.finding import Finding, gain_of, seconds_text
from feedline.tune.measured import Measured, Samples
from feedline.values.sizes import bytes_text

_MAKING_S = 2.0
_MAKING = 0.05
"""Share of the first epoch."""
_PICKLING_S = 0.5
_LARGE_BYTES = 32 << 20
_LARGE_SHARE = 0.5
"""Of the memory that can be had, by what all workers together copy: then it is serious."""
_GROWTH = 1 << 20
"""Bytes per 1,000 samples: noise is less. All of these are guesses."""
_NAMED = 3


def find(measured: Measured) -> list[Finding]:
    """Return what is found about the dataset itself."""
    handles = list(_handles(measured))
    held = list(_held(measured))
    return [
        *handles,
        *_generators(measured),
        *_making(measured),
        *held,
        *([] if handles else _unpicklable(measured)),
        *([] if held else _pickling(measured)),
        *_growth(measured),
    ]


def _handles(measured: Measured) -> Iterator[Finding]:
    handles = measured.state.handles
    if measured.engine == "thread":
        handles = measured.state.thread_handles
    if not handles or measured.engine == "inline":
        return
    first = handles[0]
    others = ", ".join(handle.path for handle in handles[1:_NAMED])
    yield Finding(
        "shared-handle",
        f"{first.path} is {first.is_called}{f' (others: {others})' if others else ''}. {first.trouble}",
        first.advice,
        "if self.file is None:\n    self.file = open(self.path)  # in __getitem__: each worker has its own",
        is_serious=True,
    )


def _generators(measured: Measured) -> Iterator[Finding]:
    state, on_threads = measured.state, measured.engine == "thread"
    if measured.engine == "inline":
        return
    if state.own_generators:
        trouble = (
            "Threads share it, and what a sample draws depends on who came first"
            if on_threads
            else "Each worker process gets a copy in the same state, so that all workers draw the same numbers, and "
            "the same again in every epoch that starts workers anew"
        )
        yield Finding(
            "copied-random",
            f"Samples draw from {', '.join(state.own_generators[:_NAMED])}. {trouble}",
            "Draw from feedline.rng(), which has numbers of its own for each sample.",
            "feedline.rng().random()",
            is_serious=True,
        )
    if state.global_generators:
        yield Finding(
            "global-random",
            f"Samples draw from the generators of the process: {', '.join(state.global_generators)}. Threads share "
            "these, and what a sample draws depends on who came first",
            "Draw from feedline.rng(), which has numbers of its own for each sample, on threads, too.",
            "feedline.rng().random()",
            is_serious=on_threads,
        )


def _making(measured: Measured) -> Iterator[Finding]:
    making, epoch_s = measured.making, measured.epoch_s
    if making is None or making.make_s < _MAKING_S or epoch_s is None or making.make_s < _MAKING * epoch_s:
        return
    yield Finding(
        "slow-init",
        f"Making the dataset takes {seconds_text(making.make_s)}, and an epoch about {seconds_text(epoch_s)}: every "
        "start of the program, and every rank, waits for it",
        "Do this work once and store what comes out, as an array that is mapped, or leave it to the first use.",
        'np.save("index.npy", index)  # once; then np.load("index.npy", mmap_mode="r")',
        gain=gain_of(making.make_s + epoch_s, making.make_s),
        is_serious=making.make_s > epoch_s,
    )


def _unpicklable(measured: Measured) -> Iterator[Finding]:
    if measured.state.not_picklable is None or measured.engine in ("thread", "inline"):
        return
    is_sent = measured.start_method != "fork"
    how = "as they are by default here" if is_sent else "which is the default from Python 3.14 on, and on macOS"
    yield Finding(
        "unpicklable",
        f"{measured.state.not_picklable}. Workers that are started by forkserver or spawn, {how}, cannot be started",
        measured.state.pickle_advice,
        None if is_sent else 'DataLoader(dataset, multiprocessing_context="fork")',
        is_serious=is_sent,
    )


def _pickling(measured: Measured) -> Iterator[Finding]:
    state = measured.state
    if (state.pickle_s or 0.0) < _PICKLING_S or measured.engine in ("thread", "inline"):
        return
    yield Finding(
        "slow-pickling",
        f"Pickling the dataset and reading it again takes {seconds_text(state.pickle_s or 0.0)} for "
        f"{bytes_text(state.pickle_bytes)}, arrays aside: each worker that is started by forkserver or spawn waits",
        "Leave out in __getstate__ what can be made again, and make it when it is first used; keep the workers from "
        "epoch to epoch.",
        "DataLoader(dataset, persistent_workers=True)",
        is_serious=measured.start_method != "fork" and (state.pickle_s or 0.0) > (measured.epoch_s or 0.0),
    )


def _held(measured: Measured) -> Iterator[Finding]:
    state, room = measured.state, measured.room
    workers = room.cores if measured.loader is None else measured.loader.workers
    if measured.engine in ("thread", "inline") or not workers:
        return
    for held in state.held:
        if held.bytes < _LARGE_BYTES:
            continue
        all_bytes = held.bytes * workers * room.local_ranks
        name = held.path.rpartition(".")[2]
        instead = "" if held.shared_bytes is None else f"; shared it takes {bytes_text(held.shared_bytes)}, once"
        yield Finding(
            "copied-objects",
            f"{held.path} has {held.items:,} Python objects of {bytes_text(held.bytes)}. Reading one writes its count "
            f"of references, so each worker comes to have a copy: {bytes_text(all_bytes)} in {workers} workers"
            f"{instead}",
            "Hold it once for all workers."
            if held.shared_bytes is not None
            else "Keep these values in arrays, or in a file that is mapped.",
            f"self.{name} = feedline.share({name})" if held.shared_bytes is not None and "[" not in held.path else None,
            is_serious=room.memory_bytes is not None and all_bytes > _LARGE_SHARE * room.memory_bytes,
        )


def _growth(measured: Measured) -> Iterator[Finding]:
    samples: Samples | None = measured.samples
    if samples is None or samples.growth < _GROWTH:
        return
    length = None if measured.making is None else measured.making.length
    epoch = "" if length is None else f", {bytes_text(samples.growth * length / 1000)} in an epoch of all workers"
    room = measured.room.memory_bytes
    yield Finding(
        "memory-growth",
        f"The memory of the process grows by {bytes_text(samples.growth)} with 1,000 samples{epoch}: a cache without a "
        "bound, or a leak",
        "Bound the cache (feedline.datasets.CachedDataset does), or look for what samples leave behind with "
        "tracemalloc. Until then have workers replaced that have grown too large.",
        'DataLoader(dataset, max_memory_per_worker="4GB")',
        is_serious=room is not None and length is not None and samples.growth * length / 1000 > _LARGE_SHARE * room,
    )
