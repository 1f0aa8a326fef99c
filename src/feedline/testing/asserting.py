"""Comparing samples, and running what may end a process."""

from __future__ import annotations

import dataclasses
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from feedline.system.optional import is_tensor

T = TypeVar("T")


def apart(act: Callable[[], T]) -> T:
    """Call `act` in a forked process, if the system has them: reading a map of a file that shrinks ends a process."""
    if not hasattr(os, "fork"):
        return act()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            outcome = pickle.dumps((act(), None))
        except BaseException:
            outcome = pickle.dumps((None, traceback.format_exc()))
        os.write(writer, outcome)
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        outcome = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert outcome, f"the process that read the files ended with status {status}"
    result, failure = pickle.loads(outcome)
    assert failure is None, failure
    return result  # type: ignore[no-any-return]


def error_of(act: Callable[[], object], kind: type[Exception]) -> Exception:
    """Return the exception that `act` raises, which must be a `kind`."""
    try:
        found = act()
    except kind as exc:
        return exc
    raise AssertionError(f"expected {kind.__name__}, but {found!r} was returned")


def assert_same(found: Any, expected: Any) -> None:
    """Compare nested containers of arrays, tensors, numbers, strings and bytes: types and bits."""
    assert type(found) is type(expected), f"found {type(found).__name__}, expected {type(expected).__name__}"
    if isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), _difference(found, expected)
        assert found.tobytes() == expected.tobytes(), _difference(found, expected)
    elif is_tensor(expected):
        sys.modules["torch"].testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    elif isinstance(expected, dict):
        assert list(found) == list(expected), _difference(found, expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), _difference(found, expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            assert_same(getattr(found, field.name), getattr(expected, field.name))
    else:
        assert found == expected or (found != found and expected != expected), _difference(found, expected)


def _difference(found: object, expected: object) -> str:
    return f"found {found!r:.1000}, expected {expected!r:.1000}"
