"""Parts of a dataset that do not suit workers: handles, generators, large objects; and memory that it keeps."""

from __future__ import annotations

from collections.abc import Iterator

from feedline.insight.stats import shown
from feedline.system.sizes import bytes_text
from feedline.tools.advise.finding import Finding, gain_of, margin_of
from feedline.tools.measure.measured import Measured, OpenHandle, Samples

_MAKING_S = 2.0
_MAKING = 0.05
"""Share of the first epoch."""
_PICKLING_S = 0.5
_LARGE_BYTES = 32 << 20
_LARGE_SHARE = 0.5
"""Serious if the copies in all workers exceed this share of the available memory."""
_GROWTH = 1 << 20
"""Bytes per 1,000 samples; noise is below this. All of these are guesses."""
_NAMED = 3


def find(measured: Measured) -> list[Finding]:
    """Return the findings about the dataset itself."""
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
    name = first.path.removeprefix("dataset.")
    yield Finding(
        "shared-handle",
        f"Workers share {first.path}, which is {first.is_called.partition(' (')[0]}.",
        first.advice,
        _opened_later(name, first, on_threads=measured.engine == "thread") if name.isidentifier() else None,
        is_serious=True,
        evidence=f"{first.path} is {first.is_called}{f' (others: {others})' if others else ''}. {first.trouble}",
    )


_OPENING = {
    "h5py.": "h5py.File(self.path, 'r')",
    "sqlite3.": "sqlite3.connect(self.path)",
    "lmdb.": "lmdb.open(self.path, readonly=True, lock=False)",
    "socket.": "socket.create_connection(self.address)",
}
"""How to open a handle whose path is unknown, by part of its name; anything else is a file."""


def _opened_later(name: str, handle: OpenHandle, *, on_threads: bool) -> str:
    opening, kept = handle.opening, ""
    if not opening:
        opening = next((call for known, call in _OPENING.items() if known in handle.is_called), "open(self.path, 'rb')")
        kept = f"# and keep what it was opened with: {opening.partition('(')[2].split(',')[0].rstrip(')')}\n"
    if on_threads:
        return (
            f"# in __init__:\n{kept}self.local = threading.local()\n"
            f"# in __getitem__, instead of self.{name}:\nif not hasattr(self.local, '{name}'):\n"
            f"    self.local.{name} = {opening}\n{name} = self.local.{name}"
        )
    return (
        f"# in __init__:\n{kept}self.{name} = None\n"
        f"# in __getitem__:\nif self.{name} is None:\n    self.{name} = {opening}"
    )


def _generators(measured: Measured) -> Iterator[Finding]:
    state, on_threads = measured.state, measured.engine == "thread"
    if measured.engine == "inline":
        return
    if state.own_generators:
        names = ", ".join(state.own_generators[:_NAMED])
        trouble = (
            "Threads share it, and what a sample draws depends on which thread comes first"
            if on_threads
            else "Each worker process gets a copy in the same state, so all workers draw the same numbers, and draw "
            "them again in every epoch that restarts the workers"
        )
        yield Finding(
            "copied-random",
            "Threads draw from one random generator." if on_threads else "Workers draw the same random numbers.",
            "Draw from feedline.rng(), which gives each sample its own numbers.",
            "feedline.rng().random()",
            is_serious=True,
            evidence=f"Samples draw from {names}. {trouble}",
        )
    if state.global_generators:
        yield Finding(
            "global-random",
            "Samples draw from random generators that threads share.",
            "Draw from feedline.rng(), which gives each sample its own numbers, also on threads.",
            "feedline.rng().random()",
            is_serious=on_threads,
            evidence=f"The generators of the process changed: {', '.join(state.global_generators)}. On threads, what a "
            "sample draws depends on which thread comes first",
        )


def _making(measured: Measured) -> Iterator[Finding]:
    making, epoch_s = measured.making, measured.epoch_s
    if making is None or epoch_s is None or making.make_s < (limit_s := max(_MAKING_S, _MAKING * epoch_s)):
        return
    read_s = measured.state.pickle_s
    yield Finding(
        "slow-init",
        f"Creating the dataset takes {shown(making.make_s)}.",
        "Create it once and store it, or defer the work to the first use.",
        None
        if read_s is None
        else 'with open("dataset.pickle", "wb") as file:  # once\n    pickle.dump(dataset, file)\n'
        '# in the training program:\nwith open("dataset.pickle", "rb") as file:\n    dataset = pickle.load(file)',
        gain=None if read_s is None else gain_of(making.make_s + epoch_s, making.make_s - read_s),
        is_serious=making.make_s > epoch_s,
        evidence=f"An epoch takes about {shown(epoch_s)}; every start of the program, and every rank, waits for "
        f"the dataset" + ("" if read_s is None else f". Pickling and unpickling it takes {shown(read_s)}"),
        margin=margin_of(making.make_s / limit_s, making.cpu_share),
    )


