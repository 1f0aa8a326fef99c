"""Check, as far as visible, that each rank gets its own samples, and different ones in every epoch.

A loader without a distributed sampler delivers the whole dataset on every rank. That may be intended: a dataset may
hold only the samples of its own rank, and ranks that each hold a part of one model need the same samples. So a loader
does not warn if an attribute of the dataset or sampler is about ranks. Nor does it warn where the user's own code
decides, in a stream or in a sampler of another class than torch's and feedline's: that code may ask for its rank.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from feedline.abc.source import layers_of_dataset
from feedline.errors import DataWarning, warn_user
from feedline.order.sharding import layers_of, rank_count, ranks_of_stream
from feedline.system.ranks import Share

_KNOWS_RANKS = re.compile(
    "(^|_)(rank|ranks|world|replicas?|num_shards|shard_id|shard_index|process_index|num_processes|distributed"
    "|data_parallel)(_|$)",
    re.IGNORECASE,
)
"""Names of attributes that only objects dealing with ranks or shards have."""

_KNOWN = ("builtins", "torch", "feedline", "numpy")
"""Packages whose samplers are known to ignore ranks, unless they are distributed ones."""

_SHARE_OUT = ("webdataset", "wids", "litdata", "streaming")
"""Packages whose datasets shard themselves, or cannot be read by several ranks."""


class Sharing(NamedTuple):
    """What decides which rank gets which samples."""

    sampler: object
    """The loader's sampler, with any samplers inside it; None for iterable datasets."""
    form: str
    """The argument that would change it: "sampler", "batch_sampler", or "shard" for iterable datasets."""
    is_intended: bool = False
    """True if the loader or the dataset is known to shard samples, or sharding was turned off."""
    is_split: bool = False
    """True if a stream is sharded over all ranks of the process group."""


class RankWatch:
    """Warns the user of a loader about problems with ranks, about each of them once.

    Args:
        is_over: True if the code that uses the loader takes care of ranks, so that no warning is needed.
    """

    def __init__(self, *, is_over: bool = False) -> None:
        self.is_over = is_over
        self._has_warned_of_repeats = False
        self._has_warned_of_epochs = False
        self._has_ended = False
        """True if an epoch was completed."""

    def begin(self, dataset: object, sharing: Sharing, share: Callable[[], Share], *, has_ended: bool) -> None:
        """Warn if an iteration that begins now delivers the same samples on every rank.

        `share` returns the share of this process; `has_ended` is true if the last iteration was completed.
        """
        self._has_ended = self._has_ended or has_ended
        if self.is_over or self._has_warned_of_repeats:
            return
        if sharing.is_split:
            self._warn_of_mesh(share)
        if sharing.is_intended:
            return
        count = share().world_size
        if count == 1:
            return
        layers = layers_of(sharing.sampler)
        if any(rank_count(layer) == count for layer in layers):
            self._warn_of_mesh(share)
        if any(rank_count(layer) > 1 or _may_know_ranks(layer) for layer in layers):
            return
        is_known = ranks_of_stream(dataset) is not None  # known to be split over workers, not over ranks
        if not is_known and (sharing.form == "shard" or any(map(_has_ranks, layers_of_dataset(dataset)))):
            return
        if sharing.form == "sampler" and _is_a_part(dataset, layers[-1], count):
            return
        self._has_warned_of_repeats = True
        warn_user(
            f"Each of the {count} ranks delivers the whole dataset: its samples are not split over the ranks. "
            f"{_mended(sharing)} If every rank needs all samples, if only one rank iterates, or if the "
            "dataset is already this rank's part, silence this warning: "
            'warnings.filterwarnings("ignore", "Each of the", feedline.errors.DataWarning).',
            DataWarning,
        )

    def _warn_of_mesh(self, share: Callable[[], Share]) -> None:
        """Warn if samples are split over more ranks than the device mesh in use has data ranks."""
        mesh = _mesh_in_use()
        if mesh is None:
            return
        count = share().world_size
        if mesh.size() != count:
            return
        names = mesh.mesh_dim_names or ()
        data = [name for name in names if name.startswith(("dp", "data", "fsdp", "hsdp"))]
        others = [name for name in names if name not in data and mesh[name].size() > 1]
        if not data or not others:
            return
        self._has_warned_of_repeats = True
        warn_user(
            f"The device mesh in use has the dimensions {', '.join(map(repr, names))}, and this loader splits its "
            f"samples over all {count} ranks, so ranks that differ only in {', '.join(map(repr, others))} get "
            "different batches. If they need the same ones, give the loader mesh=, and a sampler that is not "
            "distributed. If not, silence this warning: "
            'warnings.filterwarnings("ignore", "The device mesh", feedline.errors.DataWarning).',
            DataWarning,
        )

    def first_batch(self, sharing: Sharing) -> None:
        """Warn if this epoch has the same order as the last one, because `set_epoch` was not called.

        Called when the first batch is requested: frameworks make the iterator before they set the epoch.
        """
        if self.is_over or self._has_warned_of_epochs or not self._has_ended:
            return
        distributed = getattr(sys.modules.get("torch.utils.data"), "DistributedSampler", None)
        for layer in layers_of(sharing.sampler):
            # feedline's samplers, and some derived from torch's, count epochs themselves.
            if getattr(type(layer), "__iter__", None) is not getattr(distributed, "__iter__", layer):
                continue
            if layer.shuffle and layer.epoch == 0:
                self._has_warned_of_epochs = True
                warn_user(
                    "This epoch has the same order as the one before: the DistributedSampler is still in epoch 0. Call "
                    "loader.set_epoch(epoch), or sampler.set_epoch(epoch), before each epoch; or use "
                    "feedline.samplers.DistributedSampler, which counts epochs itself.",
                    DataWarning,
                )
                return


