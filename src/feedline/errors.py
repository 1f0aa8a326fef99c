"""Every error feedline raises on purpose.

    FeedlineError
    ├── BadOption (ValueError)            arguments that cannot work together, refused at construction
    │   └── DatasetFailed                 the user's code failed while a dataset was made or tried
    ├── BadState (ValueError)             a saved state that does not fit this loader
    ├── BadRecording (ValueError)         a file that is no recording, or not a whole one
    ├── MissingExtra (ImportError)        an optional package is needed and absent
    ├── CollateError (RuntimeError)       the samples of a batch do not fit together
    │   └── EmptyBatch                    nothing was left of a batch
    ├── TooManyBadSamples (RuntimeError)  more samples failed than the policy allows
    ├── SourceError (OSError)             a store cannot be read
    │   ├── CorruptSource                 what is there is not whole, or not what it says it is
    │   └── SourceChanged                 it is not the one any more that was looked at before
    ├── PackError (RuntimeError)          samples cannot be written into the format that was asked for
    ├── WorkerError (RuntimeError)        something happened to a worker
    │   ├── WorkerDied                    it was killed, crashed or left
    │   ├── WorkerTimeout                 no batch arrived within `timeout`
    │   └── WorkerStartError              it could not be started
    ├── ReentrantCall (RuntimeError)      next() was called from inside of next()
    ├── TransportError (RuntimeError)     a batch could not cross to the consumer
    │   ├── BatchNotPicklable             the batch holds something that cannot be sent
    │   ├── NotPicklable (PicklingError)  the dataset or a function cannot be sent to a worker process
    │   └── TooManyOpenFiles              the process ran out of file descriptors
    └── InternalError (RuntimeError)      a broken invariant: please report it

Warnings, each a class of its own so that it can be silenced or made an error:

    FeedlineWarning (UserWarning)
    ├── RepeatedSamples                   every worker or rank delivers the whole dataset, or every epoch the same order
    ├── SplitTwice                        samples are shared out twice, and some are left out
    ├── UnequalStreams                    workers that should read the same samples do not
    ├── SharedGenerators                  a dataset draws from generators that threads cannot own
    ├── SharedHandle                      a dataset holds a handle that does not survive a fork
    ├── WorkerRestarted                   a worker died or was stuck, and another took its place
    ├── WaitingForRay                     Ray has found no place for a worker so far
    ├── GrowingWorker                     a worker takes more and more memory
    ├── ShortPasses                       much of the time goes into starting workers
    ├── SharedQueues                      a GPU decodes where it may have to wait for the training
    ├── NotCached                         samples draw random numbers, and a cache does not keep them
    ├── CacheDropped                      a cache is of another dataset, and is filled again
    ├── RowGroupsReadAgain                most of what is decoded of a Parquet file is not used
    ├── EpochIgnored                      set_epoch was called, but a restored state says where to go on
    ├── DoubtfulArgument                  an argument that is accepted, and hardly does what was meant
    └── OptionsLost                       a framework does not keep what the loader was asked for

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
    "CacheDropped",
    "CollateError",
    "CorruptSource",
    "DatasetFailed",
    "DoubtfulArgument",
    "EmptyBatch",
    "EpochIgnored",
    "FeedlineError",
    "FeedlineWarning",
    "GrowingWorker",
    "InternalError",
    "MissingExtra",
    "NotCached",
    "NotPicklable",
    "OptionsLost",
    "PackError",
    "ReentrantCall",
    "RepeatedSamples",
    "RowGroupsReadAgain",
    "SharedGenerators",
    "SharedHandle",
    "SharedQueues",
    "ShortPasses",
    "SourceChanged",
    "SourceError",
    "SplitTwice",
    "TooManyBadSamples",
    "TooManyOpenFiles",
    "TransportError",
    "UnequalStreams",
    "WaitingForRay",
    "WorkerDied",
    "WorkerError",
    "WorkerRestarted",
    "WorkerStartError",
    "WorkerTimeout",
]


class FeedlineError(Exception):
    """Base of everything feedline raises on purpose."""

    def __reduce__(self) -> Any:  # workers send these; the arguments of __init__ are not always the text
        return _remade, (type(self), self.args, self.__dict__)


def _remade(kind: type[FeedlineError], args: tuple[Any, ...], attributes: dict[str, Any]) -> FeedlineError:
    exc = kind.__new__(kind)
    exc.args = args
    exc.__dict__.update(attributes)
    return exc


class BadOption(FeedlineError, ValueError):
    """An argument, or a combination of arguments, that cannot work."""


class DatasetFailed(BadOption):
    """A dataset that a user named, and whose code failed.

    Args:
        text: what happened, and what to do.
        reason: "import" (it could not be imported or made), "raises" (every sample raised), "hangs", "crashes" (its
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
    """A file that is cut off, of another version, or no recording at all."""


class MissingExtra(FeedlineError, ImportError):
    """An optional package is needed for what was asked."""

    def __init__(self, *, module: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {module.partition('.')[0]!r}, which is not installed. "
            f"Install it with: pip install 'feedline[{extra}]'"
        )
        self.module = module
        self.extra = extra


class CollateError(FeedlineError, RuntimeError):
    """The samples of a batch cannot be put together: their shapes, fields or types differ."""


class EmptyBatch(CollateError):
    """No sample of a batch was left to make it from. A training loop may catch this and go on with the next batch."""


class TooManyBadSamples(FeedlineError, RuntimeError):
    """More samples failed than the policy for failures allows.

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
    """What was found in a store is not whole, or not what it says it is."""


class SourceChanged(SourceError):
    """A store is not the one any more of which an index or a cache was made."""


class PackError(FeedlineError, RuntimeError):
    """Samples could not be packed: one failed or does not fit, the disk is full, or what is read back differs.

    What was written until then is kept beside the output, and the next run goes on from there.
    """


class WorkerError(FeedlineError, RuntimeError):
    """Something happened to a worker, not to a sample."""


class WorkerDied(WorkerError):
    """A worker was killed, crashed or left before its work was done."""

    was_ready = True
    """False if it had not even got ready to work."""
    was_killed: bool | None = False
    """True if a signal ended it that another process sends, such as SIGKILL; not one of a crash. None if unknown."""


class WorkerTimeout(WorkerError):
    """No batch arrived within the loader's `timeout`."""


class WorkerStartError(WorkerError):
    """A worker could not be started."""


class ReentrantCall(FeedlineError, RuntimeError):
    """An iterator was used from inside of its own `next()`, by the same thread."""


class TransportError(FeedlineError, RuntimeError):
    """A batch could not cross from a worker to the consumer."""


class BatchNotPicklable(TransportError):
    """The batch holds an object that cannot be sent to another process."""


class NotPicklable(TransportError, pickle.PicklingError, TypeError, AttributeError):
    """The dataset, or a function given to the loader, cannot be sent to a worker process.

    Pickle raises one of three built-in errors, depending on the object and the version of Python: this is all of them.
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
    """Base of everything feedline warns of on its own."""


class RepeatedSamples(FeedlineWarning):
    """Every worker, or every rank, delivers the whole dataset, or every epoch has the same order."""


class SharedGenerators(FeedlineWarning):
    """A dataset draws from generators of the process, which thread workers cannot own."""


class SharedHandle(FeedlineWarning):
    """A dataset holds a handle that does not survive a fork."""


class WorkerRestarted(FeedlineWarning):
    """A worker died or was stuck; another took its place and its work, and nothing is lost."""


class WaitingForRay(FeedlineWarning):
    """Ray has found no place for a worker so far."""


class GrowingWorker(FeedlineWarning):
    """A worker takes more and more memory."""


class ShortPasses(FeedlineWarning):
    """Passes over a loader are so short that much of their time goes into starting and ending workers."""


class EpochIgnored(FeedlineWarning):
    """`set_epoch` was called with another epoch than the one that a restored state goes on with."""


class DoubtfulArgument(FeedlineWarning):
    """An argument that is accepted, and hardly does what was meant by it."""


class OptionsLost(FeedlineWarning):
    """A framework rebuilt a loader, or wants it used, in a way that some of its options do not survive."""


class SharedQueues(FeedlineWarning):
    """A GPU decodes images in a queue that it may share with the training, which makes both wait."""


class NotCached(FeedlineWarning):
    """Samples draw random numbers while they are made, so that a cache does not keep them."""


class CacheDropped(FeedlineWarning):
    """A cache is of another dataset, transform or version, or damaged: it is emptied, and filled again."""


class RowGroupsReadAgain(FeedlineWarning):
    """Random order over row groups that do not fit into what is kept: most of what is decoded is not used."""


class SplitTwice(FeedlineWarning):
    """Samples are shared out twice: by dataset and loader, or by one distributed sampler around another."""


class UnequalStreams(FeedlineWarning):
    """An iterable dataset that every worker should read alike yields other samples in some."""


PACKAGE = str(Path(__file__).parent)


def tell(message: str, category: type[Warning]) -> None:
    """Warn, and point to the line of the user's program that led here, however deep inside feedline that is."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
