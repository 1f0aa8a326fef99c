"""Question: how long does it take to resume at a random place of a billion tokens?

Knob: the number of tokens and of workers, and the loader: feedline's over a `TokenDataset`, or torchdata's
`StatefulDataLoader` over the usual dataset around `np.memmap`.

Held still: blocks of 2,048 tokens, shuffled, batches of 32. The file is sparse: it has its full size but takes no
space, so nothing is read from a disk. The state is that of a random position, which differs between rounds and is the
same for both loaders.

How to read it: `restore` is milliseconds from `load_state_dict()` to the first batch of a new loader; with workers, it
includes their start. `open` is the milliseconds before that, for opening the dataset and the loader.

    python -m benchmarks.w17_token_resume
    python -m benchmarks.w17_token_resume --tokens 1e10 --workers 0 --rounds 20
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import flags, workloads
from benchmarks.state_cost import halfway
from feedline.tools.measure import harness, rows

PEER = "torchdata"
COLUMNS = (
    rows.Column("restore_ms", "restore\nms", digits=1, with_range=True, better="lower"),
    rows.Column("open_ms", "open\nms", digits=1),
    rows.Column("state_bytes", "state\nbytes", better="lower"),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, rounds=11, tokens=[10**9], workers=[0, 2], block=2048, batch_size=32)
    flags.add_data(parser)
    arguments = parser.parse_args(argv)
    entries: list[harness.Entry] = []
    for tokens in arguments.tokens:
        path = workloads.stored(arguments.data, f"sparse-{tokens}.bin", partial(write, tokens))
        batches = (tokens - 1) // arguments.block // arguments.batch_size
        for workers in arguments.workers:
            for library in (PEER, harness.FEEDLINE):
                places = random.Random(0)  # the same for both libraries
                once = partial(measure, library, path, batches, places, workers, arguments.block, arguments.batch_size)
                case: harness.Case = {"tokens": tokens, "workers": workers}
                watched = partial(harness.watched, once)
                entries.append(harness.Entry(case, harness.Side(library), watched, partial(warm_up, once)))
    outcomes = rows.measure(entries, arguments)
    rows.publish("w17_token_resume", outcomes, arguments, columns=COLUMNS, peer=PEER, details=False)
    return 0


def write(tokens: int, path: Path) -> None:
    """Make a file of zeros that takes no space."""
    with path.open("wb") as file:
        os.truncate(file.fileno(), 2 * tokens)


class Usual(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """What people write."""

    def __init__(self, path: Path, block: int) -> None:
        self.tokens = np.memmap(path, np.uint16, "r")
        self.block = block

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.block

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        first, last = index * self.block, (index + 1) * self.block
        tokens = torch.from_numpy(self.tokens[first:last].astype(np.int64))
        return tokens, torch.from_numpy(self.tokens[first + 1 : last + 1].astype(np.int64))


# Any: both loaders, which share no class that has a state.
def open_loader(library: str, path: Path, workers: int, block: int, size: int) -> Any:
    arguments: dict[str, Any] = {"batch_size": size, "shuffle": True, "num_workers": workers}
    if library == PEER:
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(Usual(path, block), **arguments)
    from feedline import DataLoader
    from feedline.text import TokenDataset

    return DataLoader(TokenDataset(path, block, raw_dtype="uint16"), **arguments, seed=1)


def warm_up(once: Callable[[], harness.Figures]) -> None:
    """Import everything."""
    once()


def measure(
    library: str, path: Path, batches: int, places: random.Random, workers: int, block: int, size: int
) -> harness.Figures:
    loader = open_loader(library, path, workers, block, size)
    iterator = iter(loader)
    next(iterator)
    state = halfway(library, loader.state_dict(), places.randrange(1, batches), size)
    del iterator
    harness.close(loader)
    begun = time.perf_counter()
    loader = open_loader(library, path, workers, block, size)
    opened = time.perf_counter()
    loader.load_state_dict(state)
    iterator = iter(loader)
    next(iterator)
    ended = time.perf_counter()
    del iterator
    harness.close(loader)
    return {
        "restore_ms": (ended - opened) * 1e3,
        "open_ms": (opened - begun) * 1e3,
        "state_bytes": float(len(pickle.dumps(state))),
    }


if __name__ == "__main__":
    sys.exit(main())