# Any: a torch DeviceMesh.
def _mesh_in_use() -> Any:
    """Return the device mesh that the program has made the current one, or Accelerate's; None if there is none."""
    stack = getattr(
        getattr(sys.modules.get("torch.distributed.device_mesh"), "_mesh_resources", None), "mesh_stack", ()
    )
    if stack:
        return stack[-1]
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    return getattr(state, "_shared_state", {}).get("device_mesh")


def _mended(sharing: Sharing) -> str:
    """Return a sentence on what to write instead."""
    form = sharing.form
    if form == "shard":
        return "Use dataset = split_dataset_by_node(dataset, rank, world_size), from datasets.distributed."
    sampler = layers_of(sharing.sampler)[-1]
    is_plain = type(sampler).__module__.split(".")[0] in ("torch", "feedline")
    shuffle = {"SequentialSampler": "False", "RandomSampler": "True"}.get(type(sampler).__name__)
    if form == "sampler" and is_plain and shuffle and not getattr(sampler, "replacement", False):
        instead = " in place of shuffle=True" if shuffle == "True" else ""
        return f"Give the loader sampler=feedline.samplers.DistributedSampler(dataset, shuffle={shuffle}){instead}."
    return f"Give the loader {form}=feedline.samplers.distribute({form})."


def _may_know_ranks(sampler: object) -> bool:
    return type(sampler).__module__.split(".")[0] not in _KNOWN or _has_ranks(sampler)


def _has_ranks(value: object) -> bool:
    """True if the package of an object, or the name of one of its attributes, is about ranks."""
    if type(value).__module__.split(".")[0] in _SHARE_OUT:
        return True
    return any(_KNOWS_RANKS.search(name) for name in getattr(value, "__dict__", {}))


# Any: a dataset and a sampler of any type.
def _is_a_part(dataset: Any, sampler: Any, count: int) -> bool:
    """True if the sampler yields so small a part of the dataset that it may be the part of this rank."""
    whole = dataset.dataset if hasattr(dataset, "dataset") and hasattr(dataset, "indices") else dataset
    try:
        return len(sampler) < len(whole) and len(sampler) * count <= len(whole) + count
    except (TypeError, NotImplementedError):  # one of them has no length
        return False
