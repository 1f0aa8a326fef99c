"""Where documents begin inside blocks, and what follows from it: segments, positions, sequence lengths. Pure."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption
from feedline.system.optional import is_tensor

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Edges:
    """The places inside windows at which documents begin, except the first place of each window."""

    rows: Numbers
    places: Numbers
    """Each at least 1; ascending in each row, without repeats."""
    row_count: int

    @classmethod
    def of(cls, rows: Numbers, places: Numbers, row_count: int, width: int) -> Edges:
        """Return edges in order, each once, given in any order and perhaps more than once: documents may be empty."""
        flat = np.unique(rows * width + places)
        return cls(flat // width, flat % width, row_count)

    def segments(self, block: int) -> Segments:
        """Divide the first `block` places of each row into segments, one for each document."""
        inside = self.places < block
        firsts = np.arange(self.row_count, dtype=np.int64) * block
        others = self.rows[inside] * block + self.places[inside]
        starts = np.sort(np.concatenate([firsts, others]))
        lengths = np.diff(starts, append=self.row_count * block)
        return Segments(starts, lengths, np.searchsorted(starts, firsts), block)


@dataclass(frozen=True, eq=False)
class Segments:
    """The documents in rows of `block` places, all rows one after the other."""

    starts: Numbers
    lengths: Numbers
    firsts: Numbers
    """Which segment is the first of each row."""
    block: int

    def numbers(self) -> NDArray[np.int32]:
        """Return, for each place, the number of its segment in its row."""
        counts = np.diff(self.firsts, append=len(self.starts))
        numbers = np.arange(len(self.starts)) - np.repeat(self.firsts, counts)
        return np.repeat(numbers.astype(np.int32), self.lengths).reshape(-1, self.block)

    def positions(self, lead: Numbers | None = None) -> Numbers:
        """Return, for each place, its distance from the start of its segment.

        `lead` is how much of its first document each row leaves out in front.
        """
        starts = self.starts
        if lead is not None:
            starts = starts.copy()
            starts[self.firsts] -= lead
        places = np.arange(len(self.firsts) * self.block, dtype=np.int64)
        return (places - np.repeat(starts, self.lengths)).reshape(-1, self.block)


# Any: an array or a tensor, which have no common type.
def cu_seqlens(segment_ids: Any) -> Any:
    """Return the cumulative sequence lengths that variable-length attention takes, of a batch of segment ids.

    Attention kernels such as FlashAttention's `flash_attn_varlen_func` take all rows of a batch as one sequence, and
    the places at which its documents begin and end. Each row begins a new sequence.

    Args:
        segment_ids: an array or tensor of one row, or of several rows: as `TokenDataset(segment_ids=True)` gives them.

    Returns:
        int32: 0, the end of each sequence, the last of which is the number of all tokens. A tensor if a tensor was
        given, on the same device.

    Raises:
        BadOption: the segment ids have no dimension, or more than two.

    Example:
        >>> import numpy as np
        >>> from feedline.text import cu_seqlens
        >>> cu_seqlens(np.array([[0, 0, 1, 1], [0, 1, 1, 2]]))
        array([0, 2, 4, 5, 7, 8], dtype=int32)
    """
    if is_tensor(segment_ids):
        torch = sys.modules["torch"]  # there is a tensor
        found = torch.from_numpy(cu_seqlens(segment_ids.cpu().numpy()))
        return found.to(segment_ids.device)
    ids = np.atleast_1d(segment_ids)
    if not 1 <= ids.ndim <= 2 or np.ndim(segment_ids) == 0:
        raise BadOption(f"segment_ids has shape {np.shape(segment_ids)}: it must have one row, or rows of one length.")
    rows = ids.reshape(-1, ids.shape[-1]) if ids.size else ids.reshape(0, 1)
    changes = np.ones(rows.shape, np.bool_)
    changes[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return np.append(np.flatnonzero(changes), rows.size).astype(np.int32)
