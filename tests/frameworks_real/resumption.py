"""Checks of runs that were resumed from many steps: all batches with their epochs, and the rest after each step."""

from __future__ import annotations

from typing import Any


def indices(batches: list[Any]) -> list[Any]:
    """Return epochs and samples, without the random numbers that the samples drew."""
    return [[epoch, [int(sample[0]) for sample in batch]] for epoch, batch in batches]


def check_rest(case: dict[str, Any], *, draws: bool) -> None:
    """Check that every resumed run equals the rest of the whole run; `draws`: including random numbers."""
    whole = case["whole"]
    assert case["rests"]
    for step, (done, rest) in case["rests"].items():
        assert indices(rest) == indices(whole[done:]), f"after {step}"
        assert not draws or rest == whole[done:], f"after {step}"


def check_whole(cases: list[dict[str, Any]], *, epochs: int, samples: int) -> None:
    """Check that every sample came once per epoch, over all ranks."""
    found = [batch for case in cases for batch in indices(case["whole"])]
    for epoch in range(epochs):
        assert sorted(index for number, batch in found if number == epoch for index in batch) == list(range(samples))
