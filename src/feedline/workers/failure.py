"""Send an exception from a worker to the training loop: as itself, with the worker's traceback.

An exception that survives pickling arrives unchanged. One that does not (its constructor takes other arguments, it
holds a lock) is rebuilt from its type and text, as torch does; if even that fails, a RuntimeError has the same text.
"""

from __future__ import annotations

import pickle
import traceback

from feedline.errors import NotPicklable
from feedline.system.failures import WorkerTraceback, add_note, words
from feedline.types import Call

UNPICKLABLE = (pickle.PicklingError, TypeError, AttributeError, RecursionError)
"""The exceptions that pickle raises for an object it cannot pickle."""


def pack_failure(exc: BaseException, where: str) -> bytes:
    """Serialise an exception.

    Args:
        exc: the exception.
        where: completes the sentence "Caught ValueError ...".
    """
    text = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))
    summary = f"Caught {type(exc).__name__} {where}."
    parts = {"summary": summary, "traceback": text, "notes": [str(note) for note in getattr(exc, "__notes__", ())]}
    for carrier in (exc, type(exc)):
        try:
            packed = pickle.dumps(carrier, 5)
            if carrier is exc:
                copy = pickle.loads(packed)
                if type(copy) is not type(exc) or str(copy) != str(exc):
                    continue
            return pickle.dumps({**parts, "carrier": packed}, 5)
        except Exception:
            continue
    return pickle.dumps({**parts, "carrier": None}, 5)


def unpack_failure(data: bytes) -> BaseException:
    """Return the exception that `pack_failure` serialised, ready to be raised."""
    parts = pickle.loads(data)
    text = f"{parts['summary']}\nOriginal {parts['traceback']}"
    exc = _revive(parts["carrier"], text)
    if not getattr(exc, "__notes__", None):
        for note in parts["notes"]:
            add_note(exc, note)
    add_note(exc, parts["summary"])
    exc.__cause__ = WorkerTraceback(parts["traceback"])
    return exc


def _revive(packed: bytes | None, text: str) -> BaseException:
    if packed is None:
        return RuntimeError(text)
    try:
        carrier = pickle.loads(packed)
    except Exception:
        return RuntimeError(text)
    if isinstance(carrier, BaseException):
        return carrier
    try:
        rebuilt = carrier(_Verbatim(text) if issubclass(carrier, KeyError) else text)
    except Exception:
        return RuntimeError(text)
    return rebuilt if isinstance(rebuilt, BaseException) else RuntimeError(text)


class _Verbatim(str):
    """Text that a KeyError shows unchanged, without quotes and escaped line breaks."""

    def __repr__(self) -> str:
        return str(self)


def unsendable(indices: object, exc: BaseException) -> NotPicklable:
    """Return the error for indices that cannot be pickled."""
    if type(indices) is Call:
        return NotPicklable(
            f"The arguments of {indices.name}() cannot be sent to worker processes: {words(exc)}. Give values that can "
            "be pickled, or use engine='thread', which sends nothing."
        )
    return NotPicklable(
        f"The indices of a batch ({indices!r:.80}) cannot be sent to a worker process: {words(exc)}. Let the sampler "
        "yield numbers, strings or tuples of these, or use engine='thread', which sends nothing."
    )
