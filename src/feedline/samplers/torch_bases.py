"""Make feedline's samplers torch samplers for `isinstance` and `issubclass`, once the program imports torch.

Frameworks rely on that: they leave a torch DistributedSampler alone, replace a RandomSampler by one, and rebuild a
BatchSampler around another sampler. But feedline does not import torch for this, and torch may be imported after
feedline's classes, and even after samplers were created. So when torch is imported, its class becomes an additional
base of the corresponding class here. The alternatives fall short:

- A second set of classes, with torch's as bases: samplers created earlier would belong to the other set, and a pickle
  would name a class that the reading process may not have.
- `__instancecheck__` or `register`: they would have to be in torch's classes, which have no such metaclass.
- Checking for torch whenever a sampler is created: this would miss samplers created before torch was imported.

feedline's own bases come first, so torch's methods are never used. Each class here has a base other than `object`,
because Python does not accept a second base beside `object`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TypeVar

from feedline.errors import OptionWarning, warn_user
from feedline.system.optional import when_imported

K = TypeVar("K", bound=type)


def with_torch_base(name: str) -> Callable[[K], K]:
    """Make torch's sampler of this name a base of the class, now or when torch is imported."""

    def named(kind: K) -> K:
        when_imported("torch.utils.data", partial(_add, kind, name))
        return kind

    return named


def _add(kind: type, name: str, torch_data: ModuleType) -> None:
    theirs = getattr(torch_data, name)
    if issubclass(kind, theirs):
        return
    try:
        kind.__bases__ = (*kind.__bases__, theirs)
    except TypeError as exc:  # an import must not fail for this
        warn_user(
            f"{kind.__name__} cannot become a subclass of torch's {name}, because of a class that is derived from "
            f"both ({exc}). Frameworks will not recognise it. In that class, put feedline's sampler first.",
            OptionWarning,
        )
