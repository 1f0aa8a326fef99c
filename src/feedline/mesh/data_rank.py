"""Which ranks share a batch: coordinates in a device mesh, as numbers; pure.

The ranks of a large job are not all data-parallel. Those that differ only in other dimensions, such as tensor or
context parallelism, need the same batches in the same order. They have the same data rank.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption
from feedline.system.ranks import Share

_DATA = re.compile(r"(dp|ddp|data|fsdp|hsdp)(\d*$|_)|data_?parallel", re.IGNORECASE)
"""Matches the beginning of the names that frameworks give to dimensions of data parallelism."""

_MIXED = re.compile(r"(^|_)(cp|sp|tp|pp|ep|mp|model|tensor|pipe\w*|context|seq\w*|expert)($|_)", re.IGNORECASE)
"""Matches parts of names that stand for other kinds of parallelism. In `dp_shard_in_ep` they name a part of the data
dimension, and in `dp_cp` another dimension that was merged into it: the name does not say which.
"""


@dataclass(frozen=True)
class DataRank:
    """The place of this process among the ranks that share out the data.

    Example:
        >>> DataRank(rank=1, world_size=2).share
        Share(rank=1, world_size=2, tail='pad')
    """

    rank: int
    """The data rank."""
    world_size: int
    """The number of data ranks."""
    peers: tuple[int, ...] = ()
    """The world ranks that have this data rank, this process included, in ascending order; empty if not known."""
    check: int = 0
    """After how many batches the peers compare what they got; 0 for never."""
    timeout_s: float = 0.0
    """The longest wait for other ranks."""

    @property
    def share(self) -> Share:
        """The share of the data that belongs to this data rank."""
        return Share(self.rank, self.world_size)

    def __str__(self) -> str:
        return f"data rank {self.rank} of {self.world_size}"


def data_dims_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the dimensions of data parallelism, judging by their names.

    Raises:
        BadOption: none of them has such a name, or one name does not say whether it is only that.

    Example:
        >>> data_dims_of(("pp", "dp_replicate", "dp_shard", "tp"))
        ('dp_replicate', 'dp_shard')
    """
    found = tuple(name for name in names if _DATA.match(name))
    mixed = [name for name in found if _MIXED.search(name)]
    if not found or mixed:
        why = (
            f"{mixed[0]!r} may hold more than data parallelism"
            if mixed
            else "none of the names begins with dp, data, fsdp or hsdp"
        )
        raise BadOption(
            f"The dimensions of the mesh are {', '.join(map(repr, names))}, and {why}, so it is not known which ranks "
            "need the same batches. Name the dimensions over which the data is split: "
            f"data_dims=({names[0]!r},); or data_dims=() if all ranks need the same batches."
        )
    return found


def check_data_dims(data_dims: object, names: Sequence[str]) -> tuple[str, ...]:
    """Return the user's `data_dims=` as a tuple. Raises BadOption: a name is unknown, or comes twice."""
    given = (data_dims,) if isinstance(data_dims, str) else data_dims
    if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise BadOption(
            f"data_dims={data_dims!r} is not a list of names. The dimensions of the mesh are "
            f"{', '.join(map(repr, names))}: name those over which the data is split."
        )
    unknown = [name for name in given if name not in names]
    if unknown:
        raise BadOption(
            f"data_dims names {unknown[0]!r}, but the dimensions of the mesh are {', '.join(map(repr, names))}. If "
            "that is a flattened dimension, name the dimensions that it was made of."
        )
    if len(set(given)) < len(given):
        raise BadOption(f"data_dims={tuple(given)!r} names a dimension twice. Name each dimension once.")
    return tuple(given)


def data_rank_of(
    grid: NDArray[np.int64], names: Sequence[str], data_dims: Sequence[str], rank: int
) -> tuple[int, int, tuple[int, ...]]:
    """Return the data rank of a world rank, the number of data ranks, and the world ranks with the same data rank.

    The data rank is the row-major number of the rank's coordinates in `data_dims`, in the order in which they are
    given.

    Args:
        grid: the world ranks, as the mesh arranges them.
        names: the names of its dimensions.
        data_dims: those over which the data is split.
        rank: a world rank in the grid.

    Example:
        >>> data_rank_of(np.arange(8).reshape(2, 2, 2), ("dp", "cp", "tp"), ("dp",), rank=5)
        (1, 2, (4, 5, 6, 7))
    """
    axes = [names.index(name) for name in data_dims]
    others = [axis for axis in range(grid.ndim) if axis not in axes]
    count = int(np.prod([grid.shape[axis] for axis in axes], dtype=np.int64))
    by_data = grid.transpose(axes + others).reshape(count, -1)
    data_rank = int(np.argwhere(by_data == rank)[0][0])
    return data_rank, count, tuple(sorted(by_data[data_rank].tolist()))


# Any: a torch DeviceMesh; torch is not imported here.
def grid_of(mesh: Any, rank: int, world_size: int) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the world ranks of a device mesh, and the names of its dimensions.

    Raises:
        BadOption: it is no mesh of all ranks with names.
    """
    grid, names = getattr(mesh, "mesh", None), getattr(mesh, "mesh_dim_names", None)
    if grid is None or not hasattr(mesh, "get_coordinate"):
        raise BadOption(
            f"mesh={mesh!r:.200} is not a torch DeviceMesh. Pass the result of "
            "torch.distributed.device_mesh.init_device_mesh(); without one, pass rank= and world_size=."
        )
    if not names:
        raise BadOption(
            f"The mesh of shape {tuple(grid.shape)} has no names, so it is not known over which of its dimensions the "
            'data is split. Give them names: init_device_mesh(..., mesh_dim_names=("dp", "tp")).'
        )
    array = np.asarray(grid.tolist(), dtype=np.int64)
    if rank not in array:
        raise BadOption(
            f"This is rank {rank}, and the mesh has only the ranks {array.ravel().tolist()}. Give the loader a "
            "mesh of all ranks, or make it only on ranks of the mesh, with rank= and world_size=."
        )
    if sorted(array.ravel().tolist()) != list(range(world_size)):
        raise BadOption(
            f"The mesh has {array.size} of the {world_size} ranks of the process group. Pass the whole mesh, not a "
            'part of it such as mesh["dp"], and name its data dimensions with data_dims=. Or pass rank= and '
            "world_size=."
        )
    return array, tuple(names)
