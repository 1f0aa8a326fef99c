"""Datasets for `feedline bench` and `feedline tune`."""

from __future__ import annotations

import os
import sys
import threading
import time

import numpy as np
from numpy.typing import NDArray

MAIN_PID = os.getpid()


class Sleeping:
    """Sleeps for each sample, as if it came over a network."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        time.sleep(2e-3)
        return np.full(16, index, np.float32)


class Ready(Sleeping):
    """Returns samples at once."""

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        return np.full(16, index, np.float32)


class Computing(Sleeping):
    """Computes for about a millisecond per sample, and holds the interpreter for most of it."""

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        return np.full(16, sum(range(40_000)) + index, np.float32)


class Large(Sleeping):
    """Returns samples of 600 KB."""

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        return np.full((3, 224, 224), index, np.float32)


class HangingInWorkers(Ready):
    def __getitem__(self, index: int) -> NDArray[np.float32]:
        if os.getpid() != MAIN_PID:
            sys.stderr.write(f"worker {os.getpid()}\n")
            threading.Event().wait()
        return super().__getitem__(index)


class RaisingInWorkers(Ready):
    def __getitem__(self, index: int) -> NDArray[np.float32]:
        if os.getpid() != MAIN_PID:
            raise OSError("the file is locked")
        return super().__getitem__(index)