def _unpicklable(measured: Measured) -> Iterator[Finding]:
    if measured.state.not_picklable is None or measured.engine in ("thread", "inline"):
        return
    is_sent = measured.start_method != "fork"
    how = "one of which is the default here" if is_sent else "the defaults from Python 3.14 on, and on macOS"
    yield Finding(
        "unpicklable",
        "The dataset cannot be pickled, so not every start method works.",
        measured.state.pickle_advice,
        None if is_sent else 'DataLoader(dataset, multiprocessing_context="fork")',
        is_serious=is_sent,
        evidence=f"{measured.state.not_picklable}. Workers cannot be started by forkserver or spawn, {how}",
    )


def _pickling(measured: Measured) -> Iterator[Finding]:
    state, seconds = measured.state, measured.state.pickle_s or 0.0
    if seconds < _PICKLING_S or measured.engine in ("thread", "inline"):
        return
    workers = measured.headroom.cores if measured.loader is None else measured.loader.workers
    yield Finding(
        "slow-pickling",
        f"Pickling the dataset takes {shown(seconds)}.",
        "Keep the workers from epoch to epoch, and let __getstate__ leave out parts that can be rebuilt.",
        f"DataLoader(dataset, num_workers={workers}, persistent_workers=True)",
        is_serious=measured.start_method != "fork" and seconds > (measured.epoch_s or 0.0),
        evidence=f"Pickling and unpickling it takes {shown(seconds)} for {bytes_text(state.pickle_bytes)}, "
        "arrays aside. Each worker that is started by forkserver or spawn waits for that",
        margin=margin_of(seconds / _PICKLING_S, state.pickle_cpu_share),
    )


def _held(measured: Measured) -> Iterator[Finding]:
    state, headroom = measured.state, measured.headroom
    workers = headroom.cores if measured.loader is None else measured.loader.workers
    if measured.engine in ("thread", "inline") or not workers:
        return
    for held in state.held:
        if held.bytes < _LARGE_BYTES:
            continue
        all_bytes = held.bytes * workers * headroom.local_ranks
        name = held.path.removeprefix("dataset.")
        instead = "" if held.shared_bytes is None else f"; shared, it takes {bytes_text(held.shared_bytes)} once"
        yield Finding(
            "copied-objects",
            f"Each worker copies the {held.items:,} objects of {held.path}.",
            "Share one copy between all workers."
            if held.shared_bytes is not None
            else "Keep these values in arrays, or in a memory-mapped file.",
            f"# at the end of __init__:\nself.{name} = feedline.share(self.{name})"
            if held.shared_bytes is not None and name.replace(".", "").isidentifier()
            else None,
            is_serious=headroom.memory_bytes is not None and all_bytes > _LARGE_SHARE * headroom.memory_bytes,
            evidence=f"They are Python objects of {bytes_text(held.bytes)}. Reading an object writes its reference "
            f"count, so each worker ends up with a copy: {bytes_text(all_bytes)} in {workers} workers{instead}",
        )


def _growth(measured: Measured) -> Iterator[Finding]:
    samples: Samples | None = measured.samples
    if samples is None or samples.growth < _GROWTH:
        return
    length = None if measured.making is None else measured.making.length
    epoch = "" if length is None else f", by {bytes_text(samples.growth * length / 1000)} in an epoch of all workers"
    memory_bytes = measured.headroom.memory_bytes
    yield Finding(
        "memory-growth",
        f"Memory grows by {bytes_text(samples.growth)} per 1,000 samples.",
        "Bound the cache (feedline.datasets.CachedDataset does), or use tracemalloc to find what samples leave behind. "
        "Until then, let the loader replace workers that have grown too large.",
        'DataLoader(dataset, max_memory_per_worker="4GB")',
        is_serious=memory_bytes is not None
        and length is not None
        and samples.growth * length / 1000 > _LARGE_SHARE * memory_bytes,
        evidence=f"It grew steadily while samples were made{epoch}: an unbounded cache, or a leak",
    )
