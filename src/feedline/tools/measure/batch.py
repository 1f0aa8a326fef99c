"""Collates samples into a batch and sends it, to time both."""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
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
from feedline.tools.measure.measured import Batch, FloatField, OtherCollate, field_in
from feedline.tools.measure.noise import usual_s
from feedline.tools.measure.samples import LONG_LIST, as_array, leaves
from feedline.types import CollateFunction, JsonObject

_SPARE_BYTES = 16 << 20
"""Buffer space for the parts of a batch that are not arrays."""
_FLOATS = 4096
"""Fields with fewer values are ignored."""
_CHECKED_SAMPLES = 8
"""Number of samples whose floats are checked."""
_DISTINCT = 16
"""Floats with at least this many distinct values are taken for pixels, not for flags or classes. A guess."""


# Any, throughout: the user's values and functions.
def collates_for(given: CollateFunction | None) -> list[CollateFunction]:
    """Return the collate functions to try: the loader's own, or the defaults."""
    if given is not None:
        return [given]
    torch_data = sys.modules.get("torch.utils.data")  # a program that has imported it uses a DataLoader
    return [default if torch_data is None else torch_data.default_collate, pad()]


def try_batch(samples: list[object], given: CollateFunction | None, clock: Clock) -> Batch | None:
    """Collate the samples and send the batch; None if they cannot be collated."""
    collate, batch = _first_that_works(collates_for(given), samples)
    if collate is None:
        return None
    arrays = [array for sample in samples for _, value in leaves(sample) if (array := as_array(value)) is not None]
    size = sum(array.nbytes for _, value in leaves(batch) if (array := as_array(value)) is not None)
    is_custom = given is not None and not _is_default(given)
    made = functools.partial(
        Batch,
        size=len(samples),
        collate=getattr(collate, "__qualname__", type(collate).__name__),
        is_custom=is_custom,
        collate_s=usual_s(lambda: collate(samples), clock),
        copy_s=_copy_s(arrays, clock),
        fields=len(list(leaves(samples[0]))),
        other=_other_collate(samples, batch, clock) if is_custom else None,
    )
    try:
        return made(**_sent(batch, samples, size, clock), floats=tuple(_floats(samples, clock)))
    except (NotPicklable, SlotFull, pickle.PicklingError, TypeError, AttributeError, RecursionError) as exc:
        return made(
            pickle_s=0, pickle_bytes=0, write_s=0, as_arrays_s=0, arena_s=0, object_bytes=0, bytes=size,
            not_picklable=words(exc),
        )  # fmt: skip


def collate_for(samples: list[object], given: CollateFunction | None) -> CollateFunction | None:
    """Return the collate function that a loader needs for these samples; None if the default works, or nothing does."""
    collate, _ = _first_that_works(collates_for(given), samples)
    return None if collate is None or _is_default(collate) else collate


Carry = Callable[[list[object], CollateFunction | None], float | None]
"""Returns the time that a loader needs for a batch of samples that are already made, with a collate function."""


def with_carries(
    batch: Batch, samples: list[object], collate: CollateFunction | None, carry: Carry, clock: Clock
) -> Batch:
    """Add the times that the batch would take with the changes that findings suggest."""
    floats = tuple(
        replace(field, carry_s=carry([_changed(one, field.name, _fitting(field)) for one in samples], collate))
        for field in batch.floats
    )
    objects, other = None, batch.other
    if batch.object_kind:
        change = np.asarray if batch.object_kind == "numbers" else "\0".join
        name = batch.objects.partition(" ")[0]
        changed = [_changed(one, name, change) for one in samples]
        # Making the change takes time for each sample of the batch, too.
        change_s = usual_s(lambda: [_changed(one, name, change) for one in samples], clock)
        objects = None if (carried := carry(changed, collate)) is None else carried + change_s
    if other is not None:
        names: dict[str, Any] = {"np": np, "torch": sys.modules.get("torch"), "collate": None}
        exec(other.code, names)  # made by `_stacking`
        other = replace(other, carry_s=carry(samples, names["collate"]))
    return replace(batch, floats=floats, object_carry_s=objects, other=other)


def _fitting(field: FloatField) -> Callable[[object], object]:
    def change(value: object) -> object:
        array = as_array(value)
        small = None if array is None else _as_bytes(array, 255 if field.is_scaled else 1)
        return small if small is None or not is_tensor(value) else sys.modules["torch"].from_numpy(small)

    return change


