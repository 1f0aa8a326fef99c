"""Everything public that is written in Python, one line per name, parameter and member.

Annotations and defaults appear as in the source, so that every Python version renders them alike.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any, get_args

from feedline.errors import MissingExtra
from tests.promises.names import listed_names, shown_names, value_of

PROTOCOLS = ("__call__", "__contains__", "__enter__", "__getitem__", "__getitems__", "__iter__", "__len__", "__next__")
"""Special methods that users rely on."""
_PLAIN = (bool, int, float, str, bytes, tuple, types.NoneType)

# Any, throughout: whatever is public.


def lines() -> tuple[list[str], list[str]]:
    """Return the list, and the names that need a package that is not installed."""
    found: list[str] = []
    lacking: list[str] = []
    for name in sorted({*listed_names(), *shown_names()}):
        try:
            found += lines_of(name, value_of(name))
        except MissingExtra:
            lacking.append(name)
    return found, lacking


def lines_of(name: str, value: Any) -> Iterator[str]:
    """Yield the lines of one name."""
    if isinstance(value, types.ModuleType):
        yield f"{name}: module"
    elif inspect.isclass(value):
        yield f"{name}: class {_bases(value)}".rstrip()
        constructor = _constructor(value)
        if constructor is not None:
            yield from _parameters(name, constructor)
        for member, owner in sorted(_members(value).items()):
            yield from _member(f"{name}.{member}", inspect.getattr_static(owner, member, None), owner, member)
    elif callable(value) and inspect.isfunction(inspect.unwrap(value)):
        yield from _function(name, value)
    elif get_args(value):
        yield f"{name}: one of {', '.join(map(_shown, get_args(value)))}"
    else:
        yield f"{name}: {type(value).__name__}"


def _bases(kind: type) -> str:
    """Return the bases that a caller may rely on: other public classes and built-in exceptions."""
    public = [base.__name__ for base in kind.__bases__ if not base.__name__.startswith("_") and base is not object]
    return f"({', '.join(public)})" if issubclass(kind, BaseException) else ""


def _constructor(kind: type) -> Callable[..., Any] | None:
    """Return the constructor, if it is written in Python or a dataclass has one."""
    for base in kind.__mro__:
        for name in ("__init__", "__new__"):
            made = vars(base).get(name)
            made = made.__func__ if isinstance(made, staticmethod) else made
            if inspect.isfunction(made):
                return made if made.__module__.startswith("feedline") else None  # protocols get one from typing
    return None


def _members(kind: type) -> dict[str, type]:
    """Return the public members of a class, each with the feedline class that defines it.

    A method that no class documents is not public.
    """
    found: dict[str, type] = {}
    bases = [base for base in kind.__mro__ if base.__module__.startswith("feedline")]
    for base in bases:
        for name in (*vars(base), *inspect.get_annotations(base)):
            if name in PROTOCOLS or (not name.startswith("_") and _is_documented(name, bases)):
                found.setdefault(name, base)
    return found


def _is_documented(name: str, bases: list[type]) -> bool:
    members = [vars(base)[name] for base in bases if name in vars(base)]
    methods = [member for member in members if hasattr(member, "__get__") and not inspect.isclass(member)]
    return not methods or any(member.__doc__ for member in methods)


def _member(name: str, member: Any, owner: type, short: str) -> Iterator[str]:
    if isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    elif inspect.isclass(member):
        yield f"{name}: class"
        return
    if inspect.isfunction(member):
        yield from _function(name, member)
    else:
        annotations = inspect.get_annotations(owner)
        getter = getattr(member, "fget", None) or getattr(member, "func", None)
        annotation = inspect.get_annotations(getter).get("return") if getter else annotations.get(short)
        yield f"{name}: {_annotation(annotation) or 'attribute'}"


def _function(name: str, function: Any) -> Iterator[str]:
    returned = _annotation(inspect.get_annotations(inspect.unwrap(function)).get("return"))
    yield f"{name}() -> {returned}" if returned else f"{name}()"
    yield from _parameters(name, function)


def _parameters(name: str, function: Any) -> Iterator[str]:
    """Yield a line for each parameter: with its position if it can be positional, otherwise with `*`."""
    for place, one in enumerate(inspect.signature(inspect.unwrap(function)).parameters.values()):
        if place == 0 and one.name in ("self", "cls"):
            continue
        sign = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        where = "keyword" if one.kind is one.KEYWORD_ONLY else "variable" if sign else f"{place}"
        annotation = _annotation(one.annotation)
        default = "" if one.default is one.empty else f" = {_shown(one.default)}"
        yield f"{name}({where}) {sign}{one.name}{': ' if annotation else ''}{annotation}{default}"


def _annotation(annotation: Any) -> str:
    if annotation is None or annotation is inspect.Parameter.empty:
        return ""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", type(annotation).__name__)
    return " ".join(text.split())


def _shown(value: Any) -> str:
    """Return a default in a form that does not depend on versions of Python or packages."""
    if isinstance(value, tuple) and not all(isinstance(one, _PLAIN) for one in value):
        return f"<{type(value).__name__}>"
    if type(value) in _PLAIN:
        return repr(value)
    return f"<{getattr(value, '__name__', type(value).__name__)}>"
