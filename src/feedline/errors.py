"""Every error feedline raises on purpose.

    FeedlineError
    ├── BadOption (ValueError)            arguments that cannot work together, rejected at construction
    │   └── DatasetFailed                 the user's code failed while a dataset was created or tried
    ├── BadState (ValueError)             a saved state that does not fit this loader
    ├── BadRecording (ValueError)         a file that is not a recording, or is incomplete
    ├── MissingExtra (ImportError)        a required optional package is not installed
    ├── CollateError (RuntimeError)       the samples of a batch do not fit together
    │   └── EmptyBatch                    a batch has no samples left
    ├── TooManyBadSamples (RuntimeError)  more samples failed than the policy allows
    ├── RankError (RuntimeError)          a rank that shares batches with others did not come, or got different ones
    ├── SourceError (OSError)             a store cannot be read
    │   ├── CorruptSource                 the data is incomplete or not in the format it claims
    │   └── SourceChanged                 the store changed since it was indexed or cached
    ├── PackError (RuntimeError)          samples cannot be written in the requested format
    ├── WorkerError (RuntimeError)        something happened to a worker
    │   ├── WorkerDied                    it was killed, crashed or exited
    │   ├── WorkerTimeout                 no batch arrived within `timeout`
    │   └── WorkerStartError              it could not be started
    ├── ReentrantCall (RuntimeError)      next() was called from inside next()
    ├── TransportError (RuntimeError)     a batch could not be sent to the consumer
    │   ├── NotPicklable (PicklingError)  the dataset, a function or a batch cannot be sent to another process
    │   └── TooManyOpenFiles              the process ran out of file descriptors
    └── InternalError (RuntimeError)      a broken invariant: please report it

Warnings, grouped by what you would silence or turn into errors together:

    FeedlineWarning (UserWarning)
    ├── DataWarning                       samples may be repeated, missing, wrong, or differ between runs
    ├── StateWarning                      training may not resume where it stopped
    ├── WorkerWarning                     a worker died, hung, grows or is slow to start; nothing is lost so far
    ├── PerformanceWarning                the same samples could be loaded much faster
    └── OptionWarning                     an argument has almost no effect, or a framework drops it

The user's own exceptions are never wrapped: they arrive as themselves, with notes.
Each class also inherits the built-in that callers of torch's loader already catch.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = [
    "BadOption",
    "BadRecording",
    "BadState",
    "CollateError",
    "CorruptSource",
    "DataWarning",
    "DatasetFailed",
    "EmptyBatch",
    "FeedlineError",
    "FeedlineWarning",
    "InternalError",
    "MissingExtra",
    "NotPicklable",
    "OptionWarning",
    "PackError",
    "PerformanceWarning",
    "RankError",
    "ReentrantCall",
    "SourceChanged",
    "SourceError",
    "StateWarning",
    "TooManyBadSamples",
    "TooManyOpenFiles",
    "TransportError",
    "WorkerDied",
    "WorkerError",
    "WorkerStartError",
    "WorkerTimeout",
    "WorkerWarning",
]


class FeedlineError(Exception):
    """Base of everything feedline raises on purpose.

    Example:
        >>> from feedline import Loader, errors
        >>> try:
        ...     Loader([1, 2, 3], batch_size=0)
        ... except errors.FeedlineError as error:
        ...     type(error).__name__
        'BadOption'
    """

    def __reduce__(self) -> Any:  # workers pickle these; `args` are not always the arguments of __init__
        return _remade, (type(self), self.args, self.__dict__)


def _remade(kind: type[FeedlineError], args: tuple[object, ...], attributes: dict[str, object]) -> FeedlineError:
    exc = kind.__new__(kind)
    exc.args = args
    exc.__dict__.update(attributes)
    return exc


class BadOption(FeedlineError, ValueError):
    """An argument, or a combination of arguments, that cannot work.

    Example:
        >>> from feedline import Loader
        >>> Loader([1, 2, 3], batch_size=0)
        Traceback (most recent call last):
            ...
        feedline.errors.BadOption: batch_size=0 is less than 1, the smallest valid value.
    """


class DatasetFailed(BadOption):
    """The dataset that the user named could not be created, or failed when it was tried.

    Args:
        text: what happened, and what to do.
        reason: "import" (it could not be imported or created), "raises" (every sample raised), "hangs", "crashes" (its
            process died, or took too much memory) or "empty".
        traceback: the user's frames, as Python prints them; "" if there are none.
    """

    def __init__(self, text: str, reason: str = "import", traceback: str = "") -> None:
        super().__init__(text)
        self.reason = reason
        self.traceback = traceback


class BadState(FeedlineError, ValueError):
    """A saved state that is damaged, from another version, or from a loader with other data.

    Example:
        >>> from feedline import Loader
        >>> Loader([1, 2, 3]).load_state_dict({"model": "..."})
        Traceback (most recent call last):
            ...
        feedline.errors.BadState: This is not the state of a feedline loader: it has ['model'] but no 'feedline'...
    """


class BadRecording(FeedlineError, ValueError):
    """A file that is truncated, from another version, or not a recording.

    Example:
        >>> import feedline
        >>> feedline.doctor("no-such-run.json")
        Traceback (most recent call last):
            ...
        feedline.errors.BadRecording: no-such-run.json cannot be read: No such file or directory...
    """


class MissingExtra(FeedlineError, ImportError):
    """An optional package is required but not installed.

    Example:
        >>> raise MissingExtra(module="h5py", extra="hdf5", purpose="HDF5Dataset")
        Traceback (most recent call last):
            ...
        feedline.errors.MissingExtra: HDF5Dataset needs the package 'h5py', which is not installed...
    """

    def __init__(self, *, module: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {module.partition('.')[0]!r}, which is not installed. "
            f"Install it with: pip install 'feedline[{extra}]'"
        )
        self.module = module
        self.extra = extra


class CollateError(FeedlineError, RuntimeError):
    """The samples of a batch cannot be combined: their shapes, fields or types differ.

    Example:
        >>> import numpy as np
        >>> from feedline import Loader
        >>> list(Loader([np.zeros(2), np.zeros(3)], 2))
        Traceback (most recent call last):
            ...
        feedline.errors.CollateError: Samples 0 and 1 of the batch have shapes (2,) and (3,)...
    """

    def __init__(self, text: str, position: int | None = None) -> None:
        super().__init__(text)
        self.position = position
        """Which sample of the batch does not fit, if that is known."""


class EmptyBatch(CollateError):
    """No samples are left in a batch. A training loop may catch this and continue with the next batch.

    Example:
        >>> from feedline.collate import drop_none
        >>> drop_none()([None, None])
        Traceback (most recent call last):
            ...
        feedline.errors.EmptyBatch: Nothing is left of a batch of 2 samples: 2 are None...
    """


class TooManyBadSamples(FeedlineError, RuntimeError):
    """More samples failed than the error policy allows.

    Args:
        message: what happened.
        faults: the failed samples, each a `feedline.faults.Fault`. This module may not import that class.

    Example:
        >>> from feedline import Loader, errors
        >>> class Photos(list):
        ...     def __getitem__(self, index):
        ...         raise OSError("truncated")
        >>> try:
        ...     batches = list(Loader(Photos([1, 2]), 2, on_error="skip"))
        ... except errors.TooManyBadSamples as error:
        ...     len(error.faults)
        2
    """

    def __init__(self, message: str, faults: Iterable[Any] = ()) -> None:
        super().__init__(message)
        self.faults = list(faults)


class RankError(FeedlineError, RuntimeError):
    """Ranks that act together did not come, or got different batches; with `mesh=`.

    Every rank of the group raises it, with the ranks and the step.
    """


class SourceError(FeedlineError, OSError):
    """A store of samples cannot be read: it is missing, unreachable, refused or damaged.

    Example:
        >>> from feedline.datasets import CSVDataset
        >>> len(CSVDataset("no-such-file.csv"))
        Traceback (most recent call last):
            ...
        feedline.errors.SourceError: '...no-such-file.csv' cannot be read: No such file or directory.
    """


class CorruptSource(SourceError):
    """The data in a store is incomplete, or not in the format it claims.

    Example:
        >>> import tempfile
        >>> from feedline.datasets import open_dataset
        >>> with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        ...     dataset = open_dataset(file.name)
        Traceback (most recent call last):
            ...
        feedline.errors.CorruptSource: ... is not a .npy file, or is incomplete...
    """


class SourceChanged(SourceError):
    """A store has changed since an index or a cache was built from it."""


class PackError(FeedlineError, RuntimeError):
    """Samples could not be packed: one failed or does not fit, the disk is full, or the data read back differs.

    The output written so far is kept beside the target, and the next run continues from there.

    Example:
        >>> import tempfile
        >>> import feedline
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     feedline.pack([{"value": object()}], f"{folder}/out.npy")
        Traceback (most recent call last):
            ...
        feedline.errors.PackError: Sample 0 cannot be packed: its field 'value' is a object...
    """


class WorkerError(FeedlineError, RuntimeError):
    """Something happened to a worker, not to a sample."""


class WorkerDied(WorkerError):
    """A worker was killed, crashed or exited before its work was done.

    Example:
        >>> import os
        >>> from feedline import Loader
        >>> class Photos(list):
        ...     def __getitem__(self, index):
        ...         os._exit(3)
        >>> next(iter(Loader(Photos([1, 2]), workers=1, start_method="fork", restarts=0)))
        Traceback (most recent call last):
            ...
        feedline.errors.WorkerDied: ... worker 0 ended with exit code 3...
    """

    was_ready = True
    """False if the worker died before it was ready to work."""
    was_killed: bool | None = False
    """True if a signal from another process, such as SIGKILL, ended it, rather than a crash. None if unknown."""


class WorkerTimeout(WorkerError):
    """No batch arrived within the loader's `timeout`.

    Example:
        >>> import threading
        >>> from feedline import Loader
        >>> class Photos(list):
        ...     def __getitem__(self, index):
        ...         threading.Event().wait(1)  # longer than the loader waits
        >>> next(iter(Loader(Photos([1]), workers=1, engine="thread", timeout_s=0.1)))
        Traceback (most recent call last):
            ...
        feedline.errors.WorkerTimeout: DataLoader timed out after 0.1 seconds...
    """


class WorkerStartError(WorkerError):
    """A worker could not be started."""


class ReentrantCall(FeedlineError, RuntimeError):
    """An iterator was used inside its own `next()`, by the same thread.

    Example:
        >>> from feedline import Loader
        >>> class Photos(list):
        ...     def __getitem__(self, index):
        ...         return next(batches)
        >>> batches = iter(Loader(Photos([1, 2])))
        >>> next(batches)
        Traceback (most recent call last):
            ...
        feedline.errors.ReentrantCall: next() of an iterator was called while the same thread is inside its next()...
    """


class TransportError(FeedlineError, RuntimeError):
    """A batch could not be sent from a worker to the consumer."""


class NotPicklable(TransportError, pickle.PicklingError, TypeError, AttributeError):
    """The dataset, a function given to the loader, or a batch holds an object that cannot be sent to another process.

    Pickle raises one of three built-in errors, depending on the object and the Python version; this class inherits all.

    Example:
        >>> import threading
        >>> from feedline import Loader
        >>> def locked(samples):
        ...     return threading.Lock()
        >>> next(iter(Loader([1, 2], workers=1, start_method="fork", collate_fn=locked)))
        Traceback (most recent call last):
            ...
        feedline.errors.NotPicklable: The batch (a lock) cannot be sent from a worker process...
    """


class TooManyOpenFiles(TransportError):
    """The process has no file descriptor left."""

    def __init__(self, doing: str) -> None:
        super().__init__(
            f"Too many open files while {doing}. The limit of this process is too low for what it has open: "
            "raise it with `ulimit -n` in the shell, use fewer workers, or close files and loaders that are "
            "no longer needed."
        )


class InternalError(FeedlineError, RuntimeError):
    """A broken invariant inside feedline."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} This is a bug in feedline, not in your code: please report it with this message.")


class FeedlineWarning(UserWarning):
    """Base of all of feedline's own warnings.

    Example:
        >>> import warnings
        >>> from feedline.errors import FeedlineWarning
        >>> warnings.filterwarnings("error", category=FeedlineWarning)  # treat all of feedline's warnings as errors
    """


class DataWarning(FeedlineWarning):
    """Samples may be repeated, missing, wrong, or differ between runs."""


class StateWarning(FeedlineWarning):
    """Training may not resume where it stopped: a state is empty, incomplete, or contradicted by `set_epoch`."""


class WorkerWarning(FeedlineWarning):
    """A worker died, hung, keeps growing in memory, or is slow to start. Nothing is lost so far."""


class PerformanceWarning(FeedlineWarning):
    """The same samples could be loaded much faster."""


class OptionWarning(FeedlineWarning):
    """An argument is accepted but has almost no effect, or a framework drops it."""


PACKAGE = str(Path(__file__).parent)


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn, and point to the line of the user's program that led here, at any depth inside feedline."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def __dir__() -> list[str]:
    return __all__
