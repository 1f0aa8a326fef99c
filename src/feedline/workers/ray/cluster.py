"""Which cluster the workers run on: the one that the program has joined, one at an address, or one of our own.

A local cluster that was started here ends with the program, as `ray.init` has it, not with the loader: starting one
takes several seconds, and the next epoch would have to wait for another.
"""

from __future__ import annotations

import logging
import math
import os
import re
import socket
import sys
from typing import TYPE_CHECKING, Any

from feedline.errors import TransportError, WorkerDied, WorkerStartError
from feedline.system.failures import words
from feedline.system.optional import require
from feedline.system.process import core_count
from feedline.workers.ray.options import RayOptions

if TYPE_CHECKING:
    from feedline.workers.ray.worker import Place  # loaders import this module

_KNOCK_S = 10.0
"""How long a cluster may take to accept a connection."""

OLDEST = (2, 49)
"""The oldest Ray that is tested."""

_parents: list[int] = []
"""Processes that were connected to Ray when this one was forked from them."""


def _note_fork() -> None:
    is_initialized = getattr(sys.modules.get("ray"), "is_initialized", None)  # None: it is just being imported
    if is_initialized is not None and is_initialized():
        _parents.append(os.getppid())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


# Any: the module, which is imported only where somebody wants it.
def connect(options: RayOptions, worker_count: int) -> Any:
    """Return Ray, connected to a cluster.

    Raises:
        MissingExtra: Ray is not installed.
        WorkerStartError: it is too old, the cluster cannot be reached, or is of another version.
    """
    ray = require("ray", extra="ray", purpose='engine="ray"')
    found = tuple(int(part) for part in re.findall(r"\d+", ray.__version__)[:2])
    if found < OLDEST:
        raise WorkerStartError(
            f"Ray {ray.__version__} is installed, and engine='ray' needs {OLDEST[0]}.{OLDEST[1]} or later: "
            "pip install -U 'feedline[ray]', on every node of the cluster."
        )
    if _parents and ray.is_initialized():  # the threads are the parent's: nothing would ever be answered
        raise WorkerStartError(
            f"This process was forked from process {_parents[-1]}, which is connected to Ray, and cannot use that "
            "connection. Start it with multiprocessing's 'spawn' or 'forkserver', or iterate where ray.init was called."
        )
    if not ray.is_initialized():
        address = options.address or os.environ.get("RAY_ADDRESS")
        if address:
            _join(ray, address)
        else:
            cores = max(core_count(), math.ceil(worker_count * options.num_cpus))
            ray.init(
                address="local",
                num_cpus=cores,
                resources={name: count * worker_count for name, count in (options.resources or {}).items()} or None,
                include_dashboard=False,
                logging_level=logging.WARNING,
            )
    if ray.util.client.ray.is_connected():
        raise WorkerStartError(
            "This program is connected to Ray through a client (ray://), and then there is no object store on this "
            "machine through which batches could come. Run the training program on a node of the cluster."
        )
    return ray


def _join(ray: Any, address: str) -> None:
    where = f"the Ray cluster at {address!r}"
    try:
        _knock(address)
        ray.init(address=address, logging_level=logging.WARNING)
    except OSError as exc:  # ConnectionError and TimeoutError, for two
        raise WorkerStartError(
            f"There is no answer from {where}: {words(exc)}. Start one there (`ray start --head`), correct the address "
            "(RAY_ADDRESS, or RayOptions(address=...)), or leave it out: then a local cluster is started."
        ) from exc
    except (RuntimeError, ValueError) as exc:
        raise WorkerStartError(
            f"{where} cannot be joined: {words(exc)}. If that is about versions: this program has Ray "
            f"{ray.__version__}, and every node of a cluster needs the same Ray and the same Python."
        ) from exc


