"""What attention needs to keep the documents of a row apart: lengths for kernels that take them, or masks for torch.

In masks, tokens attend to tokens with the same segment id. That includes padding, which attends to padding: a token
that attended to nothing would have NaN as its output.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from feedline.errors import BadOption
from feedline.system.optional import is_tensor, require
from feedline.system.options import checked_count

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor
    from torch.nn.attention.flex_attention import BlockMask


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


def attention_mask(segment_ids: Tensor | NDArray[np.integer], *, causal: bool = True) -> Tensor:
    """Return a mask for `torch.nn.functional.scaled_dot_product_attention`: True where a token may attend to another.

    It has rows * length**2 entries. For long rows use `block_mask`, or a kernel that takes `cu_seqlens`.

    Args:
        segment_ids: rows x length, as `build` makes them. The mask is on the device of this tensor.
        causal: False if tokens also attend to later tokens of their document.

    Returns:
        A bool tensor of rows x 1 x length x length: one mask for all heads.

    Example:
        >>> import numpy as np
        >>> attention_mask(np.array([[1, 1, 2]]))[0, 0].int().tolist()
        [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    ids = _rows(segment_ids)
    mask = ids[:, None, :, None] == ids[:, None, None, :]
    return mask.tril() if causal else mask


def block_mask(segment_ids: Tensor | NDArray[np.integer], *, causal: bool = True, block_size: int = 128) -> BlockMask:
    """Return a mask for FlexAttention: `flex_attention(query, key, value, block_mask=...)`.

    It is the mask that `torch.nn.attention.flex_attention.create_block_mask` makes, in a fraction of the time and
    memory: torch compares every token with every other, feedline only the ranges of segment ids of blocks of tokens.

    Args:
        segment_ids: rows x length, as `build` makes them. Pass a tensor on the device of the model: the mask refers to
            it, and `BlockMask.to` does not move it.
        causal: False if tokens also attend to later tokens of their document.
        block_size: tokens in a block. 128 is the default of FlexAttention.

    Raises:
        BadOption: `segment_ids` or `block_size` is invalid, or torch is older than 2.5 and has no FlexAttention.

    Example:
        >>> import numpy as np
        >>> block_mask(np.repeat([[1, 2, 0]], [256, 200, 56], axis=1)).to_dense()[0, 0].tolist()
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    """
    block_size = checked_count("block_size", block_size)
    ids = _rows(segment_ids)
    length = ids.shape[1]

    def mask_mod(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = ids[row, query] == ids[row, key]
        return same & (query >= key) if causal else same

    partial, full = _blocks(ids, causal=causal, block_size=block_size)
    # Only newer versions of torch take lengths that are not a multiple of the block size.
    lengths = {"seq_lengths": (length, length)} if length % block_size else {}
    made: BlockMask = _flex_block_mask().from_kv_blocks(
        *_ordered(partial), *_ordered(full), BLOCK_SIZE=block_size, mask_mod=mask_mod, **lengths
    )
    return made


def _blocks(ids: Tensor, *, causal: bool, block_size: int) -> tuple[Tensor, Tensor]:
    """Return which pairs of a query block and a key block are allowed in part, and which are allowed everywhere.

    Blocks whose ranges of segment ids do not overlap have no document in common. The ids of a row ascend (padding, as
    the last segment, included), so blocks whose ranges overlap do. For ids in another order the mask is right too, but
    may list blocks in which nothing is allowed.
    """
    count = -(-ids.shape[1] // block_size)
    last = ids.max(dim=1, keepdim=True).values + 1
    ids = ids.where(ids != 0, last)
    missing = count * block_size - ids.shape[1]
    ids = _torch().cat([ids, ids[:, -1:].expand(-1, missing)], dim=1).reshape(len(ids), 1, count, block_size)
    low, high = ids.amin(dim=3), ids.amax(dim=3)
    shared = (low[..., :, None] <= high[..., None, :]) & (low[..., None, :] <= high[..., :, None])
    full = (low[..., :, None] == high[..., None, :]) & (low[..., None, :] == high[..., :, None])
    if causal:
        shared, full = shared.tril(), full.tril(-1)
    if missing:  # tokens beyond the end are not allowed
        full[..., -1, :] = False
        full[..., :, -1] = False
    return shared & ~full, full


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many key blocks each query block has, and their numbers, followed by those of the other blocks."""
    torch = _torch()
    numbers = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(dim=-1, dtype=torch.int32), numbers.to(torch.int32)


def _rows(segment_ids: Tensor | NDArray[np.integer]) -> Tensor:
    ids: Tensor = _torch().as_tensor(segment_ids)
    if ids.ndim != 2 or not ids.numel() or ids.is_floating_point():
        raise BadOption(
            f"segment_ids has shape {tuple(ids.shape)} and type {ids.dtype}. It must be rows x length of integers."
        )
    return ids


def _torch() -> ModuleType:
    return require("torch", extra="torch", purpose="An attention mask")


# Any: the class BlockMask, which older versions of torch do not have.
def _flex_block_mask() -> Any:
    try:
        return require("torch.nn.attention.flex_attention", extra="torch", purpose="A block mask").BlockMask
    except ModuleNotFoundError as exc:
        version = _torch().__version__
        raise BadOption(f"torch {version} has no FlexAttention. Use torch 2.5 or later, or attention_mask().") from exc
