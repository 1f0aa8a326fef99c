"""What an object consists of, as pickle sees it: the result of `__reduce_ex__`, with what is in it."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from feedline.engines.handles import attributes, item_of
from feedline.engines.unpicklable.kinds import ndarray_of
from feedline.engines.unpicklable.trial import Reducers


@dataclass(frozen=True)
class Parts:
    """Some of an object's parts, in the order in which pickle visits them."""

    items: list[Any]
    path_of: Callable[[int], str]
    are_classes: bool = False
    """True if the only item is the class of the object, whose path it has."""


def parts_of(path: str, value: Any, reducers: Reducers) -> Iterator[Parts]:
    """Yield what pickle would visit in an object; nothing if it has no parts, or refuses to name them."""
    kind = type(value)
    if kind is list or kind is tuple:
        yield Parts(list(value), lambda place: f"{path}[{place}]")
    elif kind is set or kind is frozenset:
        yield Parts(list(value), lambda place: f"list({path})[{place}]")
    elif kind is dict:
        yield from _entries(path, list(value.items()))
    elif kind is FunctionType or issubclass(kind, type):
        return  # these go by name
    elif ndarray_of(kind) is not None and value.dtype.hasobject:
        where = path if value.ndim == 1 else f"{path}.flat"
        yield Parts(list(value.flat), lambda place: f"{where}[{place}]")
    else:
        yield from _reduced_parts(path, value, reducers)


def _entries(path: str, entries: list[tuple[Any, Any]]) -> Iterator[Parts]:
    yield Parts([key for key, _ in entries], lambda place: f"list({path})[{place}]")
    yield Parts([item for _, item in entries], lambda place: item_of(path, entries[place][0], place))


def _reduced_parts(path: str, value: Any, reducers: Reducers) -> Iterator[Parts]:
    try:
        make, arguments, state, items, entries, setter = _reduced(value, reducers)
    except Exception:  # of the user's code, or a result that pickle does not take: this object is the culprit then
        return
    names = _Names(path, value)
    if make is type(value) or make is copyreg.__newobj__ or make is copyreg.__newobj_ex__:  # type: ignore[attr-defined]
        yield Parts([type(value)], lambda place: path, are_classes=True)
    else:
        yield Parts([make], lambda place: f"{path}.__reduce__()[0]")
    yield Parts(arguments, lambda place: names.of(arguments[place], f"{path}.__reduce__()[1][{place}]"))
    yield Parts(items, lambda place: f"{path}[{place}]")
    yield from _entries(path, entries)
    yield from _state_parts(names, state)
    yield Parts([setter], lambda place: f"{path}.__reduce__()[5]")


def _reduced(value: Any, reducers: Reducers) -> tuple[Any, list[Any], Any, list[Any], list[tuple[Any, Any]], Any]:
    """Return how pickle would describe an object: a function, its arguments, a state, items, entries, a setter."""
    try:
        reduce = reducers[type(value)]
    except KeyError:
        reduced = value.__reduce_ex__(5)
    else:
        reduced = reduce(value)
    if isinstance(reduced, str):  # the name of a global
        return reduced, [], None, [], [], None
    given: list[Any] = [*reduced, *[None] * (6 - len(reduced))]
    make, arguments, state, items, entries, setter = given
    return make, list(arguments), state, list(items or ()), list(entries or ()), setter


def _state_parts(names: _Names, state: Any) -> Iterator[Parts]:
    has_slots = type(state) is tuple and len(state) == 2 and all(part is None or type(part) is dict for part in state)
    for part in state if has_slots else (state,):
        if type(part) is dict and all(type(key) is str for key in part):
            held = list(part.items())
            yield Parts([item for _, item in held], _attribute_paths(names, held))
        else:
            yield Parts([part], lambda place, part=part: names.of(part, names.state))  # type: ignore[misc]


def _attribute_paths(names: _Names, held: list[tuple[str, Any]]) -> Callable[[int], str]:
    return lambda place: names.of(held[place][1], f"{names.state}[{held[place][0]!r}]", held[place][0])


class _Names:
    """How the user gets at what pickle found in an object."""

    def __init__(self, path: str, owner: Any) -> None:
        self._path = path
        self._owner = owner
        custom = getattr(type(owner), "__getstate__", None)
        has_own_state = custom is not None and custom is not getattr(object, "__getstate__", None)
        self.state = f"{path}.__getstate__()" if has_own_state else f"{path}.__reduce__()[2]"

    def of(self, part: Any, otherwise: str, likely: str | None = None) -> str:
        """Return the path of a part: an attribute or item of its owner if it is one, by `likely` if that fits."""
        kind = type(self._owner)
        names = [name for name, held in attributes(self._owner) if held is part]
        if names:
            return f"{self._path}.{likely if likely in names else names[0]}"
        if issubclass(kind, tuple):
            if type(part) is tuple and all(map(_is, part, tuple.__iter__(self._owner))):
                return self._path  # a copy of all its items, which go on to have their own paths
            fields = getattr(kind, "_fields", ())
            for place, item in enumerate(tuple.__iter__(self._owner)):
                if item is part:
                    return f"{self._path}.{fields[place]}" if place < len(fields) else f"{self._path}[{place}]"
        if issubclass(kind, (set, frozenset)) and type(part) is list:
            return f"list({self._path})"
        return otherwise


def _is(one: Any, other: Any) -> bool:
    return one is other
