"""The form of a sample: which fields it has, and in what they stand."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feedline.errors import BadOption

Fields = str | Sequence[str] | Mapping[str, str] | None
"""Which fields a sample has, in the form that it has: see `Form.of`."""


@dataclass(frozen=True)
class Form:
    """Which fields of a store a sample has, and in what they stand."""

    names: tuple[str, ...]
    """As the store calls them."""
    keys: tuple[str, ...] | None
    """As the dict calls them that a sample is; None if it is none."""
    is_one: bool = False
    """True if a sample is the value of its only field."""

    @classmethod
    def of(cls, fields: Fields, available: Iterable[str], store: str) -> Form:
        """Return the form that `fields=` describes.

        Raises BadOption: these are no names, the store has no such field, or none was named.

        Args:
            fields: a name, for samples that are its value; a tuple of names, for tuples; a list of names, for dicts; a
                dict from names of one's own to the store's, for dicts with those; None for a dict of all fields.
            available: the names that the store has, in its order.
            store: what it is called in an error.

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
        keys = None if fields is None or is_one or isinstance(fields, tuple) else tuple(fields)
        form = cls(known, known) if names is None else cls(tuple(names), keys, is_one)
        missing = [name for name in form.names if name not in known]
        if missing:
            raise BadOption(f"fields={fields!r} names {missing[0]!r}, but {store} has {listed(known)}.")
        if not form.names:
            raise BadOption(f"fields={fields!r} names no field, so that samples of {store} would be empty.")
        if form.keys is not None and len(set(form.keys)) < len(form.keys):
            raise BadOption(f"fields={fields!r} names a field twice. Give a dict with another name for one of them.")
        return form

    # Any: values and containers of any kind.
    def build(self, values: Sequence[Any]) -> Any:
        """Put values in the order of `names` together: those of a sample, or whole columns."""
        if self.keys is not None:
            return dict(zip(self.keys, values, strict=True))
        return values[0] if self.is_one else tuple(values)

    def describe(self, texts: Sequence[str]) -> str:
        """Return a text for people, given one for each field."""
        if self.keys is not None:
            return f"{{{', '.join(f'{key!r}: {text}' for key, text in zip(self.keys, texts, strict=True))}}}"
        if self.is_one:
            return texts[0]
        return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"


def names_in(fields: Fields) -> Sequence[str] | None:
    """Return the names, as the store has them, that `fields=` asks for; None for all."""
    if fields is None or isinstance(fields, str):
        return None if fields is None else (fields,)
    return tuple(fields.values() if isinstance(fields, Mapping) else fields)


# Any: whatever the user gave.
def check_fields(fields: Any) -> None:
    """Refuse what cannot be `fields=` of any store.

    Raises BadOption: it is neither a name, nor several, nor a dict, nor None.
    """
    if fields is not None and (isinstance(fields, (bytes, bytearray)) or not isinstance(fields, Collection)):
        raise BadOption(
            f'fields={fields!r} names no fields. Give a name, for samples that are its value ("image"); a tuple of '
            'names, for tuples (("image", "label")); a list of names, for dicts; a dict from names of your own to the '
            "store's; or None for all fields."
        )


def listed(names: Sequence[str], most: int = 12) -> str:
    """Return names for an error: the first of them, and how many more there are."""
    shown = ", ".join(map(repr, names[:most])) or "no fields"
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
