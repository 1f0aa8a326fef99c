"""Which rank this process is, as far as it knows."""

from __future__ import annotations

import os
import sys

from feedline.errors import BadOption


def rank_and_size() -> tuple[int, int] | None:
    """Return rank and number of ranks, from torch's process group or the environment; None if neither says so.

    Raises:
        BadOption: RANK and WORLD_SIZE are set and make no sense.
    """
    group = getattr(sys.modules.get("torch"), "distributed", None)
    if group is not None and group.is_available() and group.is_initialized():
        return group.get_rank(), group.get_world_size()
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if not rank and size in ("", "1"):
        return None
    if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
        raise BadOption(
            f"The environment has RANK={rank!r} and WORLD_SIZE={size!r}, which do not say which of how many ranks this "
            "process is, so that it is not known which shards are its own. Correct or unset them."
        )
    return int(rank), int(size)
