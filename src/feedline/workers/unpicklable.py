"""Finds the part of a dataset, or of a function, that cannot be sent to a worker process.

Pickle names the type that it cannot pickle ("cannot pickle '_thread.lock' object"), not its place. It visits the parts
of an object one after the other, so the last one that it has seen before it fails is to blame. The attributes are
searched for that one.
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
from feedline.system.optional import is_tensor
from feedline.workers.handles import objects_in

_LEVELS = 8
"""How far to search objects inside of each other for the path of one."""

_PLAIN = frozenset((str, bytes, int, float, bool, type(None)))
"""Types that can always be pickled, for speed."""

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
    pickler = _Pickler(_NOWHERE, 5)
    pickler.dispatch_table = {**copyreg.dispatch_table, **vars(reduction.ForkingPickler)["_extra_reducers"]}
    with _stand_in_process():
        try:
            pickler.dump(root)
            return None
        except Exception:  # also what the user's __getstate__ raises
            failed = pickler.last
    # An object of a local class is to blame, rather than its class.
    found = (one for one in objects_in(root, name=name, levels=_LEVELS) if one[1] is failed or type(one[1]) is failed)
    path, value = next(found, (f"Something in {name}", failed))
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
    """Pickles without output; leaves out arrays and tensors, which can be sent."""

    last: object = None
    """The object that it has come to."""

    def persistent_id(self, obj: object) -> int | None:
        if type(obj) in _PLAIN:
            return None
        if _is_array(obj):
            return 1
        self.last = obj
        return None


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