def _changed(value: object, target: str, change: Callable[[Any], object], name: str = "") -> object:
    """Return a sample with one field changed; fields have the names that `leaves` gives them."""
    if isinstance(value, Mapping):
        return {
            key: _changed(held, target, change, f"{name}.{key}" if name else str(key)) for key, held in value.items()
        }
    if isinstance(value, (list, tuple)) and len(value) < LONG_LIST:
        return [_changed(held, target, change, f"{name or 'sample'}[{place}]") for place, held in enumerate(value)]
    return change(value) if (name or "sample") == target else value


def _first_that_works(collates: list[CollateFunction], samples: list[object]) -> tuple[CollateFunction | None, object]:
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


def _other_collate(samples: list[object], batch: object, clock: Clock) -> OtherCollate | None:
    """Look for a faster way to make the same batch: the default, or stacking each field in one call."""
    for code, collate in [("", collates_for(None)[0]), *_stacking(samples, batch)]:
        try:
            is_same = _is_same(collate(samples), batch)
        except Exception:  # it does not support these samples
            continue
        if is_same:
            return OtherCollate(code, usual_s(functools.partial(collate, samples), clock))
    return None


def _is_same(first: object, second: object) -> bool:
    """True if two batches have the same fields with the same values."""
    pairs = list(zip(leaves(first), leaves(second), strict=False))
    if type(first) is not type(second) or len(list(leaves(first))) != len(list(leaves(second))):
        return False
    for (name, one), (other_name, other) in pairs:
        if name != other_name or type(one) is not type(other):
            return False
        one, other = (value if (array := as_array(value)) is None else array for value in (one, other))
        if isinstance(one, np.ndarray) and (one.dtype != other.dtype or one.shape != other.shape):
            return False
        if not np.array_equal(one, other):
            return False
    return True


def _stacking(samples: list[object], batch: object) -> Iterator[tuple[str, CollateFunction]]:
    """Yield a collate function, after its code, that stacks fields of the samples; nothing if none makes this batch."""
    sources: dict[str, tuple[str, str]] = {}
    for target, value in leaves(batch):
        array = as_array(value)
        if array is None:
            return
        for name, one in leaves(samples[0]):
            if (part := as_array(one)) is None or (len(samples), *part.shape) != array.shape:
                continue
            changed = "" if part.dtype == array.dtype else str(array.dtype)
            if np.array_equal(part.astype(array.dtype), array[0]):
                sources[target] = name, changed
                break
        else:
            return
    module, convert = ("torch", "to(torch.{})") if any(is_tensor(value) for _, value in leaves(batch)) else (
        "np", "astype(np.{})"
    )  # fmt: skip

    def stacked(target: str) -> str:
        name, changed = sources[target]
        call = f"{module}.stack([{field_in('sample', name)} for sample in samples])"
        return call if not changed else f"{call}.{convert.format(changed)}"

    if isinstance(batch, dict):
        made = "{" + ", ".join(f'"{target}": {stacked(target)}' for target in sources) + "}"
    elif isinstance(batch, (list, tuple)):
        made = ", ".join(map(stacked, sources))
        made = f"[{made}]" if isinstance(batch, list) else f"({made},)"
    else:
        made = stacked("sample")
    code = f"def collate(samples):\n    return {made}"
    names: dict[str, Any] = {"np": np, "torch": sys.modules.get("torch")}
    exec(code, names)  # built above from the names of fields
    yield code, names["collate"]


def _copy_s(arrays: list[NDArray[np.generic]], clock: Clock) -> float:
    """Return the time to copy arrays one after another into new memory, as every collate function must."""

    def copy() -> None:
        buffer = np.empty(sum(array.nbytes for array in arrays), np.uint8)
        place = 0
        for array in arrays:
            buffer[place : place + array.nbytes] = array.reshape(-1).view(np.uint8)
            place += array.nbytes

    return usual_s(copy, clock)


