"""Sequences in a packed batch, as attention kernels for variable lengths take them."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from feedline.errors import BadOption
from feedline.system.optional import is_tensor


class SequenceLengths(NamedTuple):
    """Where the sequences of a batch start, in the form of flash-attention's `flash_attn_varlen_func`.

    Example:
        >>> import numpy as np
        >>> from feedline.text.packing import cu_seqlens
        >>> cu_seqlens(np.array([1, 1, 2])).max_seqlen
        2
    """

    # Any: an array or a tensor, of 32-bit integers.
    cu_seqlens: Any
    """Where each sequence starts in the batch as one long row; at the end, the number of tokens."""
    max_seqlen: int
    """The number of tokens of the longest sequence."""


# Any: an array or a tensor, which have no common type.
def cu_seqlens(segment_ids: Any, *, padding: bool = True) -> SequenceLengths:
    """Return the cumulative lengths of the documents of a batch.

    Args:
        segment_ids: rows x length, as `pack` and `TokenDataset` make them; 0 is padding. A single row works
            too. For a tensor, `cu_seqlens` is a tensor on the same device.
        padding: True if the batch is passed to attention as it is, in the shape (rows * length, ...). The padding of
            each row is then a sequence too, so that documents do not attend to it. False if you remove padding first,
            as in `hidden[segment_ids > 0]`.

    Example:
        >>> segment_ids = np.array([[1, 1, 1, 2, 0], [1, 2, 2, 2, 2]])
        >>> cu_seqlens(segment_ids)
        SequenceLengths(cu_seqlens=array([ 0,  3,  4,  5,  6, 10], dtype=int32), max_seqlen=4)
        >>> cu_seqlens(segment_ids, padding=False)
        SequenceLengths(cu_seqlens=array([0, 3, 4, 5, 9], dtype=int32), max_seqlen=4)
    """
    if is_tensor(segment_ids):
        found = cu_seqlens(segment_ids.cpu().numpy(), padding=padding)
        tensor = sys.modules["torch"].from_numpy(found.cu_seqlens).to(segment_ids.device)
        return SequenceLengths(tensor, found.max_seqlen)
    ids = np.asarray(segment_ids)
    if ids.ndim not in (1, 2):
        raise BadOption(f"segment_ids has shape {ids.shape}. It must be rows x length, or a single row.")
    ids = np.atleast_2d(ids)
    if ids.size > np.iinfo(np.int32).max:
        raise BadOption(f"A batch of {ids.size} tokens is too large: cu_seqlens has 32-bit integers. Use fewer rows.")
    begins = np.ones(ids.shape, np.bool_)
    begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
    starts = np.flatnonzero(begins)
    lengths = np.diff(starts, append=ids.size)
    if not padding:
        lengths = lengths[ids.reshape(-1)[starts] != 0]
    return SequenceLengths(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32), int(lengths.max(initial=0)))
