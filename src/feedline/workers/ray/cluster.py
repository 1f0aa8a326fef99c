"""Chooses the cluster for the workers: the one that the program has joined, one at an address, or a new local one.

A local cluster that was started here ends with the program, as `ray.init` arranges, not with the loader: starting one
takes several seconds, and the next epoch would have to wait for another.
"""

from __future__ import annotations

import logging
import math
import os
import re
import socket
import sys
import tempfile
from types import ModuleType
from typing import TYPE_CHECKING

from feedline.errors import TransportError, WorkerDied, WorkerStartError
from feedline.system.failures import words
from feedline.system.optional import require
from feedline.system.process import core_count
from feedline.system.shown import counted
from feedline.system.socket_folder import shorter_than
from feedline.workers.ray.options import RayOptions

if TYPE_CHECKING:
    from feedline.workers.ray.worker import Place  # loaders import this module

_KNOCK_S = 10.0
"""How long a cluster may take to accept a connection."""

_SOCKET_BYTES = len("/session_2026-01-31_12-34-56_123456_1234567/sockets/plasma_store")
"""How long the path of a socket is inside Ray's temporary folder."""

OLDEST = (2, 49)
"""The oldest Ray that is tested."""

_parents: list[int] = []
"""Processes that were connected to Ray when this one was forked from them."""


def _note_fork() -> None:
    is_initialized = getattr(sys.modules.get("ray"), "is_initialized", None)  # None while Ray is being imported
    if is_initialized is not None and is_initialized():
        _parents.append(os.getppid())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def connect(options: RayOptions, worker_count: int) -> ModuleType:
    """Return Ray, connected to a cluster.

    Raises:
        MissingExtra: Ray is not installed.
        WorkerStartError: Ray is too old, or the cluster cannot be reached or has another version.
    """
    ray = require("ray", extra="ray", purpose='engine="ray"')
    found = tuple(int(part) for part in re.findall(r"\d+", ray.__version__)[:2])
    if found < OLDEST:
        raise WorkerStartError(
            f"Ray {ray.__version__} is too old: engine='ray' needs {OLDEST[0]}.{OLDEST[1]} or later. Run "
            "pip install -U 'feedline[ray]' on every node of the cluster."
        )
    if _parents and ray.is_initialized():  # Ray's threads are in the parent: no call would ever return
        raise WorkerStartError(
            f"This process was forked from process {_parents[-1]}, which is connected to Ray, and cannot use that "
            "connection. Start it with multiprocessing's 'spawn' or 'forkserver', or iterate in that process."
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
                _temp_dir=_short_folder(),
            )
    if ray.util.client.ray.is_connected():
        raise WorkerStartError(
            "This program is connected to Ray through a client (ray://), so this machine has no object store to "
            "receive batches from. Run the training program on a node of the cluster."
        )
    return ray


def _short_folder() -> str | None:
    """Return a folder for Ray's sockets if the path of the default one is too long; None for the default."""
    if "RAY_TMPDIR" in os.environ:
        return None
    base = shorter_than(os.path.join(tempfile.gettempdir(), "ray"), room=_SOCKET_BYTES)
    return None if base is None else os.path.join(base, "ray")


def _join(ray: ModuleType, address: str) -> None:
    where = f"the Ray cluster at {address!r}"
    try:
        _knock(address)
        ray.init(address=address, logging_level=logging.WARNING)
    except OSError as exc:  # such as ConnectionError and TimeoutError
        raise WorkerStartError(
            f"There is no answer from {where}: {words(exc)}. Start one there (`ray start --head`), correct the address "
            "(RAY_ADDRESS, or RayOptions(address=...)), or omit it to start a local cluster."
        ) from exc
    except (RuntimeError, ValueError) as exc:
        raise WorkerStartError(
            f"Cannot join {where}: {words(exc)}. If versions differ: this program has Ray {ray.__version__}, and every "
            "node of a cluster needs the same Ray and the same Python."
        ) from exc


