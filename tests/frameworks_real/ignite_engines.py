"""Ignite engines over a loader: reports the samples they saw, their iterators, and the loader's class."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from tests.frameworks_real.bases import use_base
from tests.frameworks_real.deliveries import delivered

DataLoader = use_base(sys.argv[1])

import ignite.distributed  # noqa: E402
from ignite.engine import DeterministicEngine, Engine  # noqa: E402


def ran(engine_kind: Any, loader: Any, **options: Any) -> dict[str, Any]:
    seen: list[Any] = []
    delivered.clear()
    engine = engine_kind(lambda engine, batch: seen.append(batch.tolist()))
    engine.run(loader, **options)
    state = engine.state
    return {
        "seen": seen,
        "iterators": dict(delivered),
        "is ours": isinstance(state.dataloader, DataLoader),
        "iteration": state.iteration,
    }


def main() -> None:
    torch.manual_seed(5)
    numbers: Any = torch.arange(7)
    plain = {"batch_size": 2, "shuffle": True}
    answers = {
        "two epochs": ran(Engine, DataLoader(numbers, **plain), max_epochs=2),
        "cut epochs": ran(Engine, DataLoader(numbers, **plain, num_workers=2), max_epochs=3, epoch_length=3),
        "persistent": ran(
            Engine, DataLoader(numbers, **plain, num_workers=2, persistent_workers=True), max_epochs=3, epoch_length=3
        ),
        "deterministic": ran(DeterministicEngine, DataLoader(numbers, **plain), max_epochs=2),
        "auto_dataloader": ran(Engine, ignite.distributed.auto_dataloader(numbers, **plain), max_epochs=2),
    }
    print(json.dumps(answers))  # noqa: T201


if __name__ == "__main__":
    main()
