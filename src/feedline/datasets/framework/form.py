"""The form of a sample: which fields it has, and what container holds them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from feedline.datasets.framework.checksums import KIND
from feedline.errors import BadOption, CorruptSource

T = TypeVar("T")
V = TypeVar("V")

Fields = str | Sequence[str] | Mapping[str, str] | None
"""Which fields a sample has, and in what form: see `Form.of`."""

VectorFields = Fields | Sequence[str | Sequence[str]] | Mapping[str, str | Sequence[str]]
"""The same for sources that combine several columns into a vector: a list of columns in place of one."""


@dataclass(frozen=True)
class Form:
    """Which fields of a store a sample has, and what container holds them."""

    names: tuple[str, ...]
    """The store's names for the fields."""
    keys: tuple[str, ...] | None
    """The keys of a sample that is a dict; None if it is not a dict."""
    is_one: bool = False
    """True if a sample is the value of its only field."""
    vectors: tuple[int | None, ...] = ()
    """For each value of a sample: the number of fields in its vector, or None if it is a single field. Empty if all are
    single fields."""

    @classmethod
    def of(cls, fields: VectorFields, available: Iterable[str], store: str, *, has_vectors: bool = False) -> Form:
        """Return the form that `fields=` describes.

        Args:
            fields: a name, for samples that are its value; a tuple of names, for tuples; a list of names, for dicts; a
                dict from your own names to the store's, for dicts with your names; None for a dict of all fields.
            available: the names that the store has, in its order.
            store: the store's name in errors.
            has_vectors: True if the store makes a vector from a list of fields in a tuple or dict.

        Example:
            >>> Form.of(("image", "label"), ["image", "label", "name"], "a.h5").build(["pixels", 3])
            ('pixels', 3)
            >>> Form.of({"x": "image"}, ["image", "label"], "a.h5").build(["pixels"])
            {'x': 'pixels'}
        """
        check_fields(fields)
        known = tuple(available)
        names = names_in(fields)
        is_one = isinstance(fields, str)
        vectors = _vectors_in(fields)
        if vectors and not (has_vectors and isinstance(fields, (tuple, Mapping))):
            raise BadOption(_no_vectors(fields, store, has_vectors=has_vectors))
        keys: Any = None if fields is None or is_one or isinstance(fields, tuple) else tuple(fields)  # Any: of strings
        form = cls(known, known) if names is None else cls(tuple(names), keys, is_one, vectors)
        missing = [name for name in form.names if name not in known]
        if missing:
            raise BadOption(f"fields={fields!r} names {missing[0]!r}, but {store} has {listed(known)}.")
        if not form.names:
            raise BadOption(f"fields={fields!r} names no field, so samples of {store} would be empty.")
        if form.keys is not None and len(set(form.keys)) < len(form.keys):
            raise BadOption(f"fields={fields!r} names a field twice. Pass a dict with another name for one of them.")
        return form

    def values_of(self, fields: Sequence[T], vector: Callable[[Sequence[str], Sequence[T]], V]) -> list[T | V]:
        """Map one item per field in `names` to one item per value of a sample.

        `vector` combines the items of several fields. It is called with the names of the fields and their items.

        Example:
            >>> form = Form.of((["x", "y"], "z"), ["x", "y", "z"], "a.parquet", has_vectors=True)
            >>> form.values_of([1, 2, 3], lambda names, numbers: dict(zip(names, numbers)))
            [{'x': 1, 'y': 2}, 3]
        """
        values, place = list[T | V](), 0
        for count in self.vectors or [None] * len(self.names):
            stop = place + (count or 1)
            values.append(fields[place] if count is None else vector(self.names[place:stop], fields[place:stop]))
            place = stop
        return values

    def build(self, values: Sequence[object]) -> object:
        """Combine the values of a sample, or whole columns, in the order in which the user named them."""
        if self.keys is not None:
            return dict(zip(self.keys, values, strict=True))
        return values[0] if self.is_one else tuple(values)

    def describe(self, texts: Sequence[str]) -> str:
        """Describe a sample for people, given a text for each field."""
        if self.keys is not None:
            return f"{{{', '.join(f'{key!r}: {text}' for key, text in zip(self.keys, texts, strict=True))}}}"
        if self.is_one:
            return texts[0]
        return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"


def names_in(fields: VectorFields) -> Sequence[str] | None:
    """Return the store's names of the fields that `fields=` selects; None for all."""
    if fields is None or isinstance(fields, str):
        return None if fields is None else (fields,)
    return tuple(name for part in _parts_of(fields) for name in (part if _is_vector(part) else (part,)))


