"""Measurements of a sound dataset, for tests to change, and recorded measurements of `slow_datasets`."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from feedline.tools.measure.measured import Batch, Headroom, LoaderSetup, Making, Measured, Samples, Threads

MIB = 1 << 20
HEADROOM = Headroom(cores=8, memory_bytes=16 << 30)
SAMPLES = Samples(seconds=(1e-3,) * 200, cpu_share=1.0, sample_bytes=MIB)
BATCH = Batch(
    size=32, collate="default", is_custom=False, collate_s=1e-6, copy_s=1e-6, bytes=32 * MIB, carry_s=2e-6, sent_s=2e-6
)
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
        HEADROOM, Making("Mine", 100_000), samples=SAMPLES, batch=BATCH, threads=Threads({1: 1000.0, 2: 1990.0})
    )
    return replace(sound, **changes)


# -- recorded ----------------------------------------------------------------------------------------------------------

RECORDED = Path(__file__).parent / "recorded.json"
_MOST = 300
"""The most samples of a recording: enough for every check."""


def plain_facts(setup: Measured) -> dict[str, Any]:
    """Return measurements in a form for JSON, with only the first samples."""
    short = setup.samples and replace(
        setup.samples, seconds=setup.samples.seconds[:_MOST], lengths=setup.samples.lengths[:_MOST]
    )
    rounded: dict[str, Any] = _rounded(asdict(replace(setup, samples=short)))
    return rounded


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.3g}")
    if isinstance(value, dict):
        return {key: _rounded(held) for key, held in value.items()}
    return [_rounded(held) for held in value] if isinstance(value, (list, tuple)) else value


@functools.cache
def _recordings() -> dict[str, Any]:
    recordings: dict[str, Any] = json.loads(RECORDED.read_text())
    return recordings


def recorded(name: str) -> Measured:
    """Return what a probe measured of a dataset beside two busy loops."""
    setup: Measured = _made(Measured, _recordings()[name])
    return setup


def _made(kind: Any, value: Any) -> Any:
    """Turn values from JSON back into dataclasses."""
    if get_origin(kind) is UnionType:
        return None if value is None else _made(next(one for one in get_args(kind) if one is not type(None)), value)
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        names = [field.name for field in fields(kind) if field.name in value]
        return kind(**{name: _made(hints[name], value[name]) for name in names})
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        kinds = inner[:1] * len(value) if Ellipsis in inner else inner
        return tuple(_made(one, held) for one, held in zip(kinds, value, strict=True))
    if get_origin(kind) is dict:
        key_kind, value_kind = get_args(kind)
        return {key_kind(key): _made(value_kind, held) for key, held in value.items()}
    return value
