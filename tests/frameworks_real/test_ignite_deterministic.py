"""Ignite's deterministic engine rebuilds a loader around its own batch sampler."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frameworks_real.conftest import need

need("ignite")

import torch  # noqa: E402
from ignite.engine.deterministic import DeterministicEngine  # noqa: E402

from feedline import DataLoader, samplers  # noqa: E402
from feedline.loader.torch_batches import TorchBatches  # noqa: E402


class Broken(list[int]):
    def __getitem__(self, index: Any) -> Any:
        if index == 5:
            raise ValueError("sample 5 is broken")
        return super().__getitem__(index)


DATA: Any = Broken(range(23))

ORDERS: dict[str, dict[str, Any]] = {
    "seeded": {"batch_size": 4, "shuffle": True},
    "batches": {"batch_sampler": samplers.BatchSampler(samplers.RandomSampler(DATA), 4, False)},
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_the_rebuilt_loader_is_feedlines_and_keeps_its_options(order: dict[str, Any]) -> None:
    seen: list[int] = []
    kinds: list[Any] = []

    def step(engine: Any, batch: torch.Tensor) -> None:
        seen.extend(batch.tolist())
        kinds.append((type(engine.state.dataloader), type(engine._dataloader_iter)))

    engine = DeterministicEngine(step)
    engine.run(DataLoader(DATA, seed=7, on_error="skip", restarts=3, memory_budget="1GB", **order), max_epochs=2)
    assert sorted(seen) == sorted([*range(5), *range(6, 23)] * 2)
    assert set(kinds) == {(DataLoader, TorchBatches)}
    loader = engine.state.dataloader
    assert isinstance(loader, DataLoader)
    assert (loader.seed, loader.on_error, loader.restarts, loader.memory_budget) == (7, "skip", 3, "1GB")
