"""Measurements of a sound dataset, for tests to change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from feedline.tools.measure.measured import Batch, Headroom, LoaderSetup, Making, Measured, Samples, Threads

MIB = 1 << 20
HEADROOM = Headroom(cores=8, memory_bytes=16 << 30)
SAMPLES = Samples(seconds=(1e-3,) * 200, cpu_share=1.0, sample_bytes=MIB)
BATCH = Batch(size=32, collate_s=1e-6, copy_s=1e-6, bytes=32 * MIB, carry_s=2e-6, sent_s=2e-6)
LOADER = LoaderSetup(workers=8, engine="process", depth=2, batch_size=32, is_persistent=True)


# Any: fields of every type.
def loader(**changes: Any) -> LoaderSetup:
    return replace(LOADER, **changes)


def samples(**changes: Any) -> Samples:
    return replace(SAMPLES, **changes)


def batch(**changes: Any) -> Batch:
    return replace(BATCH, **changes)


def measured(**changes: Any) -> Measured:
    sound = Measured(
        HEADROOM, Making("Mine", 100_000), samples=SAMPLES, batch=BATCH, threads=Threads({1: 1000.0, 2: 1990.0}, 1.99)
    )
    return replace(sound, **changes)
