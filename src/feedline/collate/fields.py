"""The fields of a sample: keys of a dict, positions of a tuple or list, attributes of a named tuple or dataclass."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Hashable, Mapping, MutableMapping, Sequence
from typing import Any

from feedline.errors import CollateError

Field = Hashable
Path = tuple[Field, ...]
"""Where a value sits in a sample: the fields to follow, from the outside in."""


def names_of(sample: Any) -> Sequence[Field] | None:
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


def shared_names(samples: Sequence[Any], path: Path = ()) -> Sequence[Field] | None:
    """Return the names of the fields of the first sample; None if it is a single value.

    Raises:
        CollateError: another sample has a field that the first one lacks, and that would get lost.
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
    """True unless it is plain to see, and quickly, that no sample has more fields than the first has."""
    if not isinstance(samples[0], Mapping):
        return len(set(map(type, samples))) > 1  # dataclasses; those of one type have the same fields
    try:
        return max(map(len, samples)) > size
    except TypeError:  # one has no length
        return True


def _refuse_surplus(samples: Sequence[Any], names: Sequence[Field], path: Path) -> None:
    for position, sample in enumerate(samples):
        for name in names_of(sample) or ():
            if name not in names:
                raise CollateError(
                    f"Sample {position} of the batch has a field {place(name, path)} that sample 0 lacks: that has "
                    f"{', '.join(map(repr, names)) or 'none'}. All samples of a batch need the same fields; give the "
                    "missing one a value in the dataset, or leave it out everywhere."
                )


def column(samples: Sequence[Any], name: Field, path: Path = ()) -> list[Any]:
    """Return the values that the samples have in one field.

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


def missing(samples: Sequence[Any], name: Field, path: Path = ()) -> CollateError:
    """Return the error about a field that some sample, or all of them, do not have."""
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
                "need the same fields; give the missing one a value in the dataset."
            )
    return CollateError(f"Field {place(name, path)} could not be read from the samples.")


def _check_lengths(samples: Sequence[Any], path: Path) -> None:
    """Raise a CollateError if tuples or lists differ in length."""
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
                "samples of a batch need the same number; if they are sequences of varying length, "
                "feedline.collate.pad() is made for them."
            )


def build(like: Any, columns: Mapping[Field, Any]) -> Any:
    """Return a container of the kind of `like` with these values in its fields."""
    kind = type(like)
    if kind is dict:
        return dict(columns)
    if isinstance(like, Mapping):
        return _build_mapping(like, columns)
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return kind(*columns.values())
    if isinstance(like, (tuple, list)):
        return tuple(columns.values()) if isinstance(like, tuple) else list(columns.values())
    clone = copy.copy(like)  # not through __init__, which may check what only holds for a sample
    for name, value in columns.items():
        object.__setattr__(clone, str(name), value)  # also when it is frozen
    return clone


def _build_mapping(like: Mapping[Any, Any], columns: Mapping[Field, Any]) -> Any:
    if not isinstance(like, MutableMapping):
        return dict(columns)
    clone = copy.copy(like)  # keeps what else the mapping holds, such as the factory of a defaultdict
    clone.update(columns)
    return clone


def place(name: Field, path: Path = ()) -> str:
    """Return how a message names a field.

    Example:
        >>> place("ids", ("inputs", 0))
        "'inputs' / 0 / 'ids'"
    """
    return " / ".join(map(repr, (*path, name)))


def instead_of_none(path: Path) -> str:
    """Say what to do about samples that are None, or have None in a field."""
    if not path:
        return "To leave such samples out, use feedline.collate.drop_none()."
    return (
        "Let the dataset, its transform= or the query (COALESCE in SQL) give another value for it, choose fields "
        "without this one with fields=, or leave such samples out: by filters= or WHERE in the source, or with "
        "feedline.collate.drop_none(drop=...), whose function says of a sample whether to leave it out."
    )


def inside(path: Path) -> str:
    """Complete a sentence with the field it is about; nothing if the sample has none."""
    return f" in field {place(path[-1], path[:-1])}" if path else ""