def _knock(address: str) -> None:
    """Raise OSError if nothing listens at an address. `ray.init` would keep trying for several minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_S).close()


def connection(ray: ModuleType) -> tuple[str, str] | None:
    """Return the node and job that identify the current connection to a cluster; None if there is none."""
    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_job_id()


def free_places(options: RayOptions, worker_count: int) -> int:
    """Return how many workers the cluster has free resources for. Joins it, or starts one for `worker_count`."""
    return _places(connect(options, worker_count), options)


def _places(ray: ModuleType, options: RayOptions) -> int:
    free = ray.available_resources()
    return int(min(free.get(name, 0) / count for name, count in {"CPU": 0.01, **options.needs}.items() if count))


def check_room(ray: ModuleType, options: RayOptions, worker: int) -> None:
    """Reject another worker if the cluster has no free resources for it now: its tasks would wait for it.

    Skips workers that may have reserved resources, as in a placement group.

    Raises:
        WorkerStartError: there are not enough free resources.
    """
    if isinstance(options.scheduling_strategy, (str, type(None))) and not _places(ray, options):
        raise WorkerStartError(f"The cluster has no resources for worker {worker}. {shortage(ray, options)}")


def store_bytes(ray: ModuleType) -> int:
    """Return the size of the object store on this machine."""
    here = ray.get_runtime_context().get_node_id()
    sizes = [node["Resources"].get("object_store_memory", 0) for node in ray.nodes() if node["NodeID"] == here]
    return int(sizes[0]) if sizes else 0


def shortage(ray: ModuleType, options: RayOptions) -> str:
    """Explain why a worker may not have been placed: whether any node is large enough, and what is free."""
    needs = {name: count for name, count in options.needs.items() if count}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(node.get(name, 0) >= count for name, count in needs.items()) for node in nodes):
        most = {name: max((node.get(name, 0) for node in nodes), default=0) for name in needs}
        return f"Each worker needs {needs}, and no node of the cluster has that; the largest amounts are {most}."
    free = ray.available_resources()
    left = {name: free.get(name, 0) for name in needs}
    return f"Each worker needs {needs}; the whole cluster of {counted(len(nodes), 'node')} has {left} free."


def death_error(number: int, place: Place | None, failure: BaseException, *, was_ready: bool = True) -> WorkerDied:
    """Return the error for an actor that died, with the reason that Ray gives."""
    reason = " ".join(str(failure).split())
    reason = reason[max(0, reason.find("The actor is dead because")) :].partition(" Some common causes")[0].rstrip(".")
    if len(reason) > 400:  # the exception is at the end of a traceback
        reason = f"{reason[:150]} ... {reason[-250:]}"
    who = "" if place is None else f" (pid {place.pid} on {place.host})"
    death = WorkerDied(
        f"DataLoader worker {number}{who}, a Ray actor, exited unexpectedly. Ray says: {reason}. Usually the system "
        "ran out of memory or a node is gone; `ray logs` shows what the actor printed."
    )
    death.was_ready = was_ready
    death.was_killed = None  # Ray reports a kill and a crash alike
    return death


# object: the module.
def is_trouble(ray: ModuleType, failure: BaseException) -> bool:
    """True if a batch did not arrive although the actor lives: it raised, or the object store of a node is full."""
    errors = ray.exceptions
    return isinstance(failure, (errors.RayTaskError, errors.ObjectStoreFullError, errors.OutOfDiskError))


def trouble(ray: ModuleType, number: int, failure: BaseException) -> TransportError:
    """Return the error for an actor that could not send its result."""
    cause = getattr(failure, "cause", failure)
    why, advice = words(cause), "`ray logs` shows more"
    if isinstance(cause, (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError)):
        why = f"the object store of a node is full, and so is the disk that Ray spills to ({type(cause).__name__})"
        advice = (
            "Start Ray with a larger store (ray.init(object_store_memory=...)) or free space on that disk; a "
            "smaller prefetch_factor or memory_budget needs less of the store"
        )
    return TransportError(f"Worker {number} could not send a batch through Ray: {why}. {advice}.")
