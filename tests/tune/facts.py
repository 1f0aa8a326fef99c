"""What was measured of a dataset that has nothing, to be changed by tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from feedline.tune.measured import Batch, LoaderFacts, Making, Measured, Room, Samples, Threads

MIB = 1 << 20
ROOM = Room(cores=8, memory_bytes=16 << 30, shared_bytes=8 << 30, open_files=1024)
SAMPLES = Samples(seconds=(1e-3,) * 200, cpu_share=1.0, sample_bytes=MIB)
BATCH = Batch(
    size=32, collate="default", is_custom=False, collate_s=1e-6, copy_s=1e-6, bytes=32 * MIB, pickle_s=1e-2,
    pickle_bytes=32 * MIB, write_s=1e-6, as_arrays_s=0.0,
    arena_s=1e-3, object_bytes=100,
)  # fmt: skip
LOADER = LoaderFacts(
    "feedline", workers=8, engine="process", depth=2, batch_size=32, is_persistent=True, start_method="fork"
)


# Any: fields of whatever type.
def loader(**changes: Any) -> LoaderFacts:
    return replace(LOADER, **changes)


def samples(**changes: Any) -> Samples:
    return replace(SAMPLES, **changes)


def batch(**changes: Any) -> Batch:
    return replace(BATCH, **changes)


def measured(**changes: Any) -> Measured:
    sound = Measured(
        ROOM, Making("Mine", 100_000, make_s=0.1), samples=SAMPLES, batch=BATCH,
        threads=Threads({1: 1000.0, 2: 1990.0}), handover_s=0.0,
    )  # fmt: skip
    return replace(sound, **changes)
