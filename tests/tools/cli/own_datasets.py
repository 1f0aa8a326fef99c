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


class HangingInWorkers(Ready):
    def __getitem__(self, index: int) -> NDArray[np.float32]:
        if os.getpid() != MAIN_PID:
            sys.stderr.write(f"worker {os.getpid()}\n")
            threading.Event().wait()
        return super().__getitem__(index)
