"""Question: what do operators cost when samples cost almost nothing?

Knob: the library, and the number of worker processes. All of them shuffle the numbers below a million, apply a function
to each, keep half of them with another one, and make batches of 64. `feedline` uses `pipe(range(n)).shuffle().map(f)
.filter(g)`, `torchdata` its nodes (`ParallelMapper` in processes, if there are workers), and `grain` a `MapDataset`
(with `mp_prefetch`). `torch` is torch's loader over a generator that does the same in plain Python, with the order of
`torch.randperm`; every worker makes its own part of it.

Held still: the functions, the size of batches, and their content: int64 tensors or arrays. Before the clock starts, the
script checks an epoch of every library: each number that passes the filter occurs exactly once.

How to read it: `x torch` is the ratio to the plain generator at the same number of workers, which has no operators at
all and cannot resume. The functions take 0.1 us each; everything else is the library.

    python -m benchmarks.w16_operators
    python -m benchmarks.w16_operators --workers 0 --peers grain
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks import flags, peers
from feedline.tools.measure import harness, rows

PACKAGES = {"torchdata": "torchdata", "grain": "grain"}
ENDLESS = 1 << 40


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__, engine=["process"], seconds=1.0, workers=[0, 2], samples=10**6, checked=10_000, batch_size=64
    )
    peers.add_flag(parser, list(PACKAGES))
    arguments = parser.parse_args(argv)
    chosen = peers.installed(arguments.peers, PACKAGES)
    entries = [entry for workers in arguments.workers for entry in _entries(workers, chosen, arguments)]
    rows.publish(
        "w16_operators", rows.measure(entries, arguments), arguments, columns=(rows.SAMPLES, *rows.COSTS), details=False
    )
    return 0


def _entries(workers: int, chosen: Sequence[str], arguments: argparse.Namespace) -> Iterator[harness.Entry]:
    size = arguments.batch_size
    # Any: loaders of several libraries.
    ways: list[tuple[harness.Side, Callable[[int], Any]]] = [
        (harness.Side(harness.TORCH), partial(usual, size, workers))
    ]
    for engine in ["inline"] if workers == 0 else arguments.engine:
        ways.append((harness.Side(harness.FEEDLINE, engine), partial(ours, size, workers, engine)))
    if "torchdata" in chosen:
        ways.append((harness.Side("torchdata"), partial(torchdatas, size, workers)))
    if "grain" in chosen:
        ways.append((harness.Side("grain"), partial(grains, size, workers)))
    for side, opened in ways:
        # Starting Grain's workers takes many seconds, so its epochs are not repeated.
        length = ENDLESS if side.library == "grain" else arguments.samples // 2 // size
        entry = rows.steady(
            {"workers": workers}, side, partial(opened, arguments.samples), arguments, batch_size=size, length=length
        )
        yield harness.Entry(entry.case, side, entry.measure, partial(_check, side, opened, arguments.checked))


def changed(sample: int) -> int:
    return sample * 3 + 1


def passes(sample: int) -> bool:
    return sample % 2 == 0


def _check(side: harness.Side, opened: Callable[..., Any], count: int) -> None:
    """Compare an epoch of so many samples with what it should be."""
    loader = opened(count, passes_over=1) if side.library == "grain" else opened(count)
    try:
        found = np.concatenate([np.asarray(batch) for batch in loader])
    finally:
        harness.close(loader)
    expected = [value for value in map(changed, range(count)) if passes(value)]
    if found.dtype != np.int64 or sorted(found.tolist()) != expected or found.tolist() == expected:
        raise ValueError(f"{side.name} delivers {len(found)} samples of {found.dtype}, which are not the expected ones")


class Usual(torch.utils.data.IterableDataset[int]):
    """What people write."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        worker = torch.utils.data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(0))
        for index in order[first::step].tolist():
            sample = changed(index)
            if passes(sample):
                yield sample


def usual(size: int, workers: int, count: int) -> harness.LoaderLike:
    return harness.Side(harness.TORCH).open(Usual(count), batch_size=size, **harness.worker_arguments(workers))


def ours(size: int, workers: int, engine: str, count: int) -> harness.LoaderLike:
    import feedline

    samples = feedline.pipe(range(count)).shuffle().map(changed).filter(passes)
    side = harness.Side(harness.FEEDLINE, engine)
    return side.open(samples, batch_size=size, **harness.worker_arguments(workers))


# Any, from here on: what other libraries make.
def torchdatas(size: int, workers: int, count: int) -> peers.Peer:
    from torchdata import nodes

    class Filter(nodes.BaseNode[Any]):
        """torchdata has no such node."""

        def __init__(self, source: nodes.BaseNode[Any]) -> None:
            super().__init__()
            self.source = source

        def reset(self, initial_state: dict[str, Any] | None = None) -> None:
            super().reset(initial_state)
            self.source.reset(None if initial_state is None else initial_state["source"])

        def next(self) -> Any:
            while not passes(sample := next(self.source)):
                pass
            return sample

        def get_state(self) -> dict[str, Any]:
            return {"source": self.source.state_dict()}

    sampler = torch.utils.data.RandomSampler(range(count))
    indices = nodes.SamplerWrapper(sampler)
    mapped: Any = (
        nodes.ParallelMapper(indices, changed, num_workers=workers, method="process")
        if workers
        else nodes.Mapper(indices, changed)
    )
    batches = nodes.Mapper(nodes.Batcher(Filter(mapped), size, drop_last=False), torch.tensor)
    loader = nodes.Loader(nodes.Prefetcher(batches, prefetch_factor=peers.AHEAD) if workers else batches)
    return peers.Peer(lambda: loader, workers, 0)


def grains(size: int, workers: int, count: int, passes_over: int | None = None) -> peers.Peer:
    grain = peers.grain()

    samples = grain.MapDataset.range(count).shuffle(seed=0).repeat(passes_over).map(changed).filter(passes)
    stream = samples.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)).batch(size)
    if workers:
        options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=peers.AHEAD)
        stream = stream.mp_prefetch(options)
    return peers.Peer(lambda: stream, workers, 0)


if __name__ == "__main__":
    sys.exit(main())
