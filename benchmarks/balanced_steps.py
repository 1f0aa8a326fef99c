"""Question: how long do the ranks of a step wait for the slowest one, and what does dealing samples by cost change?

Knob: how samples are dealt to ranks. `random`: shuffled, as `DistributedSampler` does. `buckets`: shuffled batches of
similar length. `greedy`: the samples of one step at a time, most expensive first, each to the cheapest rank with room,
as several training programs do. `balanced`: `samplers.BalancedBatches`.

Held still: log-normal lengths (sigma 1, cut at 8 times the mean), the number of ranks, and the batch size. `lengths`
counts a sample by its length. `rows` are rows of 4,096 tokens packed from documents, counted by the sum of the squares
of the documents' lengths. `training` is real: ranks on this machine, joined by gloo, each with one thread, train a
small transformer on samples of these lengths, one after the other, and average gradients after every step. It needs a
core for each rank; with fewer, ranks that wait leave their core to the others.

How to read it: `slowest` is the cost of the slowest rank as a multiple of the mean of its step, averaged over the
steps, `worst` that of the worst step, and `within` the correlation of the costs of two samples of one step (0 if
samples were drawn independently). `planned` is how many samples per second are dealt on one core. The loop gives tokens
per second of all ranks.

    python -m benchmarks.balanced_steps
    python -m benchmarks.balanced_steps --costs training --ranks 4 --steps 64
"""

from __future__ import annotations

import heapq
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import flags
from feedline import samplers
from feedline.tools.measure import harness, rows
from feedline.types import Key

