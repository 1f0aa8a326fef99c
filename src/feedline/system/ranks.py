"""The rank of this process, the number of ranks, and how many of them share its machine.

The first source in this list that knows the rank wins:

1. the arguments `rank` and `world_size`;
2. `torch.distributed`, if a group is initialised;
3. `jax.distributed`, if it is initialised;
4. the environment: `RANK` and `WORLD_SIZE` (torchrun and most launchers), then Open MPI, then PMI (MPICH, Intel MPI,
   Cray), then a step of SLURM.

A launcher may start others: srun starts one torchrun per node, which starts the ranks. So sources further down the
list may disagree, and they are not compared with those above.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption, DataWarning, warn_user

Tail: TypeAlias = Literal["pad", "drop", "exact"]
"""What ranks do at the end of an epoch whose samples do not divide evenly."""
TAILS: tuple[Tail, ...] = get_args(Tail)


@dataclass(frozen=True)
class Share:
    """The part of a common order that belongs to one rank: every `world_size`-th position, starting with `rank`.

    After the same number of steps the ranks together have consumed a prefix of the order, for any number of ranks.
    """

    rank: int = 0
    world_size: int = 1
    tail: str = "pad"
    """What happens to the remainder: "pad" starts the order again, "drop" leaves it out, "exact" gives it to the first
    ranks, so that the others have fewer."""

    def __post_init__(self) -> None:
        for name in ("rank", "world_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise BadOption(f"{name}={value!r} is not an integer.")
        if self.world_size < 1:
            raise BadOption(f"world_size={self.world_size} is less than 1: there is at least one rank.")
        if not 0 <= self.rank < self.world_size:
            raise BadOption(
                f"rank={self.rank} is not among the ranks 0 to {self.world_size - 1} of world_size={self.world_size}. "
                "Ranks are counted from 0."
            )
        if self.tail not in TAILS:
            raise BadOption(f"tail={self.tail!r} is not one of {', '.join(map(repr, TAILS))}.")

    def count(self, total: int) -> int:
        """Return how many of `total` positions belong to this rank."""
        if self.tail == "pad":
            return -(-total // self.world_size)
        if self.tail == "drop":
            return total // self.world_size
        return (total - self.rank + self.world_size - 1) // self.world_size

    def places(self, own: NDArray[np.int64], total: int | None) -> NDArray[np.int64]:
        """Map this rank's own positions to the common order of `total` positions (None: endless)."""
        places = own * self.world_size + self.rank
        return places if total is None or self.tail != "pad" else places % max(total, 1)


class _Launcher(NamedTuple):
    """The variables in which a launcher passes ranks to its processes."""

    rank: str
    world_size: str
    local_size: str


