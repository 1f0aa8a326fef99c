"""The tree of errors."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest

from feedline import errors

NAMES = sorted(errors.__all__)
MADE_WITH: dict[str, dict[str, Any]] = {
    "MissingExtra": {"module": "redis.client", "extra": "redis", "purpose": "A stream"},
    "TooManyOpenFiles": {"doing": "starting 4 workers"},
    "InternalError": {"what": "A slot has two owners."},
}


def make(name: str) -> Exception:
    kind = getattr(errors, name)
    exc: Exception = kind(**MADE_WITH[name]) if name in MADE_WITH else kind("what happened")
    return exc


def test_every_error_is_listed() -> None:
    found = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert found == set(errors.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_every_error_is_a_feedline_error_with_a_built_in_that_callers_already_catch(name: str) -> None:
    kind = getattr(errors, name)
    if issubclass(kind, Warning):
        assert issubclass(kind, errors.FeedlineWarning), "all of them can be silenced at once"
        assert issubclass(kind, UserWarning)
        assert not issubclass(kind, errors.FeedlineError), "a warning turned into an error is not a failure of feedline"
        return
    assert issubclass(kind, errors.FeedlineError)
    if kind is not errors.FeedlineError:
        assert issubclass(kind, (RuntimeError, ValueError, ImportError, OSError))


@pytest.mark.parametrize("name", NAMES)
def test_every_error_can_be_sent_from_a_worker(name: str) -> None:
    exc = make(name)
    for again in (pickle.loads(pickle.dumps(exc, 2)), pickle.loads(pickle.dumps(exc, 5)), copy.copy(exc)):
        assert type(again) is type(exc)
        assert str(again) == str(exc)
        assert again.args == exc.args
        assert again.__dict__ == exc.__dict__


def test_the_drawing_of_the_tree_is_correct() -> None:
    drawn = dict(re.findall(r"([A-Z]\w+)(?: \((\w+)\))?  +\w", errors.__doc__ or ""))
    assert {"FeedlineError", "FeedlineWarning", *drawn} == set(errors.__all__)
    for name, base in drawn.items():
        if base:
            assert base in [parent.__name__ for parent in getattr(errors, name).__bases__]


def test_a_missing_package_comes_with_the_command_that_installs_it() -> None:
    exc = make("MissingExtra")
    assert "pip install 'feedline[redis]'" in str(exc)
    assert "'redis'" in str(exc)


def test_a_warning_points_to_the_callers_line_outside_feedline() -> None:
    with pytest.warns(errors.StateWarning, match="what happened") as warned:
        errors.warn_user("what happened", errors.StateWarning)
    assert [warning.filename for warning in warned] == [__file__]
