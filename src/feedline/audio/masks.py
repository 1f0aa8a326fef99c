"""Which values of a padded batch are real."""

from __future__ import annotations

from typing import Any

import numpy as np

from feedline.system.optional import is_tensor, require


# Any: an array or a tensor, and the same of the result.
def length_mask(lengths: Any, size: int | None = None) -> Any:
    """Return a mask of a padded batch: True where a sequence has values, False where it is padded at its end.

    Args:
        lengths: the length of each sequence, as `feedline.collate.pad` returns them: an array, a tensor or a list.
        size: the padded length; the longest of `lengths` if None.

    Returns:
        Booleans with the axes sequence and place: an array, or a tensor on the device of `lengths`.

    Example:
        >>> import numpy as np
        >>> length_mask(np.array([3, 1])).tolist()
        [[True, True, True], [True, False, False]]
    """
    if is_tensor(lengths):
        torch = require("torch", extra="torch", purpose="Masks of tensors")
        places = torch.arange(max(lengths.tolist(), default=0) if size is None else size, device=lengths.device)
        return places < lengths[:, None]
    lengths = np.asarray(lengths)
    return np.arange(lengths.max(initial=0) if size is None else size) < lengths[:, None]
