"""The options that Ray gets for each worker, in Ray's terms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from feedline.errors import BadOption


@dataclass(frozen=True)
class RayOptions:
    """Resources and placement of Ray workers: `engine=RayOptions(num_cpus=2)`. `engine="ray"` uses the defaults.

    Raises:
        BadOption: a value has the wrong type, is too small or is empty.

    Example:
        >>> RayOptions(num_cpus=0.5, resources={"decoder": 1}).resources
        {'decoder': 1}
    """

    num_cpus: float = 1.0
    """CPUs that Ray reserves for each worker."""
    resources: Mapping[str, float] | None = None
    """Custom resources for each worker."""
    scheduling_strategy: object = None  # of Ray's, or its name
    """"SPREAD", or an object of `ray.util.scheduling_strategies`, such as one that names a placement group."""
    address: str | None = None
    """The cluster to join, unless the program has joined one. None: RAY_ADDRESS if it is set, else a local cluster."""
    start_timeout_s: float = 300.0
    """How long Ray may take to place and start a worker."""

    def __post_init__(self) -> None:
        for name, least in (("num_cpus", 0.0), ("start_timeout_s", 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.inf > value >= least:
                raise BadOption(f"{name}={value!r} is not a number of at least {least:g}.")
        address: object = self.address
        if address is not None and (not isinstance(address, str) or not address):
            raise BadOption(f"address={address!r} is not a non-empty string.")

    @property
    def needs(self) -> dict[str, float]:
        """The resources that each worker takes, by Ray's names."""
        return {"CPU": self.num_cpus, **(self.resources or {})}
