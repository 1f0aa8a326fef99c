"""Sequences in a packed batch, as attention kernels for variable lengths take them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption


class SequenceLengths(NamedTuple):
    """Where the sequences of a batch start, in the form of flash-attention's `flash_attn_varlen_func`."""

    cu_seqlens: NDArray[np.int32]
    """Where each sequence starts in the batch as one long row; at the end, the number of tokens."""
    max_seqlen: int
    """The number of tokens of the longest sequence."""


def cu_seqlens(segment_ids: NDArray[np.integer], *, padding: bool = True) -> SequenceLengths:
    """Return the cumulative lengths of the documents of a packed batch.

    Args:
        segment_ids: rows x length, as `build` makes them; 0 is padding. Also a single row.
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
