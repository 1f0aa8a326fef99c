"""Checksums of samples, alone or in a batch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.drill.datasets import NOISE

Digest = bytes


def digest_of(sample: Any, *, noise: bool = False) -> Digest:
    """Return a checksum of everything in a sample; random fields are included only if `noise`."""
    checksum = hashlib.blake2b(digest_size=8)
    _add(checksum.update, sample, noise)
    return checksum.digest()


def _add(update: Callable[[bytes], None], value: Any, noise: bool) -> None:
    if isinstance(value, dict):
        for key in sorted(value):
            if noise or key != NOISE:
                update(key.encode())
                _add(update, value[key], noise)
    elif isinstance(value, (list, tuple)):
        update(b"(")
        for part in value:
            _add(update, part, noise)
        update(b")")
    elif isinstance(value, str):
        update(value.encode())
    else:
        array = np.asarray(value)
        update(f"{array.dtype}{array.shape}".encode())
        update(array.tobytes())


def samples_of(batch: Any, template: Any) -> list[Any]:
    """Split a collated batch into samples. The template is any sample of the dataset."""
    return [_row(batch, template, place) for place in range(_length(batch, template))]


def _length(batch: Any, template: Any) -> int:
    if isinstance(template, dict):
        key = next(iter(template))
        return _length(batch[key], template[key])
    if isinstance(template, (list, tuple)):
        return _length(batch[0], template[0])
    return len(batch)


def _row(batch: Any, template: Any, place: int) -> Any:
    if isinstance(template, dict):
        return {key: _row(batch[key], part, place) for key, part in template.items()}
    if isinstance(template, (list, tuple)):
        return [_row(part, pattern, place) for part, pattern in zip(batch, template, strict=True)]
    return batch[place]
