"""Question: how quickly are documents packed into rows of one length, and how full are the rows?

Knob: what is packed (`whole`: documents stay whole; `cut`: they are cut at the ends of rows), by which library, and the
number of workers. `torch`: what people usually write, a generator in torch's loader that fills one row after the other.
`grain`: its `FirstFitPackIterDataset` or `BestFitPackIterDataset`, and `ConcatThenSplitIterDataset`. `trl`:
`pack_dataset` with "bfd" or "wrapped", packed only, and packed and then read by torch's loader. `feedline`:
`pipe(documents).pack(...)`, over a list of arrays, and over the documents of a token file, whose lengths are known
without reading them (`known`).

Held still: 40,000 documents whose lengths are log-normal (mean 600, sigma 1) but at most 2,048; rows of 2,048, batches
of 32. All but TRL deliver batches of token ids, segment ids and positions; TRL delivers token ids and document lengths.
Planning windows have 2,048 documents in feedline, 1,000 in TRL (its own default); Grain has `--bins` open rows.

How to read it: `full` is the share of an epoch's rows that are tokens of documents, not padding. `M tokens/s` counts
these tokens only. `x torch` is the ratio to the generator of the same kind, with as many workers. TRL packs everything
before the first batch: its rate covers the whole run, with `num_proc` as the number of workers.

    python -m benchmarks.w14_packing
    python -m benchmarks.w14_packing --kind whole --workers 2 --peers grain
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import flags, peers, workloads
from feedline.tools.measure import harness, rows
from feedline.tools.measure.harness import Loading
from feedline.tools.measure.steady import Steady, touch

KINDS = {"whole": "best_fit", "cut": "concat"}
MEAN, SIGMA = 600, 1.0
COLUMNS = (
    rows.Column("tokens_per_s", "M tokens/s", 1e-6, digits=2, with_range=True, better="higher"),
    rows.Column("full", "full\n%", 100, digits=2),
    rows.Column("cpu_us_per_row", "CPU us\nper row", digits=1),
)

# Any, throughout: arrays, batches, and what other libraries make.
Document = NDArray[np.uint16]


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__,
        engine=["process"],
        seconds=1.0,
        workers=[0, 2],
        documents=40_000,
        length=2048,
        batch_size=32,
        bins=64,
    )
    flags.choose(parser, "--kind", list(KINDS))
    peers.add_flag(parser, ("grain", "trl"))
    flags.add_data(parser)
    arguments = parser.parse_args(argv)
    chosen = peers.installed(arguments.peers, {})
    entries = [entry for kind in arguments.kind for entry in _entries(kind, chosen, arguments)]
    rows.publish("w14_packing", rows.measure(entries, arguments), arguments, columns=COLUMNS, details=False)
    return 0


@functools.cache
def documents(count: int, length: int) -> list[Document]:
    """Return random documents, none of them empty or longer than a row."""
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(np.log(MEAN) - SIGMA**2 / 2, SIGMA, count), 1, length).astype(np.int64)
    tokens = generator.integers(1, 50_000, int(lengths.sum()), np.uint16)
    return np.split(tokens, np.cumsum(lengths)[:-1])


@dataclass
class Packing:
    """A way to pack, in steady state; its rows are as full in every epoch."""

    opened: Callable[[], Any]
    segments: str
    """The field of a batch that is 0 where padding is."""
    arguments: argparse.Namespace
    epoch: Callable[[], Any] | None = None
    """Opens one epoch, if what is measured has no end."""
    full: float = 0.0
    rows: int = 0

    def count(self) -> None:
        """Read an epoch without a clock, to count rows and the tokens in them."""
        tokens, self.rows, loader = 0, 0, (self.epoch or self.opened)()
        try:
            for batch in loader:
                field = batch[self.segments]
                self.rows += len(field)
                tokens += int((field != 0).sum())
        finally:
            harness.close(loader)
        self.full = tokens / (self.rows * self.arguments.length)

    def measure(self) -> harness.Figures:
        size = self.arguments.batch_size
        # Each worker may end with a batch that is not full.
        length = self.rows // size if self.epoch is None else peers.ENDLESS
        figures = Steady(self.opened, touch, size, rows.span(self.arguments), length).measure()
        assert figures["samples_per_s"] is not None
        assert figures["cpu_s_per_1000"] is not None
        rate = figures["samples_per_s"] * self.arguments.length * self.full
        return {**figures, "tokens_per_s": rate, "full": self.full, "cpu_us_per_row": figures["cpu_s_per_1000"] * 1e3}


def _entries(kind: str, chosen: Sequence[str], arguments: argparse.Namespace) -> Iterator[harness.Entry]:
    ways: dict[str, Callable[..., Any]] = {
        "torch": partial(usual, kind),
        "feedline list": partial(ours, kind, False),
        "feedline known": partial(ours, kind, True),
    }
    if "grain" in chosen:
        for name in ("first_fit", "best_fit") if kind == "whole" else ("concat",):
            ways[f"grain {name}"] = partial(grains, name)
    for side, way, loading in rows.sides(arguments, ways):
        packing = Packing(partial(way, arguments, loading), "segment_ids", arguments)
        if side.library == "grain":
            epoch = partial(way, arguments, replace(loading, workers=0), passes=1)
            packing = replace(packing, segments="tokens_segment_ids", epoch=epoch)
        case: harness.Case = {"documents": kind, "workers": loading.workers}
        yield harness.Entry(case, side, packing.measure, packing.count)
    if "trl" in chosen:
        strategy = "bfd" if kind == "whole" else "wrapped"
        for workers, reads in itertools.product(arguments.workers, (False, True)):
            side = harness.Side("trl", f"{strategy}{', read' if reads else ''}")
            once = partial(trls, strategy, reads, arguments, Loading(workers, arguments.batch_size))
            yield harness.Entry({"documents": kind, "workers": workers}, side, partial(harness.watched, once))


class Usual(torch.utils.data.IterableDataset[dict[str, Any]]):
    """What people write: rows are filled one after the other, with the documents of every so-manieth worker."""

    def __init__(self, kind: str, count: int, length: int) -> None:
        self.kind, self.count, self.length = kind, count, length

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = torch.utils.data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        held: list[Document] = []
        free = self.length
        for document in documents(self.count, self.length)[first::step]:
            rest = document
            while len(rest) > free:
                if self.kind == "cut":
                    held.append(rest[:free])
                    rest = rest[free:]
                yield self._row(held)
                held, free = [], self.length
            if len(rest):
                held.append(rest)
                free -= len(rest)
        if held:
            yield self._row(held)

    def _row(self, parts: list[Document]) -> dict[str, Any]:
        row = {name: np.zeros(self.length, np.int32) for name in ("tokens", "segment_ids", "positions")}
        at = 0
        for number, part in enumerate(parts, start=1):
            end = at + len(part)
            row["tokens"][at:end] = part
            row["segment_ids"][at:end] = number
            row["positions"][at:end] = np.arange(len(part))
            at = end
        return row


def usual(kind: str, arguments: argparse.Namespace, loading: Loading) -> harness.LoaderLike:
    return loading.open(Usual(kind, arguments.documents, arguments.length))


def ours(kind: str, known: bool, arguments: argparse.Namespace, loading: Loading) -> harness.LoaderLike:
    import feedline

    return loading.open(feedline.pipe(_source(known, arguments)).pack(arguments.length, strategy=KINDS[kind]))  # type: ignore[arg-type]


def _source(known: bool, arguments: argparse.Namespace) -> Any:
    found = documents(arguments.documents, arguments.length)
    if not known:
        return found
    from feedline.text import TokenDataset

    name = f"packing-{arguments.documents}-{arguments.length}.bin"
    return TokenDataset(workloads.stored(arguments.data, name, partial(_write, found)), dtype=np.int32).documents


def _write(found: list[Document], path: Path) -> None:
    from feedline.text import TokenWriter

    with TokenWriter(path, dtype="uint16") as writer:
        writer.write(found)


class Documents:
    """The documents as Grain wants them; each process makes its own."""

    def __init__(self, count: int, length: int) -> None:
        self.count, self.length = count, length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> dict[str, Any]:
        return {"tokens": documents(self.count, self.length)[index].astype(np.int32)}


def grains(name: str, arguments: argparse.Namespace, loading: Loading, passes: int | None = None) -> peers.Peer:
    """Return Grain's packing. It has no end unless asked for, since starting its workers takes many seconds."""
    grain = peers.grain()
    from grain import experimental

    source = grain.MapDataset.source(Documents(arguments.documents, arguments.length)).repeat(passes)
    stream = source.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    lengths = {"tokens": arguments.length}
    if name == "concat":
        packed = experimental.ConcatThenSplitIterDataset(stream, length_struct=lengths)
    else:
        makes = {"first_fit": "FirstFitPackIterDataset", "best_fit": "BestFitPackIterDataset"}
        make = getattr(experimental, makes[name])
        packed = make(stream, length_struct=lengths, num_packing_bins=arguments.bins)
    return peers.of_grain(packed.batch(arguments.batch_size), loading)


