"""What a sample looks like in the end: which fields, decoded, in what they stand."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from feedline.datasets.form import Fields, Form, check_fields
from feedline.datasets.tar.decoding import Decoder, kind_of_field
from feedline.errors import BadOption, SourceError

_OWN = ("__key__", "__url__")


class TarForm:
    """Makes samples of what stands in shards.

    Args:
        fields: as for all sources. A name may be several, separated by `;`: the first that a sample has is taken. None
            for a dict of all fields that a sample has, with `__key__` and `__url__`.
        decoder: decodes fields.

    Raises:
        BadOption: `fields` names none.
    """

    def __init__(self, fields: Fields, decoder: Decoder) -> None:
        self.fields = fields
        self._decoder = decoder
        self._form: Form | None = None
        self._names: list[tuple[str, ...]] = []
        check_fields(fields)
        if fields is not None:
            named = (
                [fields]
                if isinstance(fields, str)
                else list(fields.values() if isinstance(fields, Mapping) else fields)
            )
            if not all(isinstance(name, str) for name in named):
                raise BadOption(f"fields={fields!r} is not a name, several of them, or a dict from names to names.")
            self._form = Form.of(fields, named, "the shards")
            self._names = [tuple(name.split(";")) for name in self._form.names]

    @property
    def wanted(self) -> frozenset[str] | None:
        """The fields that have to be read; None for all."""
        if self._form is None:
            return None
        return frozenset(name for names in self._names for name in names if name not in _OWN)

    def check(self, available: list[str], store: str) -> None:
        """Raise BadOption if no sample at all has one of the fields."""
        for names in self._names:
            if not any(name in available or name in _OWN for name in names):
                raise BadOption(
                    f"fields={self.fields!r} names {';'.join(names)!r}, but samples in {store} have {available}."
                )

    def columns(self) -> list[tuple[str, str]] | None:
        """Return name and kind of each field, if a batch can be made of them as columns and that is worth it.

        Kinds are "npy", "int", "text", "bytes" and "own", for `__key__` and `__url__`.
        """
        if self._form is None or not self._decoder.goes_by_name:
            return None
        found = [(names[0], kind_of_field(names[0])) for names in self._names if len(names) == 1]
        if len(found) < len(self._names) or not any(kind == "npy" for _, kind in found):
            return None
        return None if any(kind == "other" for _, kind in found) else found

    # Any: columns, in the order of the fields.
    def join(self, columns: list[Any]) -> Any:
        """Put columns together as a sample's values are."""
        assert self._form is not None
        return self._form.build(columns)

    # Any: a sample as it stands in a shard, and what becomes of it.
    def build(self, data: dict[str, Any], names_there: Collection[str] = ()) -> Any:
        """Return the sample that `data` holds the bytes of.

        Args:
            data: the fields that are wanted.
            names_there: of all fields in the shard, if they are known, for the error.

        Raises:
            SourceError: it lacks a field.
            CorruptSource: a field cannot be decoded.
        """
        decode, total = self._decoder.field, self._decoder.total()
        if self._form is None:
            return {name: decode(data, name, total) for name in data}
        values = []
        for names in self._names:
            for name in names:
                if name in data:
                    values.append(decode(data, name, total))
                    break
            else:
                found = ", ".join(sorted({*data, *names_there} - {*_OWN})) or "none of those asked for"
                raise SourceError(
                    f"{data['__url__']}: sample {data['__key__']!r} has no field {' or '.join(names)}; it has {found}. "
                    "Name alternatives as 'jpg;png', leave the field out of fields=, or correct the shard."
                )
        return self._form.build(values)

    def __repr__(self) -> str:
        if self._form is None:
            return "a dict of all fields"
        return self._form.describe([";".join(names) for names in self._names])
