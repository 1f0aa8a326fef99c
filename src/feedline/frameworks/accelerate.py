"""Keep feedline's loaders when Accelerate prepares them.

`prepare_data_loader` and `skip_first_batches` build a torch loader from the attributes of the given loader, and put it
into a wrapper as `base_dataloader`. We let them do so, and then replace the torch loader with a copy of the given
loader that has the same dataset, sampler and so on. Accelerate still handles splitting, devices and gradient
accumulation. We rely only on the two public functions and the attribute.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

from feedline.abc.framework import Rebuilding
from feedline.errors import BadOption, OptionWarning, StateWarning, warn_user
from feedline.frameworks.substitution import substitute, wrapped
from feedline.frameworks.torch_samplers import sampler_behind, skipped_by
from feedline.system.optional import when_imported
from feedline.system.ranks import own_share
from feedline.types import State

_KEEPS = "Call feedline.install() at the start of the program to keep at least feedline's engine."


def keep_loaders(rebuilding: Rebuilding) -> None:
    """Keep loaders feedline's when Accelerate prepares them."""
    when_imported("accelerate.data_loader", _Adapter(rebuilding).wrap_functions)


class _Adapter:
    """What Accelerate's functions and wrappers do with loaders of feedline's. Each method takes the original first."""

    def __init__(self, rebuilding: Rebuilding) -> None:
        self._rebuilding = rebuilding

    def wrap_functions(self, module: ModuleType) -> None:
        wrapper: Any = getattr(module, "DataLoaderAdapter", None)
        if hasattr(wrapper, "load_state_dict"):
            wrapper.state_dict = wrapped(wrapper.state_dict, self.state_dict)
            wrapper.load_state_dict = wrapped(wrapper.load_state_dict, self.load_state_dict)
        for name, ours in (("prepare_data_loader", self.prepare), ("skip_first_batches", self.skip_first)):
            function = getattr(module, name, None)
            if function is None:
                warn_user(f"This version of accelerate has no {name}, which feedline wraps. {_KEEPS}", OptionWarning)
            else:
                substitute(function, wrapped(function, ours))

    def prepare(self, function: Callable[..., object], *arguments: object, **options: object) -> object:
        bound = inspect.signature(function).bind(*arguments, **options)
        loader = _inner(bound.arguments["dataloader"])
        if not isinstance(loader, self._rebuilding.kind):
            return function(*arguments, **options)
        bound.apply_defaults()
        given = bound.arguments
        stateful = given.get("use_stateful_dataloader", False)
        given["use_stateful_dataloader"] = False  # torchdata's loader would start workers, only to be replaced
        is_sharded = self._rebuilding.is_sharded(loader)
        if is_sharded:
            loader = given["dataloader"] = _split_already(loader, given, self._rebuilding)
        sampler: Any = getattr(loader.batch_sampler, "sampler", None)
        generator = getattr(sampler, "generator", None)
        follows = getattr(sampler, "loader_seed", None) is not None  # other samplers do not know the loader's seed
        if follows:
            given["use_seedable_sampler"] = False  # the loader's seed determines the order
        prepared = _exchanged(loader, function(*bound.args, **bound.kwargs), self._rebuilding, stateful=stateful)
        if follows and generator is None and getattr(sampler, "generator", None) is not None:
            sampler.generator = None  # Accelerate added a generator, for ranks without a common seed
            prepared.synchronized_generator = None
            prepared.rng_types = [one for one in prepared.rng_types or [] if str(one) != "generator"]
        if is_sharded:
            prepared._drop_last = True  # otherwise gather_for_metrics() drops samples that it takes for repeated ones
        if stateful and type(prepared).__name__ == "DataLoaderDispatcher" and prepared.state.num_processes > 1:
            warn_user(
                "use_stateful_dataloader=True does not work with dispatch_batches=True: rank 0 reads ahead for all "
                "ranks, and resuming in the middle of an epoch skips the batches that it has read. Use "
                "dispatch_batches=False, and shard=True if the dataset is iterable.",
                StateWarning,
            )
        return prepared

    def state_dict(self, function: Callable[[Any], State], wrapper: Any) -> State:
        loader = _inner(wrapper)
        if not isinstance(loader, self._rebuilding.kind):
            return function(wrapper)
        if not wrapper.use_stateful_dataloader:
            raise BadOption(
                "Accelerate has not kept the state that belongs to the training loop: it reads one batch ahead. Use "
                "Accelerator(dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))."
            )
        has_state = "dl_state_dict" in vars(wrapper)  # otherwise no iteration has started yet
        state: State = dict(function(wrapper) if has_state else loader.state_dict())
        state.pop("_iterator_finished", None)  # Accelerate's addition: the loader's own state says whether it has ended
        return state

    def load_state_dict(self, function: Callable[[object, object], None], wrapper: Any, state: object) -> None:
        function(wrapper, state)
        loader = _inner(wrapper)
        if isinstance(loader, self._rebuilding.kind):
            wrapper.__dict__.pop("dl_state_dict", None)  # left over from an earlier iteration
            # Otherwise Accelerate resets the sampler to epoch 0.
            wrapper.iteration = self._rebuilding.coming_epoch(loader)

    def skip_first(
        self, function: Callable[..., object], dataloader: Any, *arguments: object, **options: object
    ) -> object:
        loader = _inner(dataloader)
        skipped = function(dataloader, *arguments, **options)
        if not isinstance(loader, self._rebuilding.kind):
            return skipped
        skipped = _exchanged(loader, skipped, self._rebuilding, stateful=False)
        if "iteration" in vars(skipped):  # the epoch, which Accelerate 1.10 does not copy
            skipped.iteration = dataloader.iteration
        sampler = sampler_behind(skipped_by(skipped.batch_sampler)[0])
        if hasattr(sampler, "set_epoch"):  # Accelerate's set_epoch does not look two wrappers deep
            skipped.batch_sampler.set_epoch = sampler.set_epoch
        return skipped


