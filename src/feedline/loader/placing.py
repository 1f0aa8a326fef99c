"""The data rank of a loader that was given `mesh=`, or `rank=` and `world_size=`: its share of samplers and streams.

Only such loaders import this module.
"""

from __future__ import annotations

import sys
from typing import Any

from feedline import samplers
from feedline.abc.sampler import Ordered, draw_seed
from feedline.abc.source import ShardedSource, StreamSource, layers_of_dataset
from feedline.errors import BadOption
from feedline.mesh.data_rank import DataRank, check_data_dims, data_dims_of, data_rank_of, grid_of
from feedline.order.sharding import layers_of, ranks_of_stream
from feedline.system.ranks import Share

_NAMES_OF_RANKS = (
    ("rank", "num_replicas"),  # torch
    ("process_index", "num_processes"),  # Accelerate
    ("data_parallel_rank", "data_parallel_size"),  # Megatron-LM
    ("rank", "world_size"),
)
"""The attributes in which distributed samplers keep their rank and the number of ranks."""

DEFAULT_CHECK = 100
"""Batches between two comparisons with peers: their cost, about that of one small all-gather on CPU, is spread over
many steps, and a difference costs at most so many of them. A guess.
"""


# Any, here and below: a torch DeviceMesh, datasets and samplers of any class.
def data_rank(
    mesh: Any, data_dims: object, rank: int | None, world_size: int | None, *, check: int | None, timeout_s: float
) -> DataRank:
    """Return the data rank that a loader's arguments define.

    Raises:
        BadOption: they contradict each other or the process group.
    """
    if mesh is None:
        if data_dims is not None or check:
            name, value = ("data_dims", data_dims) if data_dims is not None else ("check", check)
            raise BadOption(f"{name}={value!r} needs mesh=: without a mesh, it is not known which ranks share a batch.")
        if rank is None or world_size is None:
            missing = "rank" if rank is None else "world_size"
            raise BadOption(f"{missing}= is missing. Pass both rank= and world_size=, or neither.")
        share = Share(rank, world_size)
        return DataRank(int(share.rank), int(share.world_size))
    if rank is not None or world_size is not None:
        name, value = ("rank", rank) if rank is not None else ("world_size", world_size)
        raise BadOption(
            f"mesh= and {name}={value!r} were both given, and the mesh says which data rank this is. Drop one."
        )
    group = getattr(sys.modules.get("torch"), "distributed", None)
    if group is None or not group.is_available() or not group.is_initialized():
        raise BadOption(
            "mesh= needs an initialised process group, and this process has none. Call "
            "torch.distributed.init_process_group() first, or pass rank= and world_size=."
        )
    if timeout_s == 0:
        raise BadOption("mesh_timeout_s=0 leaves other ranks no time. Give the seconds to wait for them.")
    own = group.get_rank()
    grid, names = grid_of(mesh, own, group.get_world_size())
    dims = data_dims_of(names) if data_dims is None else check_data_dims(data_dims, names)
    number, count, peers = data_rank_of(grid, names, dims, own)
    return DataRank(number, count, peers, DEFAULT_CHECK if check is None else check, timeout_s)


def common_seed(place: DataRank, seed: int | None, generator: object, dataset: Any, *given: Any) -> int:
    """Return the seed of all ranks: the one given, or one that rank 0 draws. With a mesh, waits for the other ranks.

    `given` are samplers, whose own seeds have to be equal, too. Without a mesh, ranks cannot agree on a seed, so it is
    0, as with `DistributedSampler`.
    """
    if not place.peers:
        if generator is not None:
            raise BadOption(
                "generator= was given with rank= and world_size=, and each rank would draw an order of its own. Give "
                "seed= instead."
            )
        return 0 if seed is None else seed
    if seed is not None and not place.check:
        return seed
    from feedline.mesh.meeting import agree

    own = draw_seed(generator) if seed is None else seed  # on all ranks, whose generators remain equal
    length = _length_of(dataset) if hasattr(dataset, "__getitem__") else None
    about: dict[str, object] = {
        "the dataset": type(dataset).__name__,
        "the length of the dataset": length,
        "seed": seed,
        "the seed of the sampler": [
            layer.whole().seed for one in given for layer in layers_of(one) if isinstance(layer, Ordered)
        ],
        "the number of data ranks": place.world_size,
        "check": place.check,
    }
    return agree(place, about, own)


