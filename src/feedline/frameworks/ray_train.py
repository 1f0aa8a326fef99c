"""Keep feedline's loaders when Ray Train prepares them.

By default, `prepare_data_loader` builds a torch loader with a DistributedSampler from the given loader. With
`add_dist_sampler=False`, it leaves the loader unchanged and only moves batches to the device. So we shard the samples
first and pass that argument. We rely only on this public function and its argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType

from feedline.abc.framework import Rebuilding
from feedline.frameworks.substitution import substitute, wrapped
from feedline.system.optional import when_imported


def keep_loaders(rebuilding: Rebuilding) -> None:
    """Keep loaders feedline's when Ray Train prepares them."""

    def prepare(function: Callable[..., object], *arguments: object, **options: object) -> object:
        bound = inspect.signature(function).bind(*arguments, **options)
        bound.apply_defaults()
        loader = bound.arguments["data_loader"]
        if isinstance(loader, rebuilding.kind) and bound.arguments["add_dist_sampler"]:
            bound.arguments.update(data_loader=rebuilding.own_share(loader), add_dist_sampler=False)
        return function(*bound.args, **bound.kwargs)

    def wrap(module: ModuleType) -> None:
        substitute(module.prepare_data_loader, wrapped(module.prepare_data_loader, prepare))

    for name in ("ray.train.torch.train_loop_utils", "ray.train.v2.torch.train_loop_utils"):
        when_imported(name, wrap)
