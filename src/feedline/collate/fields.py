"""The fields of a sample: keys of a dict, positions of a tuple or list, attributes of a named tuple or dataclass."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Hashable, Mapping, MutableMapping, Sequence
from typing import Any

from feedline.errors import CollateError

Field = Hashable
Path = tuple[Field, ...]
"""The location of a value in a sample: the fields to follow, from the outside in."""


def names_of(sample: object) -> Sequence[Field] | None:
    """Return the names of a sample's fields; None if it is a single value.

    Example:
        >>> names_of({"image": 1, "label": 2}), names_of((1, 2)), names_of("text")
        (['image', 'label'], range(0, 2), None)
    """
    if isinstance(sample, Mapping):
        return list(sample)
    if isinstance(sample, (tuple, list)):
        named: Sequence[Field] | None = getattr(sample, "_fields", None)
        return range(len(sample)) if named is None else named
    if dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        return [field.name for field in dataclasses.fields(sample)]
    return None


def shared_names(samples: Sequence[object], path: Path = ()) -> Sequence[Field] | None:
    """Return the names of the first sample's fields; None if it is a single value.

    Raises:
        CollateError: another sample has a field that the first one lacks, which would get lost.
    """
    first = samples[0]
    names = names_of(first)
    if names is None:
        return None
    if isinstance(first, (tuple, list)):
        _check_lengths(samples, path)
    elif _may_differ(samples, len(names)):
        _refuse_surplus(samples, names, path)
    return names


def _may_differ(samples: Sequence[Any], size: int) -> bool:
    """False if a quick check shows that no sample has more fields than the first one."""
    if not isinstance(samples[0], Mapping):
        return len(set(map(type, samples))) > 1  # dataclasses of one type have the same fields
    try:
        return max(map(len, samples)) > size
    except TypeError:  # a sample has no length
        return True


def _refuse_surplus(samples: Sequence[object], names: Sequence[Field], path: Path) -> None:
    for position, sample in enumerate(samples):
        for name in names_of(sample) or ():
            if name not in names:
                raise CollateError(
                    f"Sample {position} of the batch has a field {place(name, path)} that sample 0 lacks. Sample 0 has "
                    f"{', '.join(map(repr, names)) or 'none'}. All samples of a batch need the same fields: give the "
                    "missing one a value in the dataset, or leave it out everywhere."
                )


def column(samples: Sequence[Any], name: Field, path: Path = ()) -> list[Any]:
    """Return the values of one field, one for each sample.

    Raises:
        CollateError: a sample does not have the field.
    """
    by_attribute = isinstance(name, str) and not isinstance(samples[0], Mapping)
    try:
        if by_attribute:
            return [getattr(sample, name) for sample in samples]  # type: ignore[call-overload]  # a str here
        return [sample[name] for sample in samples]
    except (KeyError, IndexError, AttributeError, TypeError) as exc:
        raise missing(samples, name, path) from exc


def missing(samples: Sequence[object], name: Field, path: Path = ()) -> CollateError:
    """Return the error about a field that one or all samples lack."""
    first = names_of(samples[0])
    if first is not None and all(name not in (names_of(sample) or ()) for sample in samples):
        return CollateError(
            f"The samples have no field {place(name, path)}: sample 0 of the batch has "
            f"{', '.join(map(repr, first)) or 'none'}. Is the name spelled as in the dataset?"
        )
    for position, sample in enumerate(samples):
        if sample is None:
            return CollateError(
                f"Sample {position} of the batch {'has' if path else 'is'} None{inside(path)}, where others have the "
                f"field {place(name, path)}. {instead_of_none(path)}"
            )
        names = names_of(sample)
        if names is None or name not in names:
            has = f"is a {type(sample).__name__}" if names is None else f"has {', '.join(map(repr, names)) or 'none'}"
            return CollateError(
                f"Sample {position} of the batch has no field {place(name, path)}: it {has}. All samples of a batch "
                "need the same fields: give the missing one a value in the dataset."
            )
    return CollateError(f"Field {place(name, path)} could not be read from the samples.")


def _check_lengths(samples: Sequence[Any], path: Path) -> None:
    """Raise CollateError if tuples or lists differ in length."""
    size = len(samples[0])
    for position, sample in enumerate(samples):
        if not hasattr(sample, "__len__"):
            has = "None" if sample is None else f"a {type(sample).__name__}"
            advice = instead_of_none(path) if sample is None else "All samples of a batch need the same fields."
            raise CollateError(
                f"Sample {position} of the batch {'has' if path else 'is'} {has}{inside(path)}, where sample 0 has "
                f"{size} fields. {advice}"
            )
        if len(sample) != size:
            raise CollateError(
                f"Samples 0 and {position} of the batch have {size} and {len(sample)} fields{inside(path)}. All "
                "samples of a batch need the same number. If they are sequences of varying length, use "
                "feedline.collate.pad()."
            )


def build(like: object, columns: Mapping[Field, object]) -> object:
    """Return a container like `like` with these values in its fields."""
    kind = type(like)
    if kind is dict:
        return dict(columns)
    if isinstance(like, Mapping):
        return _build_mapping(like, columns)
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return kind(*columns.values())
    if isinstance(like, (tuple, list)):
        return tuple(columns.values()) if isinstance(like, tuple) else list(columns.values())
    clone = copy.copy(like)  # without __init__, whose checks may hold only for samples
    for name, value in columns.items():
        object.__setattr__(clone, str(name), value)  # works on frozen dataclasses too
    return clone


def _build_mapping(like: Mapping[object, object], columns: Mapping[Field, object]) -> object:
    if not isinstance(like, MutableMapping):
        return dict(columns)
    clone = copy.copy(like)  # keeps other attributes of the mapping, such as the factory of a defaultdict
    clone.update(columns)
    return clone


def place(name: Field, path: Path = ()) -> str:
    """Format a field for messages.

    Example:
        >>> place("ids", ("inputs", 0))
        "'inputs' / 0 / 'ids'"
    """
    return " / ".join(map(repr, (*path, name)))


def instead_of_none(path: Path) -> str:
    """Return advice about samples that are None, or have None in a field."""
    if not path:
        return "To leave such samples out, use feedline.collate.drop_none()."
    return (
        "Replace None in the dataset, in its transform= or in the query (COALESCE in SQL), choose fields without this "
        "one with fields=, or leave such samples out: with filters= or WHERE in the source, or with "
        "feedline.collate.drop_none(drop=...), whose function returns True for samples to leave out."
    )


def inside(path: Path) -> str:
    """Return a phrase that names the field, to end a sentence; empty if the sample has no fields."""
    return f" in field {place(path[-1], path[:-1])}" if path else ""
