"""Which values are arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

import numpy as np
from numpy.typing import NDArray

from feedline.system.optional import is_tensor

if TYPE_CHECKING:
    from torch import Tensor


def is_array(value: object) -> TypeGuard[NDArray[np.generic] | Tensor]:
    """True for NumPy arrays and torch tensors."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def is_arrays(value: object) -> bool:
    """True for an array, or a tuple or dict of arrays, of any lengths; an `ArrayDataset` is made of these.

    Example:
        >>> is_arrays({"x": np.zeros(3), "y": np.zeros(3)}), is_arrays([1, 2])
        (True, False)
    """
    if isinstance(value, (tuple, dict)):
        parts = value if isinstance(value, tuple) else value.values()
        return len(value) > 0 and all(map(is_array, parts))
    return is_array(value)
