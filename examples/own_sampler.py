"""A sampler of your own: a curriculum that goes from easy samples to hard ones.

    python examples/own_sampler.py

Shows: a sampler is a function from positions to indices. Subclass `feedline.abc.Sampler` with `size` (how many indices
an epoch has) and `at` (which indices are at these positions of this epoch), and the loader does the rest. It can enter
the order anywhere, so an interrupted epoch continues without reading its first part again, and `distribute` splits the
order over ranks. `at` must be pure: the same positions and the same key give the same indices in every process.

Look at: the "difficulty" at the beginning and the end of each epoch, which start far apart and come together; and that
the "resumed" loader and the "two ranks" deliver exactly the right samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from feedline import DataLoader
from feedline.abc import Sampler
from feedline.samplers import distribute
from feedline.types import Key

COUNT, BATCH, EPOCHS = 1000, 50, 4


class Curriculum(Sampler):
    """All samples in each epoch: by difficulty in the first, in random order from the epoch `random_from` on.

    In between, difficulty and chance are mixed. An index is drawn without keeping anything from call to call but the
    order of the last epoch that was asked for.
    """

    def __init__(self, difficulty: np.ndarray, random_from: int, seed: int = 0) -> None:
        self.ranks = np.argsort(np.argsort(difficulty)) / len(difficulty)
        self.random_from = random_from
        self.seed = seed  # without one, the loader draws another for every epoch
        self._last: tuple[Key, np.ndarray] | None = None

    def size(self) -> int:
        return len(self.ranks)

    def at(self, places: np.ndarray, key: Key) -> np.ndarray:
        if self._last is None or self._last[0] != key:
            chance = min(1.0, key.epoch / self.random_from)
            noise = np.random.default_rng([key.seed, key.epoch]).random(len(self.ranks))
            self._last = (key, np.argsort((1 - chance) * self.ranks + chance * noise))
        return self._last[1][places]

    def describe(self) -> dict[str, Any]:
        """Return what a saved state must match; a state of another curriculum is then refused."""
        return {**super().describe(), "random_from": self.random_from}


def main() -> None:
    difficulty = np.random.default_rng(0).random(COUNT)
    samples = torch.utils.data.TensorDataset(torch.arange(COUNT), torch.from_numpy(difficulty))

    def make_loader(**options: Any) -> DataLoader[Any, Any]:
        return DataLoader(samples, BATCH, **{"sampler": Curriculum(difficulty, EPOCHS - 1), **options})

    loader = make_loader(num_workers=2)
    gaps = []
    for epoch in range(EPOCHS):
        means = [float(hardness.mean()) for _, hardness in loader]
        first, last = np.mean(means[:5]), np.mean(means[-5:])
        gaps.append(last - first)
        print(f"epoch {epoch}: difficulty {first:.2f} at the beginning, {last:.2f} at the end")
    assert gaps[0] > 0.7
    assert abs(gaps[-1]) < 0.2

    loader = make_loader()
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    resumed = make_loader(num_workers=2)
    resumed.load_state_dict(loader.state_dict())
    pairs = list(zip(batches, resumed, strict=True))
    assert all(torch.equal(one[0], other[0]) for one, other in pairs)
    print(f"resumed after 7 batches, with workers: the same {len(pairs)} batches as without the interruption")

    ranks = [make_loader(sampler=distribute(Curriculum(difficulty, EPOCHS - 1), rank, 2)) for rank in range(2)]
    seen = [[int(index) for indices, _ in rank for index in indices] for rank in ranks]
    assert sorted(seen[0] + seen[1]) == list(range(COUNT))
    print(f"two ranks: {len(seen[0])} and {len(seen[1])} samples, each sample once")


if __name__ == "__main__":
    main()
