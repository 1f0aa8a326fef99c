"""A skorch net that trains and predicts with a loader: reports the samples it saw, and their iterators."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch

from tests.frameworks_real.bases import use_base
from tests.frameworks_real.deliveries import delivered

DataLoader = use_base(sys.argv[1])

import skorch  # noqa: E402
from skorch.dataset import ValidSplit  # noqa: E402


class Net(skorch.NeuralNetRegressor):  # type: ignore[misc]  # the package has no types
    """Records its training batches."""

    def train_step(self, batch: Any, **options: Any) -> Any:
        seen.append(batch[0].flatten().tolist())
        return super().train_step(batch, **options)


seen: list[Any] = []


def main() -> None:
    values = np.arange(20, dtype=np.float32)[:, None]
    answers: dict[str, Any] = {}
    for workers in (0, 2):
        torch.manual_seed(5)
        seen.clear()
        delivered.clear()
        net = Net(
            torch.nn.Linear,
            module__in_features=1,
            module__out_features=1,
            batch_size=4,
            lr=0.0,
            max_epochs=2,
            verbose=0,
            train_split=ValidSplit(5),
            iterator_train=DataLoader,
            iterator_valid=DataLoader,
            iterator_train__shuffle=True,
            iterator_train__num_workers=workers,
        )
        net.fit(values, values)
        losses = [row["valid_loss"] for row in net.history]
        answers[f"{workers}"] = {
            "seen": list(seen),
            "losses": losses,
            "predicted": net.predict(values).flatten().tolist(),
            "iterators": dict(delivered),
        }
    print(json.dumps(answers))  # noqa: T201


if __name__ == "__main__":
    main()
