"""A `BaseException` of a dataset is raised unchanged, and then the next batch comes, as with torch."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch.utils.data

from tests.faults.loaders import Numbers, everywhere, make, on, plain

pytestmark = pytest.mark.filterwarnings("ignore::feedline.errors.WorkerWarning")


class Leaving(Numbers):
    """Sample 5 raises something."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__(12)
        self.error = error

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise self.error("sample 5")
        return super().__getitem__(index)


def outcomes(loader: Any) -> list[Any]:
    """Return the batches, and the classes of exceptions raised in their place."""
    batches = iter(loader)
    found: list[Any] = []
    while len(found) < 10:
        try:
            found.append(plain(next(batches)))
        except StopIteration:
            return found
        except BaseException as exc:
            found.append(type(exc))
    raise AssertionError(f"no end: {found}")


@pytest.mark.parametrize(
    ("loader_kind", "engine", "error", "on_error"),
    [
        ("Loader", "inline", SystemExit, "skip"),
        ("DataLoader", "thread", SystemExit, "raise"),
        ("DataLoader", "inline", asyncio.CancelledError, "raise"),
        ("Loader", "process", asyncio.CancelledError, "skip"),
    ],
)
def test_base_exceptions_are_raised_unchanged_and_the_next_batch_comes(
    loader_kind: str, engine: str, error: type[BaseException], on_error: str
) -> None:
    loader = make(loader_kind, Leaving(error), on_error=on_error, **on(engine))
    assert outcomes(loader) == [[0, 1, 2, 3], error, [8, 9, 10, 11]]
    assert outcomes(torch.utils.data.DataLoader(Leaving(error), batch_size=4)) == outcomes(loader), "as torch does"  # type: ignore[arg-type]
    assert [fault.error.rpartition(".")[2] for fault in loader.faults][:1] == [error.__name__]


def test_an_interrupt_is_not_blamed_on_the_sample() -> None:
    class Once(Numbers):
        came = False

        def __getitem__(self, index: int) -> Any:
            if index == 5 and not self.came:
                self.came = True
                raise KeyboardInterrupt
            return super().__getitem__(index)

    loader = make("Loader", Once(12))
    assert outcomes(loader) == [[0, 1, 2, 3], KeyboardInterrupt, [8, 9, 10, 11]]
    assert len(loader.faults) == 0


class LeavingSampler:
    def __iter__(self) -> Iterator[int]:
        yield from range(10)
        sys.exit("no more")

    def __len__(self) -> int:
        return 12


@everywhere
def test_an_exception_of_the_sampler_is_raised_in_place_of_its_batch(loader_kind: str, engine: str) -> None:
    loader = make(loader_kind, Numbers(12), 2, sampler=LeavingSampler(), **on(engine))
    assert outcomes(loader) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], SystemExit]
