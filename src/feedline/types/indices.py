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
"""What nobody changes after it was yielded; feedline's own plans make a new `IndexBlock` every time."""


# Any, here and below: whatever a sampler yields.
def taken(index: Any) -> Any:
    """Return what a sampler has yielded, as it is now: lists, dicts, sets, arrays and tensors are copied, all the way.

    An object that can be hashed stays the same object, since a dataset may look it up; so does one that cannot be
    copied.

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
    if hasattr(kind, "clone") and hasattr(kind, "ndim"):  # a tensor, which can be hashed, by its id
        return index.clone()
    hashing: Any = kind.__hash__  # typed as a method, it could not be None
    return _copied(index) if hashing is None else index


def taken_each(indices: Iterable[Any]) -> list[Any]:
    """Return a list of what a sampler yields, each as it is at that moment."""
    return [index if type(index) in _VALUES else taken(index) for index in indices]


def _copied(index: Any) -> Any:
    try:
        return copy.deepcopy(index)
    except Exception:  # of the user's class: one that cannot be copied can still be used, unless it is changed
        return index


# Any: whatever the sampler yields; a plain value.
def plain_index(index: Any) -> Any:
    """Return an index as a plain value, which is the same in every process and after every way of saving it.

    - None, numbers, strings and bytes stay as they are.
    - Numbers of NumPy, torch and the like become Python's; their arrays become lists.
    - Tuples and lists stay what they are, of plain values.
    - Anything else becomes its repr. An object without a repr of its own becomes the name of its class and its fields,
      because the address in the default one is another in each process. NaN and infinity count as anything else.

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
        return str.__str__(index)  # the str() of an enum is not the string that it stands for
    if isinstance(index, (int, bytes)):
        return int(index) if isinstance(index, int) else bytes(index)
    if isinstance(index, float):
        return float(index) if math.isfinite(index) else repr(float(index))
    dimensions = getattr(index, "ndim", None)
    if dimensions == 0 and hasattr(index, "item"):
        value = index.item()
        # Not every scalar has a counterpart in Python: that of a long double is a long double.
        return plain_index(value) if type(value) in (int, str, bool, bytes, float) else _repr_of(index)
    if dimensions and hasattr(index, "tolist"):
        return plain_index(index.tolist())  # the repr of a large array leaves out most of it
    return _repr_of(index)


# Any: whatever the sampler yields.
def index_key(index: Any) -> Hashable:
    """Return what an index is recognised by: equal for an index and all that became of it on its way.

    Example:
        >>> import numpy as np
        >>> index_key(np.int64(3)) == index_key(3)
        True
        >>> index_key([1, 2])
        '[1, 2]'
    """
    if type(index) is int:  # nearly always; asked of every sample while there is a quarantine
        return index
    plain: Hashable = plain_index(index)
    try:
        hash(plain)
    except TypeError:
        return repr(plain)
    return plain


# Any: a plain index; the same in values that JSON keeps.
def pack_index(index: Any) -> Any:
    """Return an index in values that JSON keeps; tuples and bytes, which it does not know, get a mark.

    Example:
        >>> pack_index((3, "cat"))
        {'tuple': [3, 'cat']}
    """
    return _pack(plain_index(index))


# Any: what `pack_index` made, or damage; a plain index.
def unpack_index(packed: Any) -> Any:
    """Return the plain index that `pack_index` packed.

    Raises:
        BadState: it is something else.

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
                raise BadState(f"The state is damaged: {packed!r:.200} is no index of a sample: {words(exc)}.") from exc
    raise BadState(f"The state is damaged: {packed!r:.200} is no index of a sample.")


def _pack(plain: Any) -> Any:
    if isinstance(plain, tuple):
        return {"tuple": [_pack(element) for element in plain]}
    if isinstance(plain, list):
        return [_pack(element) for element in plain]
    if isinstance(plain, bytes):
        return {"bytes": plain.hex()}
    return plain


def _repr_of(value: Any) -> str:
    show: Any = type(value).__repr__  # typed as a method, it could not be the function that it is
    if show is object.__repr__ and hasattr(value, "__dict__"):
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        return f"{name}({', '.join(f'{field}={content!r}' for field, content in vars(value).items())})"
    try:
        return repr(value)
    except Exception:  # a user's repr; what failed before it is what has to be reported
        return object.__repr__(value)