# Any, here and below: a loader of any class, and what Accelerate makes of it.
def _inner(dataloader: object) -> Any:
    """Return the loader inside one of Accelerate's wrappers, or the loader itself if it is not wrapped.

    A wrapper forwards attributes and passes `isinstance` checks as the loader's class, so look into its `__dict__`.
    """
    return getattr(dataloader, "__dict__", {}).get("base_dataloader", dataloader)


def _split_already(loader: Any, given: dict[str, Any], rebuilding: Rebuilding) -> Any:
    """Make Accelerate leave a loader whole that already splits its samples over the ranks."""
    count = given["num_processes"] or own_share(None, None, "pad").world_size
    mesh = given.get("torch_device_mesh")
    if mesh is not None:  # some ranks need the same samples
        names = mesh.mesh_dim_names or ()
        dims = tuple(name for name in ("dp_replicate", "dp_shard") if name in names)  # those that Accelerate reads
        loader = rebuilding.with_mesh(loader, mesh, dims)
        given["torch_device_mesh"] = None  # otherwise Accelerate would split the samples again
        count = math.prod(mesh[name].size() for name in dims)
    if given["dispatch_batches"] and count > 1:
        warn_user(
            "dispatch_batches=True has no effect: each rank of this loader reads its own share. To make rank 0 read "
            "and dispatch all batches, use shard=False and a dataset that does not split itself.",
            OptionWarning,
        )
    given.update(num_processes=1, process_index=0, dispatch_batches=False)
    if not given["split_batches"]:
        return loader
    given["split_batches"] = False
    if loader.batch_size is None or loader.batch_size % count:
        raise BadOption(
            f"split_batches=True cannot divide batches among {count} processes: the batch size is {loader.batch_size}. "
            "Use a multiple of the number of processes, or leave split_batches out."
        )
    return rebuilding.with_batch_size(loader, loader.batch_size // count)


def _exchanged(loader: Any, made: Any, rebuilding: Rebuilding, *, stateful: bool) -> Any:
    """Return the loader that Accelerate made, with feedline's loader in it instead of torch's."""
    inner = _inner(made)
    if inner is made:
        if type(made).__module__.startswith("accelerate"):  # an unknown wrapper
            warn_user(f"accelerate's {type(made).__name__} replaced a feedline loader. {_KEEPS}", OptionWarning)
            return made
        return rebuilding.with_torch_parts(loader, made)
    made.base_dataloader = rebuilding.with_torch_parts(loader, inner)
    made.use_stateful_dataloader = stateful
    made.adjust_state_dict_for_prefetch = _leave_state  # it expects the fields of torchdata's states
    if not stateful:
        made._update_state_dict = _leave_state  # Accelerate would take a state for every batch, which is never used
    return made


def _leave_state() -> None:
    """Leave the state unchanged: feedline's states count delivered batches, however many were made ahead."""
