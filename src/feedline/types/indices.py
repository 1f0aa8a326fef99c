"""The index of a sample as a plain value: the same in every process, however it was saved.

A sampler may yield anything: NumPy numbers, tuples, objects. Code that keeps an index or looks it up later needs it in
a form that does not depend on its history. A sampler may also reuse the object it yielded while the loader still needs
it, so the loader takes indices by value (`taken`).
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from feedline.errors import BadState
from feedline.system.failures import words
from feedline.types import IndexBlock

_VALUES = frozenset(
    {int, str, bytes, bool, float, complex, type(None), range, IndexBlock}
    | {kind for kind in np.sctypeDict.values() if kind not in (np.void, np.object_)}
)
"""Types that do not change after being yielded; feedline's own plans make a new `IndexBlock` every time."""


# Any, here and below: anything a sampler yields.
def taken(index: Any) -> object:
    """Return a snapshot of what a sampler yielded: lists, dicts, sets, arrays and tensors are copied, recursively.

    A hashable object stays the same object, since a dataset may look it up; so does one that cannot be copied.

    Example:
        >>> batch = [1, [2, 3]]
        >>> kept = taken(batch)
        >>> batch[1][0] = 9
        >>> kept
        [1, [2, 3]]
    """
    kind = type(index)
    if kind in _VALUES:
        return index
    if kind is list:
        return index.copy() if _VALUES.issuperset(map(type, index)) else taken_each(index)
    if isinstance(index, tuple):
        if _VALUES.issuperset(map(type, index)):
            return index
        elements = taken_each(index)
        if all(map(operator.is_, elements, index)):
            return index
        return tuple(elements) if kind is tuple else _copied(index)
    if kind is dict:
        return {key: taken(value) for key, value in index.items()}
    if kind is np.ndarray and not index.dtype.hasobject:
        return index.copy()
    if hasattr(kind, "clone") and hasattr(kind, "ndim"):  # a tensor, which is hashable by its id
        return index.clone()
    hashing: object = kind.__hash__  # typed as a method, it could not be None
    return _copied(index) if hashing is None else index


def taken_each(indices: Iterable[object]) -> list[Any]:
    """Return a list of what a sampler yields, each item copied by `taken` at that moment."""
    return [index if type(index) in _VALUES else taken(index) for index in indices]


def _copied(index: object) -> object:
    try:
        return copy.deepcopy(index)
    except Exception:  # the user's class: an object that cannot be copied is still usable unless it changes
        return index


# Any: anything the sampler yields; a plain value.
def plain_index(index: object) -> Any:
    """Return an index as a plain value, which is the same in every process and however it was saved.

    - None, numbers, strings and bytes are unchanged.
    - Numbers of NumPy, torch and similar libraries become Python's; their arrays become lists.
    - Tuples and lists keep their type, with plain values inside.
    - Anything else becomes its repr. An object without its own repr becomes the name of its class and its fields,
      because the address in the default repr differs between processes. NaN and infinity also become their repr.

    Example:
        >>> import numpy as np
        >>> plain_index((np.int64(3), "cat", np.arange(2)))
        (3, 'cat', [0, 1])
        >>> plain_index(slice(2, 5))
        'slice(2, 5, None)'
    """
    kind = type(index)
    if index is None or kind in (int, str, bool, bytes):
        return index
    if isinstance(index, tuple):
        return tuple(map(plain_index, index))
    if isinstance(index, list):
        return [plain_index(element) for element in index]
    if isinstance(index, str):
        return str.__str__(index)  # the str() of an enum is not its string value
    if isinstance(index, (int, bytes)):
        return int(index) if isinstance(index, int) else bytes(index)
    if isinstance(index, float):
        return float(index) if math.isfinite(index) else repr(float(index))
    dimensions = getattr(index, "ndim", None)
    if dimensions == 0 and hasattr(index, "item"):
        value = index.item()
        # Not every scalar has a Python counterpart: `item()` of a long double is a long double.
        return plain_index(value) if type(value) in (int, str, bool, bytes, float) else _repr_of(index)
    if dimensions and hasattr(index, "tolist"):
        return plain_index(index.tolist())  # the repr of a large array omits most of it
    return _repr_of(index)


def index_key(index: object) -> Hashable:
    """Return a key that identifies an index: equal for an index and every form it took on its way.

    Example:
        >>> import numpy as np
        >>> index_key(np.int64(3)) == index_key(3)
        True
        >>> index_key([1, 2])
        '[1, 2]'
    """
    if type(index) is int:  # nearly always; called for every sample while there is a quarantine
        return index
    plain: Hashable = plain_index(index)
    try:
        hash(plain)
    except TypeError:
        return repr(plain)
    return plain


# object: a plain index; the same in values that JSON keeps.
def pack_index(index: object) -> object:
    """Return an index in values that JSON supports; tuples and bytes, which it does not, get a tag.

    Example:
        >>> pack_index((3, "cat"))
        {'tuple': [3, 'cat']}
    """
    return _pack(plain_index(index))


def unpack_index(packed: object) -> object:
    """Return the plain index that `pack_index` packed.

    Raises:
        BadState: it is not a packed index.

    Example:
        >>> unpack_index({"tuple": [3, "cat"]})
        (3, 'cat')
    """
    if packed is None or isinstance(packed, (bool, int, float, str)):
        return packed
    if isinstance(packed, list):
        return [unpack_index(element) for element in packed]
    match packed:
        case {"tuple": list(elements), **rest} if not rest:
            return tuple(map(unpack_index, elements))
        case {"bytes": str(text), **rest} if not rest:
            try:
                return bytes.fromhex(text)
            except ValueError as exc:
                raise BadState(f"The state is damaged: {packed!r:.200} is not a sample index: {words(exc)}.") from exc
    raise BadState(f"The state is damaged: {packed!r:.200} is not a sample index.")


def _pack(plain: object) -> object:
    if isinstance(plain, tuple):
        return {"tuple": [_pack(element) for element in plain]}
    if isinstance(plain, list):
        return [_pack(element) for element in plain]
    if isinstance(plain, bytes):
        return {"bytes": plain.hex()}
    return plain


def _repr_of(value: object) -> str:
    show: object = type(value).__repr__  # typed as a method, it could not be the function that it is
    if show is object.__repr__ and hasattr(value, "__dict__"):
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        return f"{name}({', '.join(f'{field}={content!r}' for field, content in vars(value).items())})"
    try:
        return repr(value)
    except Exception:  # a user's repr; report the original failure, not this one
        return object.__repr__(value)
