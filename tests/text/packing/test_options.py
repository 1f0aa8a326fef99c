"""Checks of arguments."""

from __future__ import annotations

import numpy as np
import pytest

from feedline.errors import BadOption
from feedline.text.packing.options import check_choice, check_count


def test_numpy_integers_are_accepted_as_counts() -> None:
    assert type(check_count("length", np.int32(3))) is int


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None])
def test_rejects_values_that_are_not_counts(value: object) -> None:
    with pytest.raises(BadOption, match=f"length={value!r} is not a positive integer"):
        check_count("length", value)


def test_choices() -> None:
    check_choice("strategy", "a", ("a", "b"))
    with pytest.raises(BadOption, match="strategy='c' is not one of 'a', 'b'"):
        check_choice("strategy", "c", ("a", "b"))
