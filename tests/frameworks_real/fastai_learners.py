"""A fastai learner over loaders: reports the samples of training and validation, and their iterators."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch.utils.data import TensorDataset

from tests.frameworks_real.bases import use_base
from tests.frameworks_real.deliveries import delivered

DataLoader = use_base(sys.argv[1])

from fastai.callback.core import Callback  # noqa: E402
from fastai.data.core import DataLoaders  # noqa: E402
from fastai.learner import Learner  # noqa: E402


class Notes(Callback):  # type: ignore[misc]  # the package has no types
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def before_batch(self) -> None:
        self.seen.append((self.learn.training, self.learn.xb[0].flatten().tolist()))


def main() -> None:
    values = torch.arange(11, dtype=torch.float32)[:, None]
    dataset = TensorDataset(values, values)
    answers: dict[str, Any] = {}
    for workers in (0, 2):
        torch.manual_seed(5)
        delivered.clear()
        train = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=workers)
        valid = DataLoader(dataset, batch_size=4, num_workers=workers)
        notes = Notes()
        learner = Learner(DataLoaders(train, valid), torch.nn.Linear(1, 1), loss_func=torch.nn.MSELoss(), cbs=notes)
        with learner.no_logging():
            learner.fit(2, lr=1e-9)
        answers[f"{workers}"] = {"seen": notes.seen, "iterators": dict(delivered)}
    print(json.dumps(answers))  # noqa: T201


if __name__ == "__main__":
    main()
