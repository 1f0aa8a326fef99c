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
        CollateError: another sample has a field more, which would get lost, or a field less.
    """
    first = samples[0]
    names = names_of(first)
    if names is None:
        return None
    if isinstance(first, (Mapping, tuple, list)):
        sized: Sequence[Any] = samples
        try:
            are_alike = set(map(len, sized)) == {len(names)}  # other keys are noticed in `column`
        except TypeError:  # a sample has no length
            are_alike = False
    else:
        are_alike = len(set(map(type, samples))) == 1
    if not are_alike:
        for position, sample in enumerate(samples):
            if set(names_of(sample) or ()) != set(names):
                raise _differs(samples, position, path)
    return names


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
        lacking = (place for place, sample in enumerate(samples) if name not in (names_of(sample) or ()))
        raise _differs(samples, next(lacking, 0), path) from exc


def _differs(samples: Sequence[Any], position: int, path: Path) -> CollateError:
    """Return the error about a sample whose fields are not those of the first one."""
    sample = samples[position]
    names = names_of(sample)
    what = f"a {type(sample).__name__}" if names is None else f"the fields {_listed(names)}"
    advice = "All samples of a batch need the same fields: give missing ones a value in the dataset."
    if sample is None:
        what, advice = "None", instead_of_none(path)
    elif isinstance(sample, (tuple, list)):
        advice += " If they are sequences of varying length, use feedline.collate.pad()."
    has = f"{what}{inside(path)}, and sample 0 has {_listed(names_of(samples[0]))}"
    return CollateError(f"Sample {position} of the batch has {has}. {advice}", position)


def _listed(names: Sequence[Field] | None) -> str:
    return ", ".join(map(repr, names or ())) or "none"


def build(like: object, columns: Mapping[Field, object]) -> object:
    """Return a container like `like` with these values in its fields."""
    kind = type(like)
    if kind is dict:
        return dict(columns)
    if isinstance(like, MutableMapping):
        clone = copy.copy(like)  # keeps other attributes of the mapping, such as the factory of a defaultdict
        clone.update(columns)
        return clone
    if isinstance(like, Mapping):
        return dict(columns)
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return kind(*columns.values())
    if isinstance(like, (tuple, list)):
        return tuple(columns.values()) if isinstance(like, tuple) else list(columns.values())
    made = copy.copy(like)  # without __init__, whose checks may hold only for samples
    for name, value in columns.items():
        object.__setattr__(made, str(name), value)  # works on frozen dataclasses too
    return made


def instead_of_none(path: Path) -> str:
    """Return advice about samples that are None, or have None in a field."""
    if not path:
        return "To leave such samples out, use feedline.collate.drop_none()."
    return (
        "Replace None in the dataset or in the query (COALESCE in SQL), choose fields without this one with fields=, "
        "or leave such samples out, with filters=, WHERE or feedline.collate.drop_none(drop=...)."
    )


def inside(path: Path) -> str:
    """Return a phrase that names the field; empty if the sample has no fields.

    Example:
        >>> inside(("inputs", 0, "ids"))
        " in field 'inputs' / 0 / 'ids'"
    """
    return f" in field {' / '.join(map(repr, path))}" if path else ""