def _sent(batch: object, samples: list[object], size: int, clock: Clock) -> JsonObject:
    """Send a batch as a pickle and through shared memory; return sizes and times, as fields of `Batch`."""
    whole = pickle.dumps(batch, 5)
    objects = {name: (len(pickle.dumps(value, 5)), type(value).__name__) for name, value in _objects(batch)}
    object_bytes = sum(count for count, _ in objects.values())
    largest = max(objects, key=objects.__getitem__, default=None)
    codec = Codec(_framework())
    buffer = np.zeros(2 * len(whole) + _SPARE_BYTES, np.uint8)

    def write() -> bytes:
        return codec.encode(batch, SlotWriter(buffer))

    return {
        "bytes": size + object_bytes,
        "pickle_s": usual_s(lambda: pickle.loads(pickle.dumps(batch, 5)), clock),
        "pickle_bytes": len(whole),
        "write_s": usual_s(write, clock),
        "as_arrays_s": _as_arrays_s(object_bytes, len(samples), clock),
        "arena_s": usual_s(lambda: codec.decode(write(), Views(buffer)), clock),
        "object_bytes": object_bytes,
        "objects": "" if largest is None else f"{largest} ({objects[largest][1]})",
        "object_kind": "" if largest is None else _kind(samples[0], largest),
    }


def _kind(sample: object, field: str) -> str:
    """Return "numbers" or "texts" if a field of a sample is a list of these; empty for anything else."""
    value = next((value for name, value in leaves(sample) if name == field), None)
    if not isinstance(value, (list, tuple)) or not value:
        return ""
    if all(isinstance(item, str) for item in value):
        return "texts"
    return "numbers" if all(isinstance(item, (int, float)) for item in value) else ""


def _as_arrays_s(size: int, samples: int, clock: Clock) -> float:
    """Return the time to collate `size` bytes if each sample holds its part of them in an array."""
    arrays = [{"values": np.zeros(size // samples + 1, np.uint8)} for _ in range(samples)]
    collate = collates_for(None)[0]
    return usual_s(lambda: collate(arrays), clock)


def _objects(batch: object) -> Iterator[tuple[str, object]]:
    """Yield the fields of a batch that are not arrays."""
    return ((name, value) for name, value in leaves(batch) if as_array(value) is None)


def _framework() -> Framework:
    if "torch" not in sys.modules:
        return NumpyFramework()
    from feedline.frameworks.torch import TorchFramework  # the program has imported torch

    return TorchFramework()


def _floats(samples: list[object], clock: Clock) -> Iterator[FloatField]:
    """Yield the fields of floats whose values fit into bytes."""
    fields: dict[str, list[NDArray[np.generic]]] = {}
    tensors: set[str] = set()
    for sample in samples[:_CHECKED_SAMPLES]:
        for name, value in leaves(sample):
            array = as_array(value)
            if array is not None and array.dtype in (np.float32, np.float64) and array.size >= _FLOATS:
                fields.setdefault(name, []).append(array)
                tensors.update([name] if is_tensor(value) else [])
    for name, arrays in fields.items():
        for scale in (1, 255):
            small = [_as_bytes(array, scale) for array in arrays]
            fitting = [array for array in small if array is not None]
            if len(fitting) == len(arrays) and len(np.unique(fitting[0])) >= _DISTINCT:
                convert = _conversion(fitting[0], arrays[0].dtype, scale, is_torchs=name in tensors)
                convert_s = usual_s(convert, clock)
                yield FloatField(name, str(arrays[0].dtype), scale > 1, convert_s, arrays[0].nbytes)
                break


def _conversion(
    array: NDArray[np.uint8], dtype: np.dtype[np.generic], scale: int, *, is_torchs: bool
) -> Callable[[], object]:
    """Return a function that converts bytes to floats, as the dataset presumably does."""
    if is_torchs:
        torch = sys.modules["torch"]
        tensor, kind = torch.from_numpy(array), torch.from_numpy(np.zeros(0, dtype)).dtype
        return (lambda: tensor.to(kind) / scale) if scale > 1 else (lambda: tensor.to(kind))
    return (lambda: array.astype(dtype) / np.float32(scale)) if scale > 1 else (lambda: array.astype(dtype))


def _as_bytes(array: NDArray[Any], scale: int) -> NDArray[np.uint8] | None:
    """Return an array as bytes, or None if that would change its values."""
    scaled = array * scale
    rounded = np.rint(scaled)
    if not (np.isfinite(array).all() and rounded.min() >= 0 and rounded.max() <= 255):
        return None
    is_same = np.abs(scaled - rounded).max() <= 1e-3
    return rounded.astype(np.uint8) if is_same else None
