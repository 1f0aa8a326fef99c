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
    │   ├── BatchNotPicklable             the batch holds something that cannot be sent
    │   ├── NotPicklable (PicklingError)  the dataset or a function cannot be sent to a worker process
    │   └── TooManyOpenFiles              the process ran out of file descriptors
    └── InternalError (RuntimeError)      a broken invariant: please report it

Warnings, grouped by what you would silence or turn into errors together:

    FeedlineWarning (UserWarning)
    ├── DataWarning                       samples may be repeated, missing, wrong, or differ between runs
    ├── StateWarning                      training may not resume where it stopped
    ├── WorkerWarning                     a worker died, grows, or cannot be placed; another does its work
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
    "BatchNotPicklable",
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
    """Base of everything feedline raises on purpose."""

    def __reduce__(self) -> Any:  # workers send these; the arguments of __init__ are not always the text
        return _remade, (type(self), self.args, self.__dict__)


def _remade(kind: type[FeedlineError], args: tuple[object, ...], attributes: dict[str, object]) -> FeedlineError:
    exc = kind.__new__(kind)
    exc.args = args
    exc.__dict__.update(attributes)
    return exc


class BadOption(FeedlineError, ValueError):
    """An argument, or a combination of arguments, that cannot work."""


class DatasetFailed(BadOption):
    """A dataset named by the user whose code failed.

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
    """A saved state that is damaged, of another version, or of a loader with other data."""


class BadRecording(FeedlineError, ValueError):
    """A file that is truncated, of another version, or not a recording."""


class MissingExtra(FeedlineError, ImportError):
    """An optional package is required but not installed."""

    def __init__(self, *, module: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {module.partition('.')[0]!r}, which is not installed. "
            f"Install it with: pip install 'feedline[{extra}]'"
        )
        self.module = module
        self.extra = extra


class CollateError(FeedlineError, RuntimeError):
    """The samples of a batch cannot be combined: their shapes, fields or types differ."""


class EmptyBatch(CollateError):
    """No samples are left in a batch. A training loop may catch this and continue with the next batch."""


class TooManyBadSamples(FeedlineError, RuntimeError):
    """More samples failed than the error policy allows.

    Args:
        message: what happened.
        faults: the samples, as a list of `feedline.faults.Fault`, which this rung may not name.
    """

    def __init__(self, message: str, faults: Iterable[Any] = ()) -> None:
        super().__init__(message)
        self.faults = list(faults)


class SourceError(FeedlineError, OSError):
    """A store of samples cannot be read: it is missing, unreachable, refused or damaged."""


class CorruptSource(SourceError):
    """The data in a store is incomplete, or not in the format it claims."""


class SourceChanged(SourceError):
    """A store has changed since an index or a cache was built from it."""


class PackError(FeedlineError, RuntimeError):
    """Samples could not be packed: one failed or does not fit, the disk is full, or the data read back differs.

    The output written so far is kept beside the target, and the next run continues from there.
    """


class WorkerError(FeedlineError, RuntimeError):
    """Something happened to a worker, not to a sample."""


class WorkerDied(WorkerError):
    """A worker was killed, crashed or exited before its work was done."""

    was_ready = True
    """False if the worker died before it was ready to work."""
    was_killed: bool | None = False
    """True if a signal from another process, such as SIGKILL, ended it, rather than a crash. None if unknown."""


class WorkerTimeout(WorkerError):
    """No batch arrived within the loader's `timeout`."""


class WorkerStartError(WorkerError):
    """A worker could not be started."""


class ReentrantCall(FeedlineError, RuntimeError):
    """An iterator was used inside its own `next()`, by the same thread."""


class TransportError(FeedlineError, RuntimeError):
    """A batch could not be sent from a worker to the consumer."""


class BatchNotPicklable(TransportError):
    """The batch holds an object that cannot be sent to another process."""


class NotPicklable(TransportError, pickle.PicklingError, TypeError, AttributeError):
    """The dataset, or a function given to the loader, cannot be sent to a worker process.

    Pickle raises one of three built-in errors, depending on the object and the Python version; this class inherits all.
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
    """Base of all of feedline's own warnings."""


class DataWarning(FeedlineWarning):
    """Samples may be repeated, missing, wrong, or differ between runs."""


class StateWarning(FeedlineWarning):
    """Training may not resume where it stopped: a state is empty, incomplete, or contradicted by `set_epoch`."""


class WorkerWarning(FeedlineWarning):
    """A worker died, was stuck, keeps growing in memory, or cannot be placed. Nothing is lost so far."""


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
