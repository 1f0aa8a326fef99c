"""Datasets whose samples fail, hang, crash or do harm."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np


class Base:
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        return np.full(8, index / 3)


class Raising(Base):
    def __getitem__(self, index: int) -> Any:
        return self.look_up(index)

    def look_up(self, index: int) -> Any:
        raise KeyError(f"no sample {index}")


class Hanging(Base):
    def __getitem__(self, index: int) -> Any:
        return self.wait_for_ever()

    def wait_for_ever(self) -> Any:
        threading.Event().wait()


class Crashing(Base):
    def __getitem__(self, index: int) -> Any:
        return ctypes.string_at(8)


class Eating(Base):
    def __getitem__(self, index: int) -> Any:
        self.kept = [np.ones(1 << 20) for _ in range(1 << 20)]
        return self.kept


class Starting(Base):
    """Leaves a process behind that would run forever."""

    def __getitem__(self, index: int) -> Any:
        child = subprocess.Popen(["sleep", "1000"])
        sys.stderr.write(f"pid {child.pid}\n")
        threading.Event().wait()


class Forking(Base):
    """Forks a process that inherits all open files and never ends."""

    def __init__(self) -> None:
        if os.fork() == 0:
            time.sleep(1000)


class ForkingAndExiting(Forking):
    def __getitem__(self, index: int) -> Any:
        os._exit(9)


class Empty(Base):
    def __len__(self) -> int:
        return 0


class EmptyStream:
    def __iter__(self) -> Iterator[int]:
        return iter(())


class HangingToBeMade(Base):
    def __init__(self) -> None:
        threading.Event().wait()


class Plain(Base):
    pass


class Serious(Base):
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return self.rng.random(8)


number = 3
