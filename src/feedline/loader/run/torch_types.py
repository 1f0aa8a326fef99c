"""The type parameters of `DataLoader`."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypeVar  # torch depends on it, too

S_co = TypeVar("S_co", covariant=True, default=Any)
"""The type of a sample. Any: a dataset without annotations."""
B_co = TypeVar("B_co", covariant=True, default=Any)
"""The type of a batch. Any: the result of the default collate function has no known type."""
