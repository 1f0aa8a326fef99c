"""Keep feedline's loaders when Ray Train prepares them.

By default, `prepare_data_loader` builds a torch loader with a DistributedSampler from the given loader. With
`add_dist_sampler=False`, it leaves the loader unchanged and only moves batches to the device. So we shard the samples
first and pass that argument. We rely only on this public function and its argument.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType

from feedline.abc.framework import Rebuilding, TorchLoader
from feedline.frameworks.substitution import substitute
from feedline.system.optional import when_imported


def keep_loaders(kind: type[TorchLoader], rebuilding: Rebuilding) -> None:
    """Keep loaders of this class and its subclasses feedline's when Ray Train prepares them."""
    for name in ("ray.train.torch.train_loop_utils", "ray.train.v2.torch.train_loop_utils"):
        when_imported(name, functools.partial(_wrap_function, kind, rebuilding))


def _wrap_function(kind: type[TorchLoader], rebuilding: Rebuilding, module: ModuleType) -> None:
    function: Callable[..., object] = module.prepare_data_loader
    substitute(function, _prepare(function, kind, rebuilding))


def _prepare(function: Callable[..., object], kind: type[TorchLoader], rebuilding: Rebuilding) -> Callable[..., object]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def prepare_data_loader(*arguments: object, **options: object) -> object:
        bound = signature.bind(*arguments, **options)
        bound.apply_defaults()
        loader = bound.arguments["data_loader"]
        if isinstance(loader, kind) and bound.arguments["add_dist_sampler"]:
            bound.arguments.update(data_loader=rebuilding.own_share(loader), add_dist_sampler=False)
        return function(*bound.args, **bound.kwargs)

    return prepare_data_loader
