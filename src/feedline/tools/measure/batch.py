"""Collates samples into a batch and sends it, to time both."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.framework import Framework
from feedline.collate import default, pad
from feedline.errors import NotPicklable
from feedline.frameworks.numpy import NumpyFramework
from feedline.memory.codec import Codec, SlotFull, SlotWriter, Views
from feedline.system.failures import words
from feedline.system.optional import is_tensor
from feedline.system.timing import Clock
from feedline.tools.measure.fields import LONG_LIST, as_array, leaves
from feedline.tools.measure.given_loader import carried_s
from feedline.tools.measure.measured import Batch, FloatField
from feedline.tools.measure.noise import usual_s
from feedline.types import CollateFunction

_SPARE_BYTES = 16 << 20
"""Buffer space for the parts of a batch that are not arrays."""
_FLOATS = 4096
"""Fields with fewer values are ignored."""
_CHECKED_SAMPLES = 8
"""Number of samples whose floats are checked."""
_DISTINCT = 16
"""Floats with at least this many distinct values are taken for pixels, not for flags or classes. A guess."""


# Any, throughout: the user's values and functions.
def try_batch(samples: list[Any], given: CollateFunction | None, clock: Clock, *, is_written: bool) -> Batch | None:
    """Collate the samples and send the batch; None if they cannot be collated.

    Args:
        samples: samples that are already made.
        given: the loader's collate function; None without a loader.
        clock: measures the times.
        is_written: True if a worker process writes the batch into shared memory.
    """
    is_custom = given is not None and not _is_default(given)
    collate, batch = _first_that_works([given] if is_custom and given is not None else _defaults(), samples)
    if collate is None:
        return None
    collate_s = usual_s(lambda: collate(samples), clock)
    arrays = [array for sample in samples for _, value in leaves(sample) if (array := as_array(value)) is not None]
    own: dict[str, Any] = {
        "size": len(samples),
        "collate": getattr(collate, "__qualname__", type(collate).__name__),
        "is_custom": is_custom,
        "collate_s": collate_s,
        "copy_s": _copy_s(arrays, clock),
        "bytes": sum(array.nbytes for _, value in leaves(batch) if (array := as_array(value)) is not None),
        "fields": len(list(leaves(samples[0]))),
    }
    try:
        whole = len(pickle.dumps(batch, 5))
        codec, buffer = Codec(_framework()), np.zeros(2 * whole + _SPARE_BYTES, np.uint8)
        sent_s = usual_s(lambda: codec.decode(codec.encode(batch, SlotWriter(buffer)), Views(buffer)), clock)
    except (NotPicklable, SlotFull, pickle.PicklingError, TypeError, AttributeError, RecursionError) as exc:
        return Batch(**own, carry_s=collate_s, not_picklable=words(exc))

    def carry_s(some: list[Any], function: CollateFunction) -> float | None:
        try:
            return carried_s(some, function) if is_written else usual_s(lambda: function(some), clock)
        except Exception:  # raised by the user's function, or because no process can be started
            return None

    def changed_s(change: Callable[[Any], object], name: str, function: CollateFunction) -> float | None:
        """Return the time to carry the samples with one field changed; None if that fails."""
        return carry_s([_changed(one, name, change) for one in samples], function)

    objects = {name: (value, len(pickle.dumps(value, 5))) for name, value in leaves(batch) if as_array(value) is None}
    largest = max(objects, key=lambda name: objects[name][1], default="")
    change, kind = _change(samples[0], largest)
    as_arrays_s = None if change is None else changed_s(change, largest, _defaults()[0])
    if change is not None and as_arrays_s is not None:  # the change itself takes the dataset time
        as_arrays_s += usual_s(lambda: [_changed(one, largest, change) for one in samples], clock)
    own["bytes"] += (object_bytes := sum(size for _, size in objects.values()))
    return Batch(
        **own,
        carry_s=carry_s(samples, collate) or collate_s + sent_s,
        sent_s=sent_s,
        object_bytes=object_bytes,
        objects=f"{largest} ({type(objects[largest][0]).__name__})" if largest else "",
        object_kind=kind,
        as_arrays_s=as_arrays_s,
        by_default_s=carry_s(samples, _defaults()[0]) if is_custom and _makes(samples, batch) else None,
        floats=tuple(
            replace(one, carry_s=changed_s(partial(_as_bytes, scale=255 if one.is_scaled else 1), one.name, collate))
            for one in _floats(samples, clock)
        ),
    )


def _defaults() -> list[CollateFunction]:
    """Return the functions that collate samples without a function of the user's own."""
    if "torch.utils.data" not in sys.modules:
        return [default, pad()]
    from feedline.frameworks.torch_collate import default_collate  # the program uses a DataLoader

    return [default_collate, pad()]


