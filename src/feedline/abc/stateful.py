"""The contract of objects that save and restore their state, as torchdata defines it."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from feedline.abc.source import Acknowledged, StreamSource
from feedline.errors import BadState


class Stateful(Protocol):
    """A dataset, iterator, sampler or batch sampler whose state a loader saves and restores with its own.

    Example:
        >>> from feedline import Loader
        >>> class Counter:
        ...     count = 0
        ...     def __iter__(self):
        ...         while self.count < 4:
        ...             self.count += 1
        ...             yield self.count
        ...     def state_dict(self):
        ...         return {"count": self.count}
        ...     def load_state_dict(self, state):
        ...         self.count = state["count"]
        >>> loader = Loader(Counter(), 2)
        >>> next(iter(loader)).tolist(), loader.state_dict()["streams"][0]["dataset"]
        ([1, 2], {'count': 2})
    """

    # Any: the object defines the contents of its state; loaders copy it, and workers send it.
    def state_dict(self) -> Any:
        """Return the current state of the object."""

    def load_state_dict(self, state: Any) -> None:
        """Continue from where `state` was saved."""


def is_stateful(value: object) -> bool:
    """True if an object can save and restore its state by itself, with the methods and signatures of `Stateful`.

    Methods that need more arguments are meant for another loader that supplies them, as in the streaming datasets of
    MosaicML and LitData. torch modules, whose methods save weights, do not count either.

    Example:
        >>> is_stateful([1, 2])
        False
    """
    saves, restores = getattr(value, "state_dict", None), getattr(value, "load_state_dict", None)
    if saves is None or restores is None or not _accepts(saves, 0) or not _accepts(restores, 1):
        return False
    network = sys.modules.get("torch.nn")  # its modules have such methods for their weights
    return network is None or not isinstance(value, network.Module)


def outlives_epoch(dataset: object) -> bool:
    """True if a dataset's state still applies in the next epoch, as in torchdata.

    The state of a Hugging Face streaming dataset is only a position in an epoch.
    """
    kind = getattr(sys.modules.get("datasets.iterable_dataset"), "IterableDataset", None)
    return kind is None or not isinstance(dataset, kind)


def resumed(dataset: Any, state: object) -> Any:
    """Return a dataset that continues from a state: the same one if the state outlives the epoch, else a copy.

    A Hugging Face streaming dataset starts every epoch with the state it was given. The copy shares everything else.
    """
    if not outlives_epoch(dataset):
        twin = object.__new__(type(dataset))
        twin.__dict__.update(dataset.__dict__)  # copy.copy() would share the dict itself
        dataset = twin
    dataset.load_state_dict(state)
    return dataset


def resumed_after(dataset: Any, state: object) -> Any:
    """Return a dataset that starts another epoch, from a state saved at the end of the previous epoch.

    If an iterator resumes at the end, it yields no sample, as in torchdata, and the next iterator starts afresh. If it
    yields a sample, the state is not a position in an epoch, and is restored again. A source of feedline is not asked:
    a feed would lose the sample.
    """
    dataset = resumed(dataset, copy.deepcopy(state))
    iterator = iter(dataset)
    if isinstance(dataset, (Acknowledged, StreamSource)):
        return dataset
    with contextlib.suppress(Exception):  # the sample's own error: raised again when the sample is requested
        if next(iterator, _NOTHING) is _NOTHING:
            return dataset
    del iterator  # a generator runs its `finally` before the state is restored
    dataset.load_state_dict(state)
    return dataset


_NOTHING = object()


def restore_end(dataset: Any, last: object) -> None:
    """Restore the state in which a dataset's iterator ended, before the next iterator is created, as torchdata does.

    Raises:
        BadState: the iterator has no `load_state_dict`.
    """
    iterator = iter(dataset)
    check_restorable(dataset, iterator)
    iterator.load_state_dict(last)


def check_restorable(dataset: object, iterator: object = None) -> None:
    """Raise an error if a dataset cannot restore its state, or its iterator, if one is given.

    Raises:
        BadState: the dataset or iterator is not stateful.
    """
    if is_stateful(dataset if iterator is None else iterator):
        return
    what, whose = ("a dataset", "") if iterator is None else ("an iterator", "the iterator of ")
    raise BadState(
        f"The state contains that of {what}, but {whose}{type(dataset).__name__} has no load_state_dict. Use the "
        "dataset that the state was saved with."
    )


FORMAT = "feedline"
"""The entry of a state that holds the number of its format. States inside a loader's state have none in format 1."""
SAVED_BY = "saved_by"
"""The entry of a loader's state that holds the version of feedline that saved it."""


def check_format(state: Mapping[Any, object], what: str, *, known: int = 1) -> int:
    """Return the format of a state, or raise an error if this feedline does not read it.

    A version reads every format up to its own: whoever raises `known` converts the earlier ones. It refuses newer
    ones. Every part that saves a state of its own calls this first. Otherwise it would report unknown entries, which
    are not the actual problem.

    Args:
        state: the state.
        what: whose state it is, for the message.
        known: the latest format that this feedline reads.

    Raises:
        BadState: a newer feedline saved the state, or none did.

    Example:
        >>> check_format({"epoch": 3}, "a pipe"), check_format({"epoch": 3}, "a pipe", known=2)
        (1, 1)
        >>> check_format({"feedline": 2, "epoch": 3}, "a pipe")
        Traceback (most recent call last):
            ...
        feedline.errors.BadState: The state of a pipe has format 2, and this feedline reads formats up to 1...
    """
    found = state.get(FORMAT, 1)
    if type(found) is int and 1 <= found <= known:
        return found
    if type(found) is int and found > known:
        version = state.get(SAVED_BY)
        advice = "a newer feedline saved it. Upgrade with pip install --upgrade feedline"
        if isinstance(version, str):
            advice = f"feedline {version} saved it. Use that version or a later one"
        raise BadState(
            f"The state of {what} has format {found}, and this feedline reads formats up to {known}: {advice}, or "
            "start the epoch again without the state."
        )
    raise BadState(
        f"The state of {what} has format {found!r:.100}, which no release of feedline has saved. Load the state as "
        "state_dict() returned it, or start the epoch again without the state."
    )


def _accepts(method: object, count: int) -> bool:
    """True if a method, or a callable object in its place, accepts `count` arguments."""
    if inspect.ismethod(method):
        return _takes_known(method.__func__, count + 1)
    return callable(method) and _takes(method, count)  # not cached: the callable may hold the dataset


def _takes(function: Callable[..., object], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # not written in Python, and has no signature
        return True
    return True


_takes_known = functools.lru_cache(maxsize=256)(_takes)
"""Cached because it is called for every saved state, and computing a signature is slow."""
