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

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks import flags, peers
from feedline.tools.measure import harness, rows
from feedline.tools.measure.harness import Loading


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__, engine=["process"], seconds=1.0, workers=[0, 2], samples=10**6, checked=10_000, batch_size=64
    )
    ways: dict[str, Callable[..., Any]] = {"torch": usual, "feedline": ours, "torchdata": torchdatas, "grain": grains}
    peers.add_flag(parser, ways)
    arguments = parser.parse_args(argv)
    chosen = peers.chosen(arguments, ways)
    for side, way, loading in rows.sides(arguments, chosen):
        check(side, way(arguments.checked, loading), arguments.checked)
    given = {name: partial(way, arguments.samples) for name, way in chosen.items()}
    entries = list(rows.entries(arguments, {}, given, length=arguments.samples // 2 // arguments.batch_size))
    columns = (rows.SAMPLES, *rows.COSTS)
    rows.publish("w16_operators", rows.measure(entries, arguments), arguments, columns=columns, details=False)
    return 0


def changed(sample: int) -> int:
    return sample * 3 + 1


def passes(sample: int) -> bool:
    return sample % 2 == 0


def check(side: harness.Side, loader: harness.LoaderLike, count: int) -> None:
    """Compare an epoch of so many samples with what it should be."""
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


def usual(count: int, loading: Loading) -> harness.LoaderLike:
    return loading.open(Usual(count))


def ours(count: int, loading: Loading) -> harness.LoaderLike:
    import feedline

    return loading.open(feedline.pipe(range(count)).shuffle().map(changed).filter(passes))


# Any, from here on: what other libraries make.
def torchdatas(count: int, loading: Loading) -> peers.Peer:
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

    indices = nodes.SamplerWrapper(torch.utils.data.RandomSampler(range(count)))
    kept = Filter(peers.mapped(indices, changed, loading))
    return peers.of_nodes(nodes.Mapper(nodes.Batcher(kept, loading.batch_size, drop_last=False), torch.tensor), loading)


def grains(count: int, loading: Loading) -> peers.Peer:
    grain = peers.grain()

    samples = grain.MapDataset.range(count).shuffle(seed=0).map(changed).filter(passes)
    stream = samples.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)).batch(loading.batch_size)
    return peers.of_grain(stream, loading)


if __name__ == "__main__":
    sys.exit(main())
