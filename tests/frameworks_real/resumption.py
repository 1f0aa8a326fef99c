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


def check_rest_of_epoch(cases: list[dict[str, Any]], *, steps: int, epochs: int, samples: int) -> None:
    """Check that every resumed epoch equals the rest of the whole one, and later epochs have every sample once.

    Args:
        cases: one per rank.
        steps: batches in an epoch.
        epochs: how many there were.
        samples: in an epoch, over all ranks.
    """
    for step in cases[0]["rests"]:
        found: dict[int, list[int]] = {}
        for case in cases:
            done, rest = case["rests"][step]
            left = -done % steps
            assert indices(rest[:left]) == indices(case["whole"][done : done + left]), f"after {step}"
            for epoch, batch in indices(rest[left:]):
                found.setdefault(epoch, []).extend(batch)
        assert len(found) == epochs - -(-done // steps), f"after {step}"
        assert all(sorted(seen) == list(range(samples)) for seen in found.values()), f"after {step}"


def check_whole(cases: list[dict[str, Any]], *, epochs: int, samples: int) -> None:
    """Check that every sample came once per epoch, over all ranks."""
    found = [batch for case in cases for batch in indices(case["whole"])]
    for epoch in range(epochs):
        assert sorted(index for number, batch in found if number == epoch for index in batch) == list(range(samples))