def _length_of(dataset: Any) -> int | None:
    """Return the length of a dataset; None if it has none."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def own_samplers(place: DataRank, dataset: Any, shuffle: object, sampler: Any, batch_sampler: Any) -> tuple[Any, Any]:
    """Return the sampler and the batch sampler with which a map-style dataset's loader gets this data rank's share."""
    if batch_sampler is not None:
        return sampler, _own(place, batch_sampler)
    if sampler is None:
        kind = samplers.RandomSampler if shuffle and len(dataset) else samplers.SequentialSampler
        return _own(place, kind(dataset)), None
    return _own(place, sampler), None


def own_stream(place: DataRank, dataset: Any, shard: object) -> None:
    """Make an iterable dataset read this data rank's part, if it splits itself.

    Raises:
        BadOption: it cannot be split in this way.
    """
    kind, size = type(dataset).__name__, place.world_size
    split = ranks_of_stream(dataset)
    if split is not None:
        own = dataset._distributed  # not public
        if ((0, 1) if own is None else (own.rank, own.world_size)) != (place.rank, size):
            found = (
                "it is not split over ranks" if own is None else f"it is split for rank {own.rank} of {own.world_size}"
            )
            raise BadOption(
                f"This loader has {place}, but its dataset splits itself, and {found}. Pass split_dataset_by_node("
                f"dataset, rank={place.rank}, world_size={size}), from datasets.distributed."
            )
        return
    aware = [layer for layer in layers_of_dataset(dataset) if hasattr(layer, "set_ranks")]
    for layer in aware:
        layer.set_ranks(place.rank, size)
    if aware or isinstance(dataset, StreamSource):
        return
    if isinstance(dataset, ShardedSource):
        raise BadOption(
            f"{kind} splits itself over ranks, and has no method set_ranks(rank, count), so it cannot be told that it "
            f"has {place}. Give it one, or use a loader without mesh= whose dataset is already this data rank's part."
        )
    if shard is None and size > 1 and not _is_pipe(dataset):
        raise BadOption(
            f"This loader has {place}, and {kind} is iterable: it is not known who splits its samples. Use shard=True "
            "if each rank iterates over all samples, so that the loader splits them; shard=False if the dataset yields "
            "only the samples of its own data rank."
        )


def _is_pipe(dataset: object) -> bool:
    """True for one of torch's data pipes: they split themselves, and the loader passes the data rank to them."""
    kind = getattr(sys.modules.get("torch.utils.data"), "IterDataPipe", None)
    return kind is not None and isinstance(dataset, kind)


def _own(place: DataRank, sampler: Any) -> Any:
    """Return a sampler's share; the sampler itself if it is distributed in this way already."""
    if getattr(sampler, "deals_to_ranks", False) and not sampler.rank_is_given:
        return samplers.distribute(sampler, place.rank, place.world_size)
    is_share = False
    for layer in layers_of(sampler):
        found = _share_of(layer)
        if found is not None and found != (place.rank, place.world_size):
            raise BadOption(
                f"The loader has {place}, but its {type(layer).__name__} is for rank {found[0]} of {found[1]}: ranks "
                "that need the same batches would get different ones. Give the loader the sampler from which that was "
                f"made, which it distributes itself; or make it with rank={place.rank} and {place.world_size} ranks."
            )
        is_share = is_share or found is not None
        if isinstance(layer, Ordered) and layer.generator is not None and layer.whole().seed is None:
            raise BadOption(
                f"{type(layer).__name__} has a generator, from which each rank would draw an order of its own. Give "
                "the sampler or the loader a seed= instead."
            )
    return sampler if is_share else samplers.distribute(sampler, place.rank, place.world_size)


def _share_of(layer: Any) -> tuple[int, int] | None:
    """Return the rank and the number of ranks that a sampler is for; None if it is not distributed."""
    share = getattr(layer, "share", None)
    if isinstance(share, Share):
        return int(share.rank), int(share.world_size)
    for rank, count in _NAMES_OF_RANKS:
        if isinstance(getattr(layer, count, None), int):
            return getattr(layer, rank), getattr(layer, count)
    return None
