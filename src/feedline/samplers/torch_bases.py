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

from types import ModuleType

from feedline.errors import OptionWarning, warn_user
from feedline.samplers.batch import BatchSampler
from feedline.samplers.distributed import BatchIndices, Distributed
from feedline.samplers.plain import RandomSampler, SequentialSampler, SubsetRandomSampler
from feedline.samplers.weighted import WeightedRandomSampler
from feedline.system.optional import when_imported

_BASES: dict[type, str] = {
    BatchSampler: "BatchSampler",
    BatchIndices: "DistributedSampler",
    Distributed: "DistributedSampler",
    RandomSampler: "RandomSampler",
    SequentialSampler: "SequentialSampler",
    SubsetRandomSampler: "SubsetRandomSampler",
    WeightedRandomSampler: "WeightedRandomSampler",
}
"""torch's name for each class."""


def add_torch_bases() -> None:
    """Make torch's samplers bases of feedline's, now or when torch is imported."""
    when_imported("torch.utils.data", _add)


def _add(torch_data: ModuleType) -> None:
    for kind, name in _BASES.items():
        theirs = getattr(torch_data, name)
        if issubclass(kind, theirs):
            continue
        try:
            kind.__bases__ = (*kind.__bases__, theirs)
        except TypeError as exc:  # an import must not fail for this
            warn_user(
                f"{kind.__name__} cannot become a subclass of torch's {name}, because of a class that is derived from "
                f"both ({exc}). Frameworks will not recognise it. In that class, put feedline's sampler first.",
                OptionWarning,
            )
