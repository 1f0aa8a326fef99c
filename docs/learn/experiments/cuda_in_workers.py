"""What happens when a dataset uses CUDA inside worker processes? Needs an NVIDIA GPU.

The training process has used CUDA. One worker then makes its samples on the GPU, once started by fork and once by
spawn, with torch's loader and with feedline's. Shown is the exception or the batch, and how much memory the device
has lost to the worker. Besides, a dataset holds a tensor on the GPU and is forked.

    python docs/learn/experiments/cuda_in_workers.py
"""

# ruff: noqa: D103, T201 (a script that prints)

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.utils.data

import feedline

LOADERS = (torch.utils.data.DataLoader, feedline.DataLoader)


class OnDevice(torch.utils.data.Dataset):
    """Makes samples on the GPU, and returns them on the CPU."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return (torch.ones(4, device="cuda") * index).cpu()


class HoldsDevice(torch.utils.data.Dataset):
    """Keeps its data on the GPU, and reads it there."""

    def __init__(self) -> None:
        self.data = torch.arange(8, device="cuda")

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return int(self.data[index].item())


def outcome(loader_class: Any, dataset: Any, method: str) -> str:
    free = torch.cuda.mem_get_info()[0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            batches = iter(loader_class(dataset, 4, num_workers=1, multiprocessing_context=method, timeout=60))
            batch = next(batches)
            taken = (free - torch.cuda.mem_get_info()[0]) / 1e6
            text = f"batch of {tuple(batch.shape)}; the worker takes {taken:.0f} MB of the GPU"
        except Exception as error:
            text = f"{type(error).__name__}: {str(error).splitlines()[-1][:160]}"
    return "\n        ".join([text, *(f"{one.category.__name__}: {str(one.message)[:200]}" for one in caught)])


if __name__ == "__main__":
    print(torch.__version__, torch.cuda.get_device_name())
    torch.ones(1, device="cuda")
    for dataset, method in (
        (OnDevice(), "fork"),
        (OnDevice(), "spawn"),
        (HoldsDevice(), "fork"),
        (HoldsDevice(), "spawn"),
    ):
        for loader_class in LOADERS:
            name = loader_class.__module__.split(".")[0]
            print(
                f"{type(dataset).__name__}, {method}, {name}\n        {outcome(loader_class, dataset, method)}",
                flush=True,
            )
