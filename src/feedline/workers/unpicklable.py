"""Finds the part of a dataset, or of a function, that cannot be sent to a worker process.

Pickle names the type that it cannot pickle ("cannot pickle '_thread.lock' object"), not its place. So the parts of the
object are pickled one by one, without output, and then the parts of the first that fails, down to one whose parts can
all be pickled.
"""

from __future__ import annotations

import copyreg
import multiprocessing
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import context, reduction
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from feedline.abc.worker_spec import WorkerSpec
from feedline.errors import NotPicklable
from feedline.system.attributes import attributes_of
from feedline.system.optional import is_tensor
from feedline.workers.handles import item_of

_MOST_STEPS = 8
"""How far to follow objects inside of each other: a structure that is too deep for pickle has no end."""

_PLAIN = frozenset((str, bytes, int, float, bool, type(None)))
"""Types whose objects are neither arrays nor owners, for speed."""

_NOWHERE = SimpleNamespace(write=len)
"""A file that keeps nothing."""

ADVICE = (
    "Make it when it is first used, so that each worker has its own; or leave it out in __getstate__ and make it again "
    "in __setstate__. Define functions and classes at the top level of a module."
)


class Unpicklable(NamedTuple):
    """A part of an object that cannot be pickled."""

    path: str
    type_name: str


def what_fails(root: object, name: str) -> Unpicklable | None:
    """Pickle an object, called `name`, without output; return the part that cannot be pickled, or None."""
    path, value = name, root
    owners: dict[int, object] = {}
    table = {**copyreg.dispatch_table, **vars(reduction.ForkingPickler)["_extra_reducers"]}
    with _stand_in_process():
        if _can_pickle(root, owners, table):
            return None
        for _ in range(_MOST_STEPS):
            owners[id(value)] = value  # an object that refers to its owner is not to blame for it
            failing = (part for part in _parts(path, value) if not _can_pickle(part[1], owners, table))
            part = next(failing, None)
            if part is None:
                break
            path, value = part
    kind = type(value)
    return Unpicklable(path, f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))


def explain(spec: WorkerSpec, error: BaseException) -> NotPicklable:
    """Return the error to raise for a specification that pickle refused with `error`.

    Pickles it again, which runs the user's `__getstate__` and `__reduce__` again.
    """
    roots = {
        "dataset": spec.dataset,
        "collate_fn": spec.collate,
        "worker_init_fn": spec.init,
        "on_error": spec.on_error,
    }
    says = f"{type(error).__name__}: {str(error).rstrip('.'):.300}"
    fork = 'multiprocessing_context="fork" or ' if "fork" in multiprocessing.get_all_start_methods() else ""
    other = f'Or avoid pickle with {fork}engine="thread".'
    for name, root in roots.items():
        found = what_fails(root, name)
        if found is not None:
            return NotPicklable(
                f"{found.path} (of type {found.type_name}) cannot be sent to a worker process. Workers that are "
                "started by spawn or forkserver receive the dataset and the functions by pickle, which says: "
                f"{says}. {ADVICE} {other}"
            )
    return NotPicklable(
        f"The dataset, or a function given to the loader, cannot be sent to a worker process: {says}. In a second "
        f"attempt it could be pickled: look for a __getstate__ or __reduce__ whose result changes. {other}"
    )


class _Pickler(pickle.Pickler):
    """Pickles without output; leaves out arrays and tensors, which can be sent, and the objects in `owners`, by id."""

    owners: dict[int, object]

    def persistent_id(self, obj: object) -> int | None:
        if type(obj) in _PLAIN:
            return None
        return 1 if id(obj) in self.owners or _is_array(obj) else None


# Any: reducers of any kind.
def _can_pickle(value: object, owners: dict[int, object], table: dict[type, Any]) -> bool:
    pickler = _Pickler(_NOWHERE, 5)
    pickler.owners, pickler.dispatch_table = owners, table
    try:
        pickler.dump(value)
    except Exception:  # also what the user's __getstate__ raises
        return False
    return True


def _is_array(value: object) -> bool:
    """True for arrays and tensors whose memory can be sent as it is."""
    if type(value) is pickle.PickleBuffer:
        return True
    if is_tensor(value):
        return value.grad_fn is None
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject and type(value).__reduce__ is np.ndarray.__reduce__
    return type(value).__module__ == "torch.storage"


@contextmanager
def _stand_in_process() -> Iterator[None]:
    """Stand in for a process that is being started: multiprocessing sends locks and queues only to such processes."""
    previous = context.get_spawning_popen()
    starting: Any = SimpleNamespace(duplicate_for_child=lambda handle: handle, DupFd=lambda fd: fd)
    context.set_spawning_popen(starting)
    try:
        yield
    finally:
        context.set_spawning_popen(previous)


def _parts(path: str, value: Any) -> Iterator[tuple[str, object]]:
    """Yield what pickle takes an object apart into, with paths."""
    if isinstance(value, dict):
        yield from ((item_of(path, key, place), item) for place, (key, item) in enumerate(dict.items(value)))
        yield from ((f"list({path})[{place}]", key) for place, key in enumerate(value))
    elif isinstance(value, (list, tuple, set, frozenset)):
        source = path if isinstance(value, (list, tuple)) else f"list({path})"
        yield from ((f"{source}[{place}]", item) for place, item in enumerate(value))
    elif isinstance(value, np.ndarray):
        yield from ((f"{path}.flat[{place}]", item) for place, item in enumerate(value.flat))
    if type(value) in (dict, list, tuple, set, frozenset) or isinstance(value, (np.ndarray, type)):
        return
    try:
        reduced = value.__reduce_ex__(5)
    except Exception:  # it cannot be taken apart
        return
    if not isinstance(reduced, tuple):  # found by its name
        return
    # What makes it, its arguments, and its state: by default the attributes, or these and the slots.
    _, arguments, state, items = (*reduced, None, None)[:4]
    states = state if isinstance(state, tuple) else (state,)
    attributes = [held for held in states if isinstance(held, dict)] if len(states) < 3 else []
    for held in attributes:
        yield from ((f"{path}.{name}", part) for name, part in held.items())
    yield from ((f"{path}[{place}]", part) for place, part in enumerate(items or ()))
    names = {id(part): f"{path}.{name}" for name, part in reversed(attributes_of(value))}
    for part in (*arguments, *states):
        if part is not type(value) and not any(part is held for held in attributes):
            yield names.get(id(part), f"{path}.__reduce__()"), part