def _first_that_works(collates: list[CollateFunction], samples: list[Any]) -> tuple[CollateFunction | None, object]:
    for collate in collates:
        try:
            return collate, collate(samples)
        except Exception:  # raised by feedline, torch or the user's function: the loader reports it when used
            continue
    return None, None


def _is_default(collate: CollateFunction) -> bool:
    torch_data = sys.modules.get("torch.utils.data")
    is_torchs = torch_data is not None and collate in (torch_data.default_collate, torch_data.default_convert)
    return is_torchs or getattr(collate, "is_default", False)


def _makes(samples: list[Any], batch: object) -> bool:
    """True if the default function makes the same batch of these samples."""
    _, other = _first_that_works(_defaults()[:1], samples)
    fields, others = list(leaves(batch)), list(leaves(other))
    if type(batch) is not type(other) or len(fields) != len(others):
        return False
    for (name, one), (other_name, two) in zip(fields, others, strict=True):
        if name != other_name or type(one) is not type(two):
            return False
        array, alike = as_array(one), as_array(two)
        if array is None or alike is None:
            if one != two:
                return False
        elif array.dtype != alike.dtype or not np.array_equal(array, alike):
            return False
    return True


def _copy_s(arrays: list[NDArray[np.generic]], clock: Clock) -> float:
    """Return the time to copy arrays one after another into new memory, as every collate function must."""

    def copy() -> None:
        buffer = np.empty(sum(array.nbytes for array in arrays), np.uint8)
        place = 0
        for array in arrays:
            buffer[place : place + array.nbytes] = array.reshape(-1).view(np.uint8)
            place += array.nbytes

    return usual_s(copy, clock)


def _framework() -> Framework:
    if "torch" not in sys.modules:
        return NumpyFramework()
    from feedline.frameworks.torch import TorchFramework  # the program has imported torch

    return TorchFramework()


def _change(sample: object, field: str) -> tuple[Callable[[Any], object] | None, str]:
    """Return what makes an array or one text of a field that is a list, and its kind: "numbers" or "texts"."""
    value = dict(leaves(sample)).get(field)
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, str) for item in value):
        return "\0".join, "texts"
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, (int, float)) for item in value):
        return np.asarray, "numbers"
    return None, ""


def _changed(value: object, target: str, change: Callable[[Any], object], name: str = "") -> object:
    """Return a sample with one field changed; fields have the names that `leaves` gives them."""
    if isinstance(value, Mapping):
        return {
            key: _changed(held, target, change, f"{name}.{key}" if name else str(key)) for key, held in value.items()
        }
    if isinstance(value, (list, tuple)) and len(value) < LONG_LIST:
        return [_changed(held, target, change, f"{name or 'sample'}[{place}]") for place, held in enumerate(value)]
    return change(value) if (name or "sample") == target else value


def _floats(samples: list[Any], clock: Clock) -> Iterator[FloatField]:
    """Yield the fields of floats whose values fit into bytes."""
    fields: dict[str, list[Any]] = {}
    for sample in samples[:_CHECKED_SAMPLES]:
        for name, value in leaves(sample):
            array = as_array(value)
            if array is not None and array.dtype in (np.float32, np.float64) and array.size >= _FLOATS:
                fields.setdefault(name, []).append(value)
    for name, values in fields.items():
        for scale in (1, 255):
            small = [one for value in values if (one := _as_bytes(value, scale)) is not None]
            if len(small) < len(values) or len(np.unique(small[0])) < _DISTINCT:
                continue
            array = as_array(values[0])
            assert array is not None  # see above
            convert_s = usual_s(_conversion(small[0], values[0], scale), clock)
            yield FloatField(name, str(array.dtype), scale > 1, convert_s, array.nbytes)
            break


def _as_bytes(value: Any, scale: int) -> Any:
    """Return an array or tensor as bytes, or None if that would change its values."""
    array: Any = as_array(value)
    if array is None:
        return None
    scaled = array * scale
    rounded = np.rint(scaled)
    if not (np.isfinite(array).all() and rounded.min() >= 0 and rounded.max() <= 255):
        return None
    if np.abs(scaled - rounded).max() > 1e-3:
        return None
    small = rounded.astype(np.uint8)
    return sys.modules["torch"].from_numpy(small) if is_tensor(value) else small


def _conversion(small: Any, value: Any, scale: int) -> Callable[[], object]:
    """Return a function that converts bytes to floats, as the dataset presumably does."""
    if is_tensor(value):
        return (lambda: small.to(value.dtype) / scale) if scale > 1 else (lambda: small.to(value.dtype))
    dtype = value.dtype
    return (lambda: small.astype(dtype) / np.float32(scale)) if scale > 1 else (lambda: small.astype(dtype))
