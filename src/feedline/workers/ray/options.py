"""What Ray is to be told of the workers, in Ray's words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from feedline.errors import BadOption


@dataclass(frozen=True)
class RayOptions:
    """Workers that are Ray actors, and where they run: `engine=RayOptions(num_cpus=2)`. `engine="ray"` is the default.

    Raises:
        BadOption: a number is not one, or too small.

    Example:
        >>> RayOptions(num_cpus=0.5, resources={"decoder": 1}).resources
        {'decoder': 1}
    """

    num_cpus: float = 1.0
    """CPUs that Ray reserves for each worker."""
    resources: Mapping[str, float] | None = None
    """Custom resources for each worker."""
    scheduling_strategy: Any = None  # Any: an object of Ray's, or its name
    """"SPREAD", or an object of `ray.util.scheduling_strategies`, such as one that names a placement group."""
    address: str | None = None
    """Of a cluster to join, unless the program has joined one. None: RAY_ADDRESS; without that a local cluster."""
    pool: str | None = None
    """A name: all loaders of the cluster with it share its actors."""
    start_timeout_s: float = 300.0
    """How long Ray may take to find a place for a worker and to start it."""

    def __post_init__(self) -> None:
        for name, least in (("num_cpus", 0.0), ("start_timeout_s", 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.inf > value >= least:
                raise BadOption(f"{name}={value!r} is not a number of at least {least:g}.")
        for name in ("address", "pool"):
            text = getattr(self, name)
            if text is not None and (not isinstance(text, str) or not text):
                raise BadOption(f"{name}={text!r} is not a text with something in it.")

    @property
    def needs(self) -> dict[str, float]:
        """What each worker takes of a node, by Ray's names."""
        return {"CPU": self.num_cpus, **(self.resources or {})}