def trls(strategy: str, reads: bool, arguments: argparse.Namespace, loading: Loading) -> harness.Figures:
    """Pack everything with TRL, and read it if asked to; its results are not cached."""
    import datasets
    from trl.data_utils import pack_dataset

    datasets.disable_progress_bars()
    datasets.disable_caching()
    found = documents(arguments.documents, arguments.length)
    source = _arrow(arguments.documents, arguments.length)
    begun, cpu = time.perf_counter(), _cpu_s()
    packed = pack_dataset(source, arguments.length, strategy, {"num_proc": loading.workers or None})
    if reads:
        batches = loading.open(packed.with_format("numpy"), collate_fn=_padded)
        for _ in batches:
            pass
        harness.close(batches)
    elapsed, tokens = time.perf_counter() - begun, sum(map(len, found))
    return {
        "seconds": elapsed,
        "tokens_per_s": tokens / elapsed,
        "full": tokens / (len(packed) * arguments.length),
        "cpu_us_per_row": (_cpu_s() - cpu) / len(packed) * 1e6,
    }


def _cpu_s() -> float:
    import resource

    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@functools.cache
def _arrow(count: int, length: int) -> Any:
    import datasets
    import pyarrow as pa

    found = documents(count, length)
    ends = np.cumsum([0, *map(len, found)])
    tokens = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(np.concatenate(found).astype(np.int32)))
    return datasets.Dataset(pa.table({"input_ids": tokens})).with_format("arrow")


def _padded(samples: list[dict[str, Any]]) -> torch.Tensor:
    found = [torch.from_numpy(np.asarray(sample["input_ids"])) for sample in samples]
    return torch.nn.utils.rnn.pad_sequence(found, batch_first=True)


if __name__ == "__main__":
    sys.exit(main())
