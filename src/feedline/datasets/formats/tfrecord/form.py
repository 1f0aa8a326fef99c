"""Makes samples from the bytes of records."""

from __future__ import annotations

from collections.abc import Callable

from feedline.datasets.formats.tfrecord.example import SequenceExample, parse_example
from feedline.datasets.framework.form import Fields, Form, check_fields, names_in
from feedline.errors import BadOption, CorruptSource, SourceError
from feedline.system.failures import words

Parse = Callable[[bytes], object]


class RecordForm:
    """Makes a sample from the bytes of a record."""

    def __init__(self, fields: Fields, parse: Parse | None) -> None:
        check_fields(fields)
        if parse is not None and not callable(parse):
            raise BadOption(f"parse={parse!r} is not a function that takes the bytes of a record.")
        if parse is not None and fields is not None:
            raise BadOption(f"fields={fields!r} names features of tf.train.Example, which parse= replaces. Drop one.")
        self.parse = parse
        self._shape = None if fields is None else Form.of(fields, names_in(fields) or (), "the records")

    def build(self, data: bytes, name: str) -> object:
        """Return a sample, before the transform; `name` is that of the record in errors.

        Raises CorruptSource: the record is not a tf.train.Example; BadOption: it lacks a field.
        """
        if self.parse is not None:
            return self.parse(data)
        try:
            features = parse_example(data)
        except SequenceExample as exc:
            raise SourceError(
                f"{name} is a tf.train.SequenceExample, but feedline parses tf.train.Example. Pass parse= a function "
                "that takes the bytes of a record; parse=bytes returns them."
            ) from exc
        except CorruptSource as exc:
            raise CorruptSource(
                f"{name} cannot be parsed: {words(exc)}. If the records are of another kind, pass parse= a function "
                "that takes their bytes."
            ) from exc
        if self._shape is None:
            return features
        missing = [field for field in self._shape.names if field not in features]
        if missing:
            raise BadOption(f"{name} has no feature {missing[0]!r}, only {', '.join(map(repr, features)) or 'none'}.")
        return self._shape.build([features[field] for field in self._shape.names])

    def __repr__(self) -> str:
        if self.parse is not None:
            return f"results of {getattr(self.parse, '__qualname__', self.parse)}"
        return "features" if self._shape is None else self._shape.describe(self._shape.names)
