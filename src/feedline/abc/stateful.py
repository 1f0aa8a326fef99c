"""The contract of objects that save and restore their state, as torchdata defines it."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Protocol

from feedline.errors import BadState


class Stateful(Protocol):
    """A dataset, iterator, sampler or batch sampler whose state a loader saves and restores with its own."""

    # Any: what a state consists of is the object's own business; loaders copy it, and workers send it.
    def state_dict(self) -> Any:
        """Return where the object is."""

    def load_state_dict(self, state: Any) -> None:
        """Go on from where `state` was taken."""


# Any: it may be anything.
def is_stateful(value: Any) -> bool:
    """True if an object can save and restore where it is, by itself: by the methods of `Stateful`, called as there.

    Methods that must be told more are meant for another loader, which knows it, as those of the streaming datasets of
    MosaicML and LitData. The weights of a torch module are not meant either.

    Example:
        >>> is_stateful([1, 2])
        False
    """
    saves, restores = getattr(value, "state_dict", None), getattr(value, "load_state_dict", None)
    if saves is None or restores is None or not _accepts(saves, 0) or not _accepts(restores, 1):
        return False
    network = sys.modules.get("torch.nn")  # whose modules have such methods, about their weights
    return network is None or not isinstance(value, network.Module)


# Any: a dataset and its state are the user's own.
def outlives_epoch(dataset: Any) -> bool:
    """True if the state of a dataset counts in the next epoch, too, as torchdata has it.

    That of a streaming dataset of Hugging Face is a place in an epoch, and nothing else.
    """
    kind = getattr(sys.modules.get("datasets.iterable_dataset"), "IterableDataset", None)
    return kind is None or not isinstance(dataset, kind)


def resumed(dataset: Any, state: Any) -> Any:
    """Return a dataset that goes on from a state: the same one, if the state outlives the epoch, else a copy.

    A streaming dataset of Hugging Face begins every epoch with the state that it was given. The copy shares all else.
    """
    if not outlives_epoch(dataset):
        twin = object.__new__(type(dataset))
        twin.__dict__.update(dataset.__dict__)  # copy.copy() would share the dict itself
        dataset = twin
    dataset.load_state_dict(state)
    return dataset


def resumed_after(dataset: Any, state: Any) -> Any:
    """Return a dataset that begins another epoch, from a state of the end of the epoch before.

    A generator looks at the state no sooner than its first sample is asked for. One that goes on at the end has none,
    as in torchdata, and the iterator after it begins anew. If there is a sample, the state is not about a place in an
    epoch, and is restored again.
    """
    dataset = resumed(dataset, copy.deepcopy(state))
    iterator = iter(dataset)
    if not inspect.isgenerator(iterator):
        return dataset
    with contextlib.suppress(Exception):  # of that sample: it is raised again when the sample is asked for
        if next(iterator, _NOTHING) is _NOTHING:
            return dataset
    iterator.close()
    dataset.load_state_dict(state)
    return dataset


_NOTHING = object()


def restore_end(dataset: Any, last: Any) -> None:
    """Restore the state in which a dataset's iterator ended, before another is asked for, as torchdata does.

    Raises:
        BadState: the iterator has no `load_state_dict`.
    """
    iterator = iter(dataset)
    check_restorable(dataset, iterator)
    iterator.load_state_dict(last)


def check_restorable(dataset: Any, iterator: Any = None) -> None:
    """Refuse to restore the state of a dataset, or of its iterator if one is given, that has none.

    Raises:
        BadState: it has no `load_state_dict`.
    """
    if is_stateful(dataset if iterator is None else iterator):
        return
    what, whose = ("a dataset", "") if iterator is None else ("an iterator", "that of ")
    raise BadState(
        f"The state holds the state of {what}, but {whose}{type(dataset).__name__} has no load_state_dict. Use the "
        "dataset it was saved with."
    )


def _accepts(method: Any, count: int) -> bool:
    """True if a method, or whatever is in its place, can be called with so many arguments."""
    if inspect.ismethod(method):
        return _takes_known(method.__func__, count + 1)
    return callable(method) and _takes(method, count)  # not remembered: it may hold the dataset


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # it is not written in Python, and does not say
        return True
    return True


_takes_known = functools.lru_cache(maxsize=256)(_takes)
"""Every state that is saved asks, and a signature takes its time."""
