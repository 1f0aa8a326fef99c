"""Collates samples into a batch and sends it, to time both: as they are, and as they could be."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.framework import Framework
from feedline.collate import default, pad
from feedline.delivery.config import DEFAULT_DEPTH
from feedline.errors import NotPicklable
from feedline.frameworks.numpy import NumpyFramework
from feedline.insight.stats import shown
from feedline.loader.base import LoaderBase, session_of
from feedline.loader.loader import Loader
from feedline.memory.codec import Codec, SlotFull, SlotWriter, Views
from feedline.system.failures import words
from feedline.system.optional import is_tensor
from feedline.system.process import scheduled_s
from feedline.system.sizes import bytes_text
from feedline.system.timing import Clock
from feedline.tools.measure.fields import LONG_LIST, as_array, field_in, leaves
from feedline.tools.measure.measured import Batch, Faster, FloatField
from feedline.tools.measure.noise import usual_s
from feedline.types import CollateFunction

_SPARE_BYTES = 16 << 20
"""Buffer space for the parts of a batch that are not arrays."""
_MANY_FIELDS = 16
"""With this many fields or more, the default collate function is slow because of them. Few fields cannot be collated
faster. A guess."""
_FLOATS = 4096
"""Fields with fewer values are ignored."""
_CHECKED_SAMPLES = 8
"""Number of samples whose floats are checked."""
_DISTINCT = 16
"""Floats with at least this many distinct values are taken for pixels, not for flags or classes. A guess."""
_CARRIED = 200
_CARRY_S = 0.25
"""How many batches of ready samples a worker makes to measure the time of one, and for how long at most."""
_CARRY_TIMEOUT_S = 30.0


# Any, throughout: the user's values and functions.
def try_batch(samples: list[Any], given: CollateFunction | None, clock: Clock, *, is_written: bool) -> Batch | None:
    """Collate the samples and send the batch; None if they cannot be collated.

    Args:
        samples: samples that are already made.
        given: the loader's collate function; None without a loader.
        clock: measures the times.
        is_written: True if a worker process writes the batch into shared memory.
    """
    own = given if given is not None and not _is_default(given) else None
    collate, batch = _first_that_works(_defaults() if own is None else [own], samples)
    if collate is None:
        return None
    arrays = _arrays_in(samples)
    collate_s, copy_s = (usual_s(call, clock) for call in (lambda: collate(samples), lambda: _block_of(arrays)))
    array_bytes = sum(array.nbytes for array in _arrays_in(batch))
    try:
        objects = {name: len(pickle.dumps(one, 5)) for name, one in leaves(batch) if as_array(one) is None}
        whole = len(pickle.dumps(batch, 5))
        codec, buffer = Codec(_framework()), np.zeros(2 * whole + _SPARE_BYTES, np.uint8)
        sent_s = usual_s(lambda: codec.decode(codec.encode(batch, SlotWriter(buffer)), Views(buffer)), clock)
    except (NotPicklable, SlotFull, pickle.PicklingError, TypeError, AttributeError, RecursionError) as exc:
        return Batch(len(samples), collate_s, copy_s, array_bytes, collate_s, not_picklable=words(exc))
    trial = _Trial(samples, collate, clock, is_written)
    carry_s, object_bytes = trial.carry_s(samples, collate) or collate_s + sent_s, sum(objects.values())
    faster = trial.faster(batch, objects if object_bytes > array_bytes else {}, is_own=own is not None)
    floats = tuple(trial.floats(carry_s))
    return Batch(
        len(samples), collate_s, copy_s, array_bytes + object_bytes, carry_s, sent_s, object_bytes, faster, floats
    )


@dataclass(frozen=True)
class _Trial:
    """Makes batches of changed samples, to time them."""

    samples: list[Any]
    collate: CollateFunction
    clock: Clock
    is_written: bool

    @property
    def name(self) -> str:
        """The name of the collate function."""
        return getattr(self.collate, "__qualname__", type(self.collate).__name__)

    def carry_s(self, samples: list[Any], collate: CollateFunction) -> float | None:
        """Return the time of a worker for a batch of these samples; None if that fails."""
        try:
            return _carried_s(samples, collate) if self.is_written else usual_s(lambda: collate(samples), self.clock)
        except Exception:  # raised by the user's function, or because no process can be started
            return None

    def changed(self, name: str, change: Callable[[Any], object]) -> list[Any]:
        """Return the samples with one field changed."""
        return [_changed(one, name, change) for one in self.samples]

    def faster(self, batch: object, objects: Mapping[str, int], *, is_own: bool) -> Faster | None:
        """Return what takes the time of a batch, and how to save it; None if nothing is known to.

        Args:
            batch: the batch of the samples.
            objects: the pickled sizes of its fields of objects, by name; empty if most of it are arrays.
            is_own: True for a collate function of the user's own.
        """
        by_default = self.by_default(batch) if is_own else None
        if by_default is not None:
            return by_default
        if objects:
            name = max(objects, key=objects.__getitem__)
            kind = type(dict(leaves(batch))[name]).__name__
            size = bytes_text(sum(objects.values()))
            return self.without(name, f"{size} of it are objects, which are pickled, the largest {name} ({kind})")
        if is_own:
            fix = "Stack arrays in one call (np.stack, torch.stack) instead of value by value."
            return Faster(f"{self.name} collates them", fix)
        if (count := len(list(leaves(self.samples[0])))) >= _MANY_FIELDS:
            fix = "Return fewer and larger fields: one array of many numbers instead of many fields of one."
            return Faster(f"Samples have {count} fields, which are collated one by one", fix)
        return None

    def by_default(self, batch: object) -> Faster | None:
        """Return the time of the default collate function, if that makes the same batch."""
        _, other = _first_that_works(_defaults()[:1], self.samples)
        then_s = self.carry_s(self.samples, _defaults()[0]) if _are_equal(batch, other) else None
        if then_s is None:
            return None
        return Faster(
            f"{self.name} makes the batch that the default makes in {shown(then_s)}",
            "Leave out collate_fn: the default makes the same batches.",
            "DataLoader(dataset)",
            then_s,
        )

    def without(self, name: str, cause: str) -> Faster:
        """Return the time of a batch of arrays, or of one text for each sample, instead of the objects in a field."""
        value, field = dict(leaves(self.samples[0])).get(name), field_in("sample", name)
        change: Callable[[Any], object]
        if isinstance(value, (list, tuple)) and value and all(isinstance(item, str) for item in value):
            change, fix = "\0".join, "Join the texts of a sample into one, and split it where the texts are used."
            code = f'{field} = "\\0".join({field})\n# in the training loop, for each text of the batch:\n'
            code += 'texts = text.split("\\0")'
        elif isinstance(value, (list, tuple)) and value and all(isinstance(item, (int, float)) for item in value):
            change, fix = np.asarray, "Return an array: it is written into shared memory as it is."
            code = f"{field} = np.asarray({field})"
        else:
            return Faster(cause, "Return arrays or tensors: they are written into shared memory as they are.")
        then_s = self.carry_s(self.changed(name, change), _defaults()[0])
        if then_s is not None:  # the change itself takes the dataset time
            then_s += usual_s(lambda: self.changed(name, change), self.clock)
        return Faster(cause, fix, code, then_s)

    def floats(self, carry_s: float) -> Iterator[FloatField]:
        """Yield the fields of floats whose values fit into bytes; `carry_s` is the time of a batch as it is."""
        fields: dict[str, list[Any]] = {}
        for sample in self.samples[:_CHECKED_SAMPLES]:
            for name, value in leaves(sample):
                array = as_array(value)
                if array is not None and array.dtype in (np.float32, np.float64) and array.size >= _FLOATS:
                    fields.setdefault(name, []).append(value)
        for name, values in fields.items():
            for scale in (1, 255):
                small = [one for value in values if (one := _as_bytes(value, scale)) is not None]
                if len(small) < len(values) or len(np.unique(small[0])) < _DISTINCT:
                    continue
                array = np.asarray(as_array(values[0]))
                then_s = self.carry_s(self.changed(name, partial(_as_bytes, scale=scale)), self.collate)
                convert_s = usual_s(partial(_as_floats, small[0], values[0], scale), self.clock)
                carried_s = 0.0 if then_s is None else max(0.0, carry_s - then_s) / len(self.samples)
                yield FloatField(name, str(array.dtype), scale > 1, array.nbytes, convert_s, carried_s)
                break


@dataclass(frozen=True)
class _Ready:
    """A dataset whose samples are already made."""

    samples: list[object]

    def __len__(self) -> int:
        return 2 * _CARRIED * len(self.samples)

    def __getitem__(self, index: int) -> object:
        return self.samples[index % len(self.samples)]


def _carried_s(samples: list[object], collate: CollateFunction) -> float:
    """Return the CPU time that a worker process needs for a batch whose samples are already made.

    Raises any exception of the collate function or of the system.
    """
    ready, size, depth = _Ready(samples), len(samples), DEFAULT_DEPTH + 1  # more than the default: one task at a time
    loader: LoaderBase
    if "torch" in sys.modules:
        from feedline.loader.torch import DataLoader  # the program has imported torch

        loader = DataLoader(
            ready, size, collate_fn=collate, num_workers=1, prefetch_factor=depth, timeout=_CARRY_TIMEOUT_S
        )
    else:
        loader = Loader(ready, size, collate_fn=collate, workers=1, prefetch=depth, timeout_s=_CARRY_TIMEOUT_S)
    with loader:
        batches = iter(loader)
        next(batches)
        (pid,) = session_of(loader).resources.worker_pids
        before_s, until_s, count = scheduled_s(pid)[0], time.monotonic() + _CARRY_S, 0
        for _ in islice(batches, _CARRIED):
            count += 1
            if time.monotonic() > until_s:
                break
        return (scheduled_s(pid)[0] - before_s) / count


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


def _are_equal(batch: object, other: object) -> bool:
    """True if two batches have the same fields, types and values."""
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


def _arrays_in(value: object) -> list[NDArray[np.generic]]:
    return [array for _, one in leaves(value) if (array := as_array(one)) is not None]


def _block_of(arrays: list[NDArray[np.generic]]) -> NDArray[np.uint8]:
    """Copy arrays one after another into new memory, as every collate function must."""
    return np.concatenate([np.empty(0, np.uint8), *(array.reshape(-1).view(np.uint8) for array in arrays)])


def _framework() -> Framework:
    if "torch" not in sys.modules:
        return NumpyFramework()
    from feedline.frameworks.torch import TorchFramework  # the program has imported torch

    return TorchFramework()


def _changed(value: object, target: str, change: Callable[[Any], object], name: str = "") -> object:
    """Return a sample with one field changed; fields have the names that `leaves` gives them."""
    if isinstance(value, Mapping):
        return {
            key: _changed(held, target, change, f"{name}.{key}" if name else str(key)) for key, held in value.items()
        }
    if isinstance(value, (list, tuple)) and len(value) < LONG_LIST:
        return [_changed(held, target, change, f"{name or 'sample'}[{place}]") for place, held in enumerate(value)]
    return change(value) if (name or "sample") == target else value


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


def _as_floats(small: Any, value: Any, scale: int) -> object:
    """Convert bytes to floats like `value`, as the dataset presumably does."""
    floats = small.to(value.dtype) if is_tensor(value) else small.astype(value.dtype)
    return floats / scale if scale > 1 else floats
