"""What a position in a dataset depends on, so that a state is only loaded where it means the same samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

from feedline.errors import BadState

Description: TypeAlias = list[dict[str, Any]]
"""The operators of a dataset, the first one applied first, in plain values that JSON supports.

Each has a name, `operator`, and its options. `sources` describes the datasets of an operator that combines several.
"""


class Described(ABC):
    """A dataset with options that determine which sample is at which position."""

    @abstractmethod
    def describe(self) -> Description | None:
        """Return these options, including those of datasets inside it; None if it has none."""


# object, throughout: a user's dataset, or a state that may come from anywhere.
def description_of(dataset: object) -> Description | None:
    """Return the description of a dataset; None if it has none."""
    return dataset.describe() if isinstance(dataset, Described) else None


def origin_of(dataset: object, size: int | None) -> Description:
    """Return the description of a dataset inside others: its own, else its size; None for a stream."""
    return description_of(dataset) or [{"operator": "dataset", "size": size}]


def check_description(saved: object, own: Description | None) -> None:
    """Check that a state was saved with the same operators and options.

    Raises:
        BadState: it was not; the message names the operator, the option and both values.
    """
    if saved == own:
        return
    was, now = _names(saved), _names(own)
    if was != now:
        raise BadState(f"The state was saved with the dataset {was}, but this one is {now}. {_ADVICE}")
    assert isinstance(saved, Sequence)
    assert own is not None
    for before, after in zip(saved, own, strict=True):
        for name in [*before, *(name for name in after if name not in before)]:
            if before.get(name) != after.get(name):
                _refuse(after["operator"], name, before.get(name), after.get(name))


# Any: the value of an option.
def _refuse(operator: str, option: str, before: Any, after: Any) -> None:
    if option != "sources":
        raise BadState(
            f"The state was saved with {operator}({option}={before!r:.200}), but here it is {operator}({option}="
            f"{after!r:.200}). {_ADVICE}"
        )
    if not isinstance(before, Sequence) or len(before) != len(after):
        count = len(before) if isinstance(before, Sequence) else "no"
        raise BadState(
            f"The state was saved with {operator} of {count} datasets, but here it has {len(after)}. {_ADVICE}"
        )
    for source, own in zip(before, after, strict=True):
        check_description(source, own)


_ADVICE = "Positions in one mean other samples in the other. Build the dataset as it was when the state was saved."


def _names(description: object) -> str:
    """Return the names of the operators, for people, and to compare what a state may contain."""
    if description is None:
        return "without operators"
    operators = list(description) if _is_list(description) else []
    names = [str(one.get("operator")) for one in operators if isinstance(one, Mapping)]
    return ".".join(names) if names and len(names) == len(operators) else f"{description!r:.200}"


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
