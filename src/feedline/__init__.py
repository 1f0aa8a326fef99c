"""feedline: a data loader for training that keeps the accelerator fed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feedline import abc, audio, collate, datasets, errors, faults, images, samplers, testing, text, video
    from feedline.datasets.derived.split import split
    from feedline.delivery.state.ranks import merge_states
    from feedline.loader.install import install, uninstall
    from feedline.loader.loader import Loader
    from feedline.loader.recorder import record
    from feedline.loader.torch import DataLoader, DataLoader2
    from feedline.memory.sharing.share import share
    from feedline.pipes.pipe import pipe
    from feedline.randomness.scope import rng, stage
    from feedline.tools.advise.diagnosis import doctor
    from feedline.tools.write.pack import pack
    from feedline.tools.write.precomputation import precompute
    from feedline.workers.ray.options import RayOptions

__all__ = [
    "DataLoader",
    "DataLoader2",
    "Loader",
    "RayOptions",
    "__version__",
    "abc",
    "audio",
    "collate",
    "datasets",
    "doctor",
    "errors",
    "faults",
    "images",
    "install",
    "merge_states",
    "pack",
    "pipe",
    "precompute",
    "record",
    "rng",
    "samplers",
    "share",
    "split",
    "stage",
    "testing",
    "text",
    "uninstall",
    "video",
]

__version__ = "1.0.0"

_PLACES = {
    "DataLoader": "feedline.loader.torch",
    "DataLoader2": "feedline.loader.torch",
    "Loader": "feedline.loader.loader",
    "RayOptions": "feedline.workers.ray.options",
    "abc": "feedline.abc",
    "audio": "feedline.audio",
    "collate": "feedline.collate",
    "datasets": "feedline.datasets",
    "doctor": "feedline.tools.advise.diagnosis",
    "errors": "feedline.errors",
    "faults": "feedline.faults",
    "images": "feedline.images",
    "install": "feedline.loader.install",
    "merge_states": "feedline.delivery.state.ranks",
    "pack": "feedline.tools.write.pack",
    "pipe": "feedline.pipes.pipe",
    "precompute": "feedline.tools.write.precomputation",
    "record": "feedline.loader.recorder",
    "rng": "feedline.randomness.scope",
    "samplers": "feedline.samplers",
    "share": "feedline.memory.sharing.share",
    "split": "feedline.datasets.derived.split",
    "stage": "feedline.randomness.scope",
    "testing": "feedline.testing",
    "text": "feedline.text",
    "uninstall": "feedline.loader.install",
    "video": "feedline.video",
}
"""Where each public name lives. Parts are imported when first used, so that `import feedline` loads no torch."""

_NEED_TORCH = ("DataLoader", "DataLoader2", "install", "uninstall")


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'feedline' has no attribute {name!r}")
    if name in _NEED_TORCH:
        from feedline.system.optional import require

        require("torch", extra="torch", purpose=f"feedline.{name}")
    module = importlib.import_module(place)
    value = module if place == f"feedline.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