# Any, here and below: any value from the user.
def _parts_of(fields: Any) -> Collection[Any]:
    return fields.values() if isinstance(fields, Mapping) else fields


def _is_vector(part: object) -> bool:
    return isinstance(part, Sequence) and not isinstance(part, (str, bytes))


def _vectors_in(fields: object) -> tuple[int | None, ...]:
    if fields is None or isinstance(fields, str):
        return ()
    vectors = tuple(len(part) if _is_vector(part) else None for part in _parts_of(fields))
    if 0 in vectors:
        raise BadOption(f"fields={fields!r} has a vector of no columns. Name at least one.")
    return vectors if any(vectors) else ()


def _no_vectors(fields: object, store: str, *, has_vectors: bool) -> str:
    if has_vectors:
        return (
            f"fields={fields!r} is a list, which gives dicts, and a vector in it has no name. Pass a dict: "
            "fields={'features': ['x', 'y'], 'label': 'label'}."
        )
    return (
        f"fields={fields!r} asks for a vector of several fields, which {store} cannot provide. Parquet, Arrow and CSV "
        "datasets can. For other sources, combine the fields in a transform."
    )


def check_fields(fields: object) -> None:
    """Refuse a value that is not a valid `fields=` for any store."""
    if fields is not None and (isinstance(fields, (bytes, bytearray)) or not isinstance(fields, Collection)):
        raise BadOption(
            f'fields={fields!r} names no fields. Pass a name, for samples that are its value ("image"); a tuple of '
            'names, for tuples (("image", "label")); a list of names, for dicts; a dict from names of your own to the '
            "store's; or None for all fields."
        )


def listed(names: Sequence[str], most: int = 12) -> str:
    """Return the first names for an error, and how many more there are."""
    shown = ", ".join(map(repr, names[:most])) or "no fields"
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


# object: what JSON holds.
def _facts(stored: str | bytes | None) -> dict[str, object]:
    try:
        metadata = json.loads(stored or "null")
    except (ValueError, RecursionError):
        return {}
    return metadata if isinstance(metadata, dict) and "feedline" in metadata else {}


def _fields(stored: str | bytes | None) -> list[dict[str, object]]:
    fields = _facts(stored).get("fields")
    return [field for field in fields if isinstance(field, dict)] if isinstance(fields, list) else []


def block_sums(stored: str | bytes | None) -> dict[str, object]:
    """Return the checksums that `feedline pack` stored, by array name; empty if there are none."""
    sums = _facts(stored).get("sums")
    return sums if isinstance(sums, dict) else {}


def fields_with_sums(stored: str | bytes | None) -> frozenset[str]:
    """Return the fields that `feedline pack` wrote with checksums; none if another program wrote the data."""
    names = [field.get("name") for field in _fields(stored)]
    return frozenset(name for name in names if isinstance(name, str) and _facts(stored).get("checksum") == KIND)


def in_packed_order(names: Iterable[str], stored: str | bytes | None) -> list[str]:
    """Return field names in the order that `feedline pack` stored; unchanged if it stored none."""
    listed = [field.get("name") for field in _fields(stored)]
    places = {name: place for place, name in enumerate(listed) if isinstance(name, str)}
    return sorted(names, key=lambda name: places.get(name, len(places)))


def check_count(name: str, stored: str | bytes | None, found: int) -> None:
    """Compare the number of samples with the number that `feedline pack` stored, if any."""
    count = _facts(stored).get("count")
    if type(count) is int and count != found:
        raise CorruptSource(
            f"{name} has {found} samples, but {count} were packed. It is damaged, or was changed by another program. "
            "Pack it again, or get another copy."
        )


def check_shapes(name: str, stored: str | bytes | None, found: Mapping[str, tuple[int, ...] | None]) -> None:
    """Compare the shapes of arrays with those that `feedline pack` stored, if any."""
    for field in _fields(stored):
        field_name, shape = field.get("name"), field.get("shape")
        is_known = field.get("kind") == "array" and isinstance(field_name, str) and field_name in found
        if is_known and isinstance(shape, list) and found[str(field_name)] != tuple(shape):
            raise CorruptSource(
                f"{name}: samples of {field_name!r} were packed as arrays of shape {tuple(shape)}, but the file now "
                f"has {found[str(field_name)]}. It is damaged, or was changed by another program. Pack it again, or "
                "get another copy."
            )
