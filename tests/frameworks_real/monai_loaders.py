"""MONAI's loaders, based on torch's loader or feedline's: reports their samples and iterators."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import torch

from tests.frameworks_real.bases import report_of, use_base

use_base(sys.argv[1])

import monai.utils  # noqa: E402
from monai.data import CacheDataset, DataLoader, Dataset, ThreadDataLoader  # noqa: E402
from monai.transforms import Compose, RandomizableTransform  # noqa: E402


class Moved(RandomizableTransform):  # type: ignore[misc]  # the package is not checked
    """Draws from its own generator, which the loader seeds in every worker."""

    def __call__(self, data: Any) -> Any:
        return data * 100 + self.R.randint(100)


def main() -> None:
    numbers = [torch.tensor(number) for number in range(7)]
    answers: dict[str, Any] = {}
    for workers in (0, 2):
        monai.utils.set_determinism(3)
        options: dict[str, Any] = {"batch_size": 2, "shuffle": True, "num_workers": workers}
        moved = Dataset(numbers, Compose([Moved()]))
        answers[f"plain {workers}"] = report_of(DataLoader(moved, **options), torch.Tensor.tolist)
        cached = CacheDataset(numbers, Compose([lambda number: number + 1]), progress=False)
        answers[f"cached {workers}"] = report_of(
            DataLoader(cached, **options, persistent_workers=workers > 0), torch.Tensor.tolist
        )
        answers[f"buffered {workers}"] = report_of(ThreadDataLoader(cached, **options, repeats=2), torch.Tensor.tolist)
    threads = ThreadDataLoader(
        Dataset(numbers, lambda number: (int(number), threading.current_thread() is threading.main_thread())),
        batch_size=2,
        num_workers=2,
        use_thread_workers=True,
        collate_fn=list,
    )
    answers["threads"] = report_of(threads, list)
    print(json.dumps(answers))  # noqa: T201


if __name__ == "__main__":
    main()
