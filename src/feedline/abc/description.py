"""The contract of datasets with operators and options, which a state must be loaded with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

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
    if saved != own:
        before, after = _difference(saved, own)
        raise BadState(
            f"The state was saved with {before}, but here it is {after}. Positions in one mean other samples in the "
            "other. Build the dataset as it was when the state was saved."
        )


# Any, here and below: what a state may contain.
def _difference(saved: Any, own: Description | None) -> tuple[str, str]:
    """Return, as text, where two descriptions begin to differ."""
    was, now = _names(saved), _names(own)
    if own is None or was != now:
        return f"the dataset {was}", now
    for before, after in zip(saved or (), own, strict=True):
        for name in {**before, **after}:
            first, second = before.get(name), after.get(name)
            if first == second:
                continue
            if name == "sources" and first and second and len(first) == len(second):
                return next(_difference(*pair) for pair in zip(first, second, strict=True) if pair[0] != pair[1])
            operator = after["operator"]
            return f"{operator}({name}={first!r:.200})", f"{operator}({name}={second!r:.200})"
    return f"{saved!r:.200}", f"{own!r:.200}"


def _names(description: Any) -> str:
    if description is None:
        return "without operators"
    try:
        return ".".join([one["operator"] for one in description])
    except (TypeError, LookupError):  # not from a dataset with operators
        return f"{description!r:.200}"
