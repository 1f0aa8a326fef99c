"""Information about an exception: where it came from, and the notes to add to it."""

from __future__ import annotations

import copy
import functools
import inspect
import signal
import traceback
import types
from collections.abc import Iterator
from typing import Any

TRANSFORMS = ("transform", "transforms", "target_transform")
"""Attributes under which datasets keep what they do to a sample after reading it, by custom."""

INSTEAD_OF_PATH = (
    "Open a path with feedline.datasets.open_dataset(path), or with one of the sources, such as LMDBDataset(path); "
    "`feedline inspect PATH` shows what is in it, and the line that reads it."
)
"""What to say of a path in the place of a dataset."""


class WorkerTraceback(Exception):
    """The cause of an exception that was raised elsewhere; its text is the traceback from there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def words(exc: BaseException) -> str:
    """Return what an exception says, to be part of a sentence: without a full stop; its class, if it says nothing.

    Example:
        >>> words(ValueError("too large.")), words(KeyError())
        ('too large', 'KeyError')
    """
    return str(exc).strip().rstrip(".") or type(exc).__name__


def without_frames(exc: Exception) -> Exception:
    """Let an exception that is kept for later hold no frames: they would keep alive whoever is up the stack.

    Its traceback becomes the text of its cause.
    """
    if exc.__cause__ is None:
        text = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))
        exc.__cause__ = WorkerTraceback(text)
    return exc.with_traceback(None)


def twin_of(exc: Exception) -> Exception:
    """Return a copy of an exception, to be raised in its place: whoever gets it adds frames, which the original keeps.

    One that cannot be copied is returned itself; the garbage collector has to do then.
    """
    try:
        twin = copy.copy(exc)
    except Exception:  # of the user's own
        return exc
    twin.__cause__ = exc.__cause__
    return twin if type(twin) is type(exc) else exc


def add_note(exc: BaseException, note: str) -> None:
    """Attach a note; Python 3.10 keeps it without showing it."""
    if hasattr(exc, "add_note"):
        exc.add_note(note)
        return
    notes = getattr(exc, "__notes__", None)
    exc.__notes__ = [*(notes or []), note]


# Any: an iterator of any kind.
def broke_generator(exc: BaseException, iterator: Any, name: str) -> bool:
    """Say whether an exception has ended the iterator that raised it, which is so of generators, and add a note if so.

    Args:
        exc: the exception.
        iterator: what raised it.
        name: of the dataset that it belongs to.
    """
    if not inspect.isgenerator(iterator):
        return False
    add_note(
        exc,
        f"The iterator of {name} is a generator, which ends with the first exception: the samples after it cannot be "
        "had, whatever on_error says. Catch the exception inside of __iter__, or write an iterator class with "
        "__next__.",
    )
    return True


def stage_of(exc: BaseException, dataset: Any) -> str:
    """Say whether a sample failed while it was fetched or while it was transformed, by the frames it passed."""
    codes = {code for transform in _transforms_of(dataset) for code in _codes_of(transform)}
    trace = exc.__traceback__
    while codes and trace is not None:
        if trace.tb_frame.f_code in codes:
            return "transform"
        trace = trace.tb_next
    return "fetch"


def _transforms_of(dataset: Any) -> Iterator[Any]:
    """Yield what a dataset, or a dataset that it wraps, transforms its samples with."""
    for _ in range(8):  # wrapped in one another; a bound in case of a cycle
        attributes = getattr(dataset, "__dict__", {})
        for name in TRANSFORMS:
            if attributes.get(name) is not None:
                yield attributes[name]
            method = getattr(type(dataset), name, None)
            if isinstance(method, types.FunctionType):
                yield method
        dataset = attributes.get("dataset")
        if dataset is None:
            return


def _codes_of(called: Any) -> Iterator[types.CodeType]:
    """Yield the code that runs when a transform or another object is called."""
    while isinstance(called, functools.partial):
        called = called.func
    for function in (called, *(getattr(type(called), name, None) for name in ("__call__", "forward"))):
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if isinstance(code, types.CodeType):
            yield code


def signal_behind(exc: BaseException) -> int | None:
    """Return the number of the signal whose handler has raised an exception; None if no handler has.

    Python runs handlers between two instructions of the main thread. What they raise says nothing about the work that
    it interrupts, whatever its class: it can be told by the frame of the handler among those it passed. So a handler
    has to be installed still: one that a dataset sets for a moment, for a time-out of its own, is the dataset's affair.
    """
    if isinstance(exc, KeyboardInterrupt):
        return signal.SIGINT
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    codes = {code: number for number, handler in handlers.items() if callable(handler) for code in _codes_of(handler)}
    trace = exc.__traceback__
    while codes and trace is not None:
        if trace.tb_frame.f_code in codes:
            return int(codes[trace.tb_frame.f_code])
        trace = trace.tb_next
    return None


def is_interrupt(exc: BaseException) -> bool:
    """True if an exception came out of a signal handler, such as Ctrl-C: what it interrupted is not to blame."""
    return signal_behind(exc) is not None


def told_indices(indices: Any, most: int = 8) -> str:
    """Name the samples of a batch in a few words."""
    if isinstance(indices, (str, bytes)):
        return repr(indices)
    try:
        items = list(indices)
    except TypeError:
        return repr(indices)
    shown = ", ".join(repr(item) for item in items[:most])
    return shown if len(items) <= most else f"{shown}, ... ({len(items)} in all)"