COLUMNS = (
    rows.Column("slowest", "slowest\n/ mean", digits=3, with_range=True),
    rows.Column("worst", "worst\nstep", digits=3, with_range=True),
    rows.Column("within", "within\na step", digits=3),
    rows.Column("planned", "planned\n1000/s", scale=1e-3, digits=0),
    rows.Column("tokens_per_s", "tokens/s", digits=0, with_range=True, better="higher"),
)
ROW = 4096
WIDTH = 128
MEAN_TOKENS = 128
Costs = NDArray[np.float64]
Steps = NDArray[np.int64]
"""The samples of each step, rank and place in the batch."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, ranks=64, batch_size=8, steps=160)
    parser.add_argument("--costs", nargs="+", choices=("lengths", "rows", "training"), default=["lengths", "rows"])
    parser.add_argument("--window", type=int, default=16)
    arguments = parser.parse_args(argv)
    entries = []
    for kind in arguments.costs:
        for name, deal in WAYS.items():
            measure = train_once if kind == "training" else deal_once
            sizes = arguments.ranks, arguments.batch_size, arguments.steps, arguments.window
            once = partial(measure, kind, deal, *sizes)
            entries.append(harness.Entry({"costs": kind, "ranks": arguments.ranks}, harness.Side(name), once))
    outcomes = rows.measure(entries, arguments)
    rows.publish("balanced_steps", outcomes, arguments, columns=COLUMNS, peer="random", details=False)
    return 0


def costs_of(kind: str, count: int) -> Costs:
    """Return what the samples of a kind cost."""
    generator = np.random.default_rng(0)
    if kind != "rows":
        lengths: Costs = np.minimum(generator.lognormal(0, 1, count) / np.exp(0.5), 8.0)
        return lengths
    costs = np.empty(count)
    for row in range(count):
        documents = generator.lognormal(5, 1, 60).clip(max=ROW)
        whole = documents[: int(np.searchsorted(np.cumsum(documents), ROW))]
        costs[row] = (whole**2).sum() + (ROW - whole.sum()) ** 2
    return costs


def shuffled(costs: Costs, ranks: int, size: int, count: int, window: int) -> Steps:
    order = np.random.default_rng(1).permutation(len(costs))
    return order[: count * ranks * size].reshape(count, ranks, size)


def in_buckets(costs: Costs, ranks: int, size: int, count: int, window: int) -> Steps:
    sampler = samplers.LengthBucketBatchSampler(costs, size, drop_last=True, seed=1)
    batches = [batch for batch, _ in zip(sampler, range(count * ranks), strict=False)]
    return np.array(batches, np.int64).reshape(count, ranks, size)


def greedy(costs: Costs, ranks: int, size: int, count: int, window: int) -> Steps:
    steps = shuffled(costs, ranks, size, count, window).reshape(count, -1)
    dealt = np.empty((count, ranks, size), np.int64)
    for number, step in enumerate(steps):
        heap = [(0.0, rank, 0) for rank in range(ranks)]
        for index in step[np.argsort(-costs[step])].tolist():
            load, rank, place = heapq.heappop(heap)
            dealt[number, rank, place] = index
            if place + 1 < size:
                heapq.heappush(heap, (load + float(costs[index]), rank, place + 1))
    return dealt


def balanced(costs: Costs, ranks: int, size: int, count: int, window: int) -> Steps:
    sampler = samplers.BalancedBatches(costs, size, window=window, rank=0, world_size=ranks, tail="drop", seed=1)
    windows = sampler.windows(Key(1, 0))
    batches = [[windows.batch(step, rank) for rank in range(ranks)] for step in range(count)]
    return np.array(batches, np.int64)


Deal = Callable[[Costs, int, int, int, int], Steps]
WAYS: dict[str, Deal] = {"random": shuffled, "buckets": in_buckets, "greedy": greedy, "balanced": balanced}


def deal_once(kind: str, deal: Deal, ranks: int, size: int, count: int, window: int) -> harness.Figures:
    costs = costs_of(kind, ranks * size * (count + 1))
    began = time.process_time()
    steps = deal(costs, ranks, size, count, window)
    seconds = time.process_time() - began
    return {**figures_of(costs, steps), "planned": steps.size / seconds, "tokens_per_s": None}


def figures_of(costs: Costs, steps: Steps) -> harness.Figures:
    loads = costs[steps].sum(2)
    slowest = loads.max(1) / loads.mean(1)
    # The variance of the means of steps is larger, or smaller, than that of independent samples.
    samples = steps[0].size
    of_steps = costs[steps].reshape(len(steps), -1).mean(1).var() * samples / costs.var()
    return {"slowest": float(slowest.mean()), "worst": float(slowest.max()), "within": (of_steps - 1) / (samples - 1)}


def train_once(kind: str, deal: Deal, ranks: int, size: int, count: int, window: int) -> harness.Figures:
    """Train on ranks of this machine, and return the tokens per second of all of them."""
    import torch.multiprocessing

    costs = costs_of("lengths", ranks * size * (count + 1))
    lengths = np.maximum(1, costs * MEAN_TOKENS).astype(np.int64)
    steps = deal(_seconds_of(lengths), ranks, size, count, window)
    with tempfile.TemporaryDirectory(prefix="feedline-steps-") as folder:
        arguments = (ranks, lengths, steps, folder)
        torch.multiprocessing.spawn(train, arguments, nprocs=ranks)  # type: ignore[attr-defined, no-untyped-call]
        seconds = float((Path(folder) / "seconds").read_text(encoding="utf-8"))
    figures = figures_of(_seconds_of(lengths), steps)
    return {**figures, "planned": None, "tokens_per_s": int(lengths[steps].sum()) / seconds}


def _seconds_of(lengths: NDArray[np.int64]) -> Costs:
    return samplers.attention_cost(lengths, linear=6 * WIDTH)


def train(rank: int, ranks: int, lengths: NDArray[np.int64], steps: Steps, folder: str) -> None:
    """Train one rank. The first rank writes how long all steps took."""
    import torch
    from torch import distributed, nn

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    tokens = torch.randn(1, int(lengths.max()), WIDTH)
    model(tokens[:, :64]).square().mean().backward()
    distributed.barrier()
    began = time.perf_counter()
    for step in steps[:, rank]:
        optimizer.zero_grad()
        for length in lengths[step].tolist():
            model(tokens[:, :length]).square().mean().backward()
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad)
        optimizer.step()
    distributed.barrier()
    if rank == 0:
        (Path(folder) / "seconds").write_text(str(time.perf_counter() - began), encoding="utf-8")
    distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
