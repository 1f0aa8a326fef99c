"""Which rank this process is, among how many."""

from __future__ import annotations

import os
import sys

from feedline.errors import BadOption
from feedline.types import Share

_NAMES = ("RANK", "WORLD_SIZE")


def own_share(rank: int | None, world_size: int | None, tail: str) -> Share:
    """Return the share of this process. What is None comes from torch's process group, JAX's, or the environment.

    torch and JAX are asked only if the program has imported them and initialised a group. RANK and WORLD_SIZE are what
    torchrun and most other launchers set; without them there is one rank.

    Raises:
        BadOption: the values do not fit together, or a variable does not hold a number.
    """
    if rank is None or world_size is None:
        found_rank, found_size = _from_group() or _from_environment() or (0, 1)
        rank = found_rank if rank is None else rank
        world_size = found_size if world_size is None else world_size
    return Share(rank, world_size, tail)


def share_if_known() -> Share:
    """Return the share of this process, or the whole if the environment makes no sense: nobody asked for ranks."""
    try:
        return own_share(None, None, "pad")
    except BadOption:
        return Share()


def rank_if_known() -> tuple[int, int] | None:
    """Return rank and number of ranks; None if neither a process group nor the environment says so.

    Raises:
        BadOption: the environment makes no sense.
    """
    found = _from_group()
    if found is not None:
        return found
    try:
        found = _from_environment()
        return None if found is None else (Share(*found).rank, found[1])
    except BadOption as exc:
        given = " and ".join(f"{name}={os.environ.get(name, '')!r}" for name in _NAMES)
        raise BadOption(
            f"The environment has {given}, which do not say which of how many ranks this process is, so that it is not "
            "known which samples are its own. Correct or unset them."
        ) from exc


def _from_group() -> tuple[int, int] | None:
    return _from_torch() or _from_jax()


def _from_torch() -> tuple[int, int] | None:
    torch = sys.modules.get("torch")
    group = getattr(torch, "distributed", None)
    if group is None or not group.is_available() or not group.is_initialized():
        return None
    return group.get_rank(), group.get_world_size()


def _from_jax() -> tuple[int, int] | None:
    jax = sys.modules.get("jax")
    group = getattr(jax, "distributed", None)
    is_initialized = getattr(group, "is_initialized", None)  # JAX 0.5 and later
    if jax is None or is_initialized is None or not is_initialized():
        return None
    # jax.process_index() starts the devices: it waits for all processes, and must not be called in a forked worker.
    # What it answers was known before.
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if state is None:
        return jax.process_index(), jax.process_count()
    return state.process_id, state.num_processes


def _from_environment() -> tuple[int, int] | None:
    given = [name for name in _NAMES if os.environ.get(name, "") != ""]
    if not given or (given == ["WORLD_SIZE"] and os.environ["WORLD_SIZE"] == "1"):
        return None
    if len(given) == 1:
        (missing,) = set(_NAMES) - set(given)
        raise BadOption(
            f"The environment has {given[0]}={os.environ[given[0]]!r} but no {missing}, and both are needed to know "
            f"the share of this process. Set {missing} too, or pass rank and world_size."
        )
    rank, world_size = (_number(name) for name in _NAMES)
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