def _knock(address: str) -> None:
    """Raise OSError if nobody listens at an address. `ray.init` would try for several minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_S).close()


def connection(ray: Any) -> tuple[str, str] | None:
    """Return what tells a connection to a cluster from those before and after it; None if there is none."""
    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_job_id()


def free_places(options: RayOptions, worker_count: int) -> int:
    """Return for how many workers there is room in the cluster now, which is joined, or started for `worker_count`."""
    return _places(connect(options, worker_count), options)


def _places(ray: Any, options: RayOptions) -> int:
    free = ray.available_resources()
    return int(min(free.get(name, 0) / count for name, count in {"CPU": 0.01, **options.needs}.items() if count))


def check_room(ray: Any, options: RayOptions, worker: int) -> None:
    """Refuse one worker more if there is no place for it now: its tasks would wait for it.

    Not if it may be there already, as those of a pool, or has a place of its own, as in a placement group.

    Raises:
        WorkerStartError: there is none.
    """
    if (
        options.pool is None
        and isinstance(options.scheduling_strategy, (str, type(None)))
        and not _places(ray, options)
    ):
        raise WorkerStartError(f"There is no place for worker {worker}. {shortage(ray, options)}")


def store_bytes(ray: Any) -> int:
    """Return the size of the object store on this machine."""
    here = ray.get_runtime_context().get_node_id()
    sizes = [node["Resources"].get("object_store_memory", 0) for node in ray.nodes() if node["NodeID"] == here]
    return int(sizes[0]) if sizes else 0


def shortage(ray: Any, options: RayOptions) -> str:
    """Say why a worker may have no place: which node could have it at all, and what is free."""
    needs = {name: count for name, count in options.needs.items() if count}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(node.get(name, 0) >= count for name, count in needs.items()) for node in nodes):
        most = {name: max((node.get(name, 0) for node in nodes), default=0) for name in needs}
        return f"Each worker needs {needs}, and no node of the cluster has that; the most that one has is {most}."
    free = ray.available_resources()
    left = {name: free.get(name, 0) for name in needs}
    return f"Each worker needs {needs}; free in the whole cluster of {len(nodes)} nodes are {left}."


def obituary(number: int, place: Place | None, failure: BaseException, *, was_ready: bool = True) -> WorkerDied:
    """Say how an actor died, as far as Ray knows."""
    said = " ".join(str(failure).split())
    said = said[max(0, said.find("The actor is dead because")) :].partition(" Some common causes")[0].rstrip(".")
    if len(said) > 400:  # what was raised is at the end of a traceback
        said = f"{said[:150]} ... {said[-250:]}"
    who = "" if place is None else f" (pid {place.pid} on {place.host})"
    death = WorkerDied(
        f"DataLoader worker {number}{who}, a Ray actor, exited unexpectedly. Ray says: {said}. The system running out "
        "of memory, or a node that is gone, are the usual causes; `ray logs` has what it printed."
    )
    death.was_ready = was_ready
    death.was_killed = None  # Ray reports a kill and a crash alike
    return death


# Any: the module.
def is_trouble(ray: Any, failure: BaseException) -> bool:
    """True if a batch did not come although the actor lives: it raised, or the object store of a node is full."""
    errors = ray.exceptions
    return isinstance(failure, (errors.RayTaskError, errors.ObjectStoreFullError, errors.OutOfDiskError))


def trouble(ray: Any, number: int, failure: BaseException) -> TransportError:
    """Say what kept an actor from handing over what it had made."""
    cause = getattr(failure, "cause", failure)
    why, advice = words(cause), "`ray logs` has more"
    if isinstance(cause, (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError)):
        why = f"the object store of a node is full, and so is the disk that Ray spills to ({type(cause).__name__})"
        advice = (
            "Start Ray with a larger store (ray.init(object_store_memory=...)) or make room on that disk; a smaller "
            "prefetch_factor or memory_budget takes less of it"
        )
    return TransportError(f"Worker {number} could not hand over a batch through Ray: {why}. {advice}.")
