"""What is raised when a dataset, or a function, cannot be sent to a worker process.

Pickle says what it cannot take ("cannot pickle '_thread.lock' object"), not where that is, nor what to do. So the
object is searched for, and described.
"""

from __future__ import annotations

import multiprocessing

from feedline.engines.handles import database_handle
from feedline.engines.unpicklable.diagnosis import diagnosis
from feedline.engines.unpicklable.search import Search
from feedline.engines.unpicklable.trial import somebody_starting
from feedline.errors import NotPicklable
from feedline.types import WorkerSpec

_TEXT = 300
"""Characters of an error's text that are repeated. Some hold the representation of an object."""


def explain(spec: WorkerSpec, error: BaseException) -> NotPicklable:
    """Return what to raise about a specification that could not be pickled.

    Pickles parts of it, which runs the user's `__getstate__` and `__reduce__` again.

    Args:
        spec: what was to be sent to workers.
        error: what pickle raised.
    """
    with somebody_starting():
        culprit = Search(spec.framework).among(
            {
                "dataset": spec.dataset,
                "collate_fn": spec.collate,
                "worker_init_fn": spec.init,
                "on_error": spec.on_error,
            }
        )
    if culprit is None:
        return NotPicklable(
            f"The dataset, or a function given to the loader, cannot be sent to a worker process: {_text(error)}. "
            "Workers that are started by spawn or forkserver get these by pickle. Tried once more, one by one, the "
            "dataset and the functions could be pickled: look for a __getstate__ or __reduce__ whose result changes. "
            + _without_pickle(handle=False)
        )
    what, advice = diagnosis(culprit)
    return NotPicklable(
        f"{culprit.path} cannot be sent to a worker process: it is {what}. Workers that are started by spawn or "
        f"forkserver get the dataset and the functions by pickle, which says: {_text(culprit.failure)}. {advice} "
        + _without_pickle(handle=database_handle(type(culprit.value)) is not None)
    )


def _text(error: BaseException) -> str:
    text = str(error)
    shortened = text if len(text) <= _TEXT else f"{text[:_TEXT]}..."
    return f"{type(error).__name__}: {shortened.rstrip('.')}"


def _without_pickle(handle: bool) -> str:
    can_fork = "fork" in multiprocessing.get_all_start_methods()
    if handle:
        fork = 'multiprocessing_context="fork" needs no pickle, but such a handle does not survive a fork; '
        return (fork if can_fork else "") + 'engine="thread" needs none, if the handle may be used by several threads.'
    ways = ['multiprocessing_context="fork"'] if can_fork else []
    ways.append('engine="thread"')
    return f"Or choose what needs no pickle: {' or '.join(ways)}."
