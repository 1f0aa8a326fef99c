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
"""Attributes in which datasets conventionally keep their transforms."""

INSTEAD_OF_PATH = (
    "Open a path with feedline.datasets.open_dataset(path), or with one of the sources, such as LMDBDataset(path); "
    "`feedline inspect PATH` shows what is in it, and the line that reads it."
)
"""Advice for a path given in place of a dataset."""


class WorkerTraceback(Exception):
    """The cause of an exception that was raised elsewhere; its text is the traceback from there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def words(exc: BaseException) -> str:
    """Return the text of an exception for use in a sentence: without a full stop; its class, if it has no text.

    Example:
        >>> words(ValueError("too large.")), words(KeyError())
        ('too large', 'KeyError')
    """
    return str(exc).strip().rstrip(".") or type(exc).__name__


def without_frames(exc: Exception) -> Exception:
    """Drop the frames of an exception that is kept for later: they would keep objects of its callers alive.

    Its traceback becomes the text of its cause.
    """
    if exc.__cause__ is None:
        text = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))
        exc.__cause__ = WorkerTraceback(text)
    return exc.with_traceback(None)


def twin_of(exc: Exception) -> Exception:
    """Return a copy of an exception, to be raised in its place: raising adds frames, which the original would keep.

    If it cannot be copied, it is returned itself, and its frames are left to the garbage collector.
    """
    try:
        twin = copy.copy(exc)
    except Exception:  # raised by the user's class
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


def broke_generator(exc: BaseException, iterator: object, name: str) -> bool:
    """True if an exception has ended the iterator that raised it, as it does with generators; adds a note then."""
    if not inspect.isgenerator(iterator):
        return False
    add_note(
        exc,
        f"The iterator of {name} is a generator, which ends with the first exception: the samples after it are lost, "
        "whatever on_error says. Catch the exception inside __iter__, or write an iterator class with __next__.",
    )
    return True


def note_last(exc: BaseException) -> None:
    """Mark an exception after which its stream has no sample: no policy may skip it."""
    exc.__dict__["_ends_stream"] = True


def is_last(exc: BaseException) -> bool:
    """True if `note_last` has marked an exception."""
    return "_ends_stream" in exc.__dict__


def stage_of(exc: BaseException, dataset: object) -> str:
    """Return whether a sample failed while it was fetched or while it was transformed, judging by the traceback."""
    codes = {code for transform in _transforms_of(dataset) for code in _codes_of(transform)}
    trace = exc.__traceback__
    while codes and trace is not None:
        if trace.tb_frame.f_code in codes:
            return "transform"
        trace = trace.tb_next
    return "fetch"


def _transforms_of(dataset: object) -> Iterator[object]:
    """Yield the transforms of a dataset, and of the datasets that it wraps."""
    for _ in range(8):  # nested datasets; a bound in case of a cycle
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


def _codes_of(called: object) -> Iterator[types.CodeType]:
    """Yield the code that runs when a transform or another object is called."""
    while isinstance(called, functools.partial):
        called = called.func
    for function in (called, *(getattr(type(called), name, None) for name in ("__call__", "forward"))):
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if isinstance(code, types.CodeType):
            yield code


def signal_behind(exc: BaseException) -> int | None:
    """Return the number of the signal whose handler has raised an exception; None if no handler has.

    Python runs handlers between two instructions of the main thread. Their exceptions, of any class, say nothing about
    the work they interrupt. The handler's frame in the traceback identifies them. So the handler must still be
    installed: one that a dataset sets for a moment, for a timeout of its own, is left to the dataset.
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
    """True if an exception was raised by a signal handler, as for Ctrl-C: the interrupted code is not to blame."""
    return signal_behind(exc) is not None


def indices_text(indices: Any, most: int = 8) -> str:
    """Describe the samples of a batch briefly."""
    if isinstance(indices, (str, bytes)):
        return repr(indices)
    try:
        items = list(indices)
    except TypeError:
        return repr(indices)
    shown = ", ".join(repr(item) for item in items[:most])
    return shown if len(items) <= most else f"{shown}, ... ({len(items)} in all)"


def samples_text(indices: object) -> str:
    """Describe a sample, or the samples of a batch, briefly and with their noun."""
    is_one = not isinstance(indices, list) or len(indices) == 1
    return f"{'sample' if is_one else 'samples'} {indices_text(indices)}"
