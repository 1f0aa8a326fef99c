"""Which rank this process is, among how many."""

from __future__ import annotations

import os
import sys

from feedline.errors import BadOption
from feedline.types import Share


def own_share(rank: int | None, world_size: int | None, tail: str) -> Share:
    """Return the share of this process. What is None comes from torch's process group, else from the environment.

    torch is asked only if the program has imported it and initialised a group. RANK and WORLD_SIZE are what torchrun
    and most other launchers set; without them there is one rank.

    Raises:
        BadOption: the values do not fit together, or a variable does not hold a number.
    """
    if rank is None or world_size is None:
        found_rank, found_size = _from_torch() or _from_environment()
        rank = found_rank if rank is None else rank
        world_size = found_size if world_size is None else world_size
    return Share(rank, world_size, tail)


def share_if_known() -> Share:
    """Return the share of this process, or the whole if the environment makes no sense: nobody asked for ranks."""
    try:
        return own_share(None, None, "pad")
    except BadOption:
        return Share()


def _from_torch() -> tuple[int, int] | None:
    torch = sys.modules.get("torch")
    group = getattr(torch, "distributed", None)
    if group is None or not group.is_available() or not group.is_initialized():
        return None
    return group.get_rank(), group.get_world_size()


def _from_environment() -> tuple[int, int]:
    names = ("RANK", "WORLD_SIZE")
    given = [name for name in names if os.environ.get(name, "") != ""]
    if not given:
        return 0, 1
    if given == ["WORLD_SIZE"] and os.environ["WORLD_SIZE"] == "1":
        return 0, 1
    if len(given) == 1:
        (missing,) = set(names) - set(given)
        raise BadOption(
            f"The environment has {given[0]}={os.environ[given[0]]!r} but no {missing}, and both are needed to know "
            f"the share of this process. Set {missing} too, or pass rank and world_size."
        )
    rank, world_size = (_number(name) for name in names)
    return rank, world_size


def _number(name: str) -> int:
    text = os.environ[name]
    try:
        return int(text)
    except ValueError:
        raise BadOption(
            f"The environment variable {name}={text!r} is not an integer. Launchers set it to a number: correct it, or "
            "pass rank and world_size."
        ) from None