_ANY = _Launcher("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
# The number of tasks is that of the step, which only srun sets. A batch script and the shell of salloc have the
# SLURM_NTASKS of their job and a SLURM_PROCID of 0 as well, but are one process. The tasks of an array job
# (SLURM_ARRAY_TASK_ID) are separate jobs.
_SLURM = _Launcher("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE")
_MPI = (
    _Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    _Launcher("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
)
_PMIX_RANK = "PMIX_RANK"
"""Comes without the number of ranks. Open MPI and SLURM, which start processes with PMIx, set that themselves."""

_FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""SLURM step numbers from here on are not a user's srun: 0xFFFFFFFA is the interactive shell of salloc."""

_reported: set[str] = set()
"""Contradictions already reported in this process."""


def own_share(rank: int | None, world_size: int | None, tail: str) -> Share:
    """Return the share of this process. Arguments that are None are detected as described in the module docstring.

    torch and JAX are queried only if the program has imported them and initialised a group. If nothing is found, there
    is one rank.

    Raises:
        BadOption: the values do not fit together, or a variable does not hold a number.
    """
    if rank is None or world_size is None:
        found_rank, found_size = _from_group() or _from_environment() or (0, 1)
        rank = found_rank if rank is None else rank
        world_size = found_size if world_size is None else world_size
    return Share(rank, world_size, tail)


def share_if_known() -> Share:
    """Return the share of this process, or the whole if the environment is inconsistent: no ranks were requested."""
    try:
        return Share(*(_from_group() or _from_environment() or (0, 1)))
    except BadOption:
        return Share()


def share_of_group() -> Share | None:
    """Return the share of this process by its process group; None if there is none (yet)."""
    found = _from_group()
    return None if found is None else Share(*found)


def rank_if_known() -> tuple[int, int] | None:
    """Return rank and number of ranks; None if neither a process group nor the environment defines them.

    Raises:
        BadOption: the environment is inconsistent.
    """
    found = _from_group() or _from_environment()
    return None if found is None else (Share(*found).rank, found[1])


def local_rank_count() -> int:
    """Return how many ranks share this machine, if the launcher says so; otherwise 1.

    torchrun sets LOCAL_WORLD_SIZE; Open MPI, MPICH and SLURM have their own variables.
    """
    for launcher in (_ANY, *_MPI):
        text = os.environ.get(launcher.local_size, "")
        if text.isdecimal():
            return max(1, int(text))
    return _local_tasks_of_slurm() if _is_step_of_slurm() else 1


def _from_group() -> tuple[int, int] | None:
    torch = _from_torch()
    found = torch or _from_jax()
    if found is None:
        return None
    try:
        started = _from_environment()
    except BadOption:  # the environment is not needed here
        started = None
    # A group may have more ranks than were started: those ranks started others. With fewer there are several groups.
    if started is not None and started[1] > found[1]:
        launcher = _launcher()
        assert launcher is not None
        name = "jax.distributed" if torch is None else "torch.distributed"
        message = (
            f"{started[1]} ranks were started ({launcher.world_size}={os.environ[launcher.world_size]}), and {name} "
            f"has a group of {found[1]}. feedline distributes samples over the group of {found[1]}: if there are "
            "several such groups, each of them delivers the whole dataset. If that is not intended, initialise "
            f"{name} with all ranks, or pass rank and world_size to the sampler; if it is, unset {launcher.world_size}."
        )
        if message not in _reported:
            _reported.add(message)
            warn_user(message, DataWarning)
    return found


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
    # Its result is available without it.
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if state is None:
        return jax.process_index(), jax.process_count()
    return state.process_id, state.num_processes


def _from_environment() -> tuple[int, int] | None:
    launcher = _launcher()
    if launcher is None:
        if not os.environ.get(_PMIX_RANK):
            return None
        raise BadOption(
            f"The environment has {_PMIX_RANK}={os.environ[_PMIX_RANK]!r}, so PMIx has started this process, but "
            "the number of ranks is not set. Set RANK and WORLD_SIZE, or pass rank and world_size."
        )
    if launcher is _ANY and not os.environ.get(_ANY.rank):  # job scripts often export WORLD_SIZE alone
        return _rank_of_others()
    for name, other in (launcher[:2], launcher[1::-1]):
        if not os.environ.get(name):
            raise BadOption(
                f"The environment has {other}={os.environ[other]!r} but no {name}, and both are needed to know the "
                f"share of this process. Set {name} too, or pass rank and world_size."
            )
    rank, world_size = _number(launcher.rank), _number(launcher.world_size)
    if not 0 <= rank < world_size:
        raise BadOption(
            f"The environment has {launcher.rank}={rank} and {launcher.world_size}={world_size}, but ranks are counted "
            f"from 0 to {launcher.world_size} - 1. Correct these variables, or pass rank and world_size."
        )
    return rank, world_size


def _rank_of_others() -> tuple[int, int]:
    """Return the rank from another launcher if WORLD_SIZE is set and RANK is not."""
    world_size = _number(_ANY.world_size)
    other = _other_launcher()
    if other is not None and _number(other.world_size) == world_size:
        return _number(other.rank), world_size
    difference = "" if other is None else f" ({other.world_size}={os.environ[other.world_size]!r} differs)"
    raise BadOption(
        f"The environment has WORLD_SIZE={world_size} but no RANK, and both are needed to know the share of this "
        f"process{difference}. Set RANK too, or pass rank and world_size."
    )


def _launcher() -> _Launcher | None:
    """Return the launcher that set the rank of this process; None if there is none."""
    if os.environ.get(_ANY.rank) or os.environ.get(_ANY.world_size, "") not in ("", "1"):
        return _ANY
    return _other_launcher()


def _other_launcher() -> _Launcher | None:
    """Return the launcher with variables of its own that set the rank of this process."""
    for launcher in _MPI:
        if os.environ.get(launcher.rank) and os.environ.get(launcher.world_size):
            return launcher
    return _SLURM if _is_step_of_slurm() else None


def _is_step_of_slurm() -> bool:
    """True if a user's srun started this process."""
    if not os.environ.get(_SLURM.rank) or not os.environ.get(_SLURM.world_size):
        return False
    step = os.environ.get("SLURM_STEP_ID", "0")
    return not (step.isdecimal() and int(step) >= _FIRST_SPECIAL_STEP)


def _local_tasks_of_slurm() -> int:
    """Return how many tasks of the step run on this node; SLURM writes `4(x2),3` for nodes with 4, 4 and 3."""
    counts: list[int] = []
    for part in os.environ.get(_SLURM.local_size, "").split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            return 1
        counts += [int(found[1])] * int(found[2] or 1)
    node = os.environ.get("SLURM_NODEID", "0")
    return max(1, counts[int(node)]) if node.isdecimal() and int(node) < len(counts) else 1


def _number(name: str) -> int:
    text = os.environ[name]
    try:
        return int(text)
    except ValueError:
        raise BadOption(
            f"The environment variable {name}={text!r} is not an integer. Correct it, or pass rank and world_size."
        ) from None
