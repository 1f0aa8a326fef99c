"""The suite for sources fails for those that break the contract.

Those that keep it are in tests/datasets and, as users write them, in tests/examples.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feedline.datasets.framework.source import Indices, Source
from feedline.errors import CorruptSource
from feedline.testing import SourceContract
from feedline.testing.asserting import assert_same


class Numbers(Source):
    """A source that keeps the contract."""

    def __len__(self) -> int:
        return 30

    def _read(self, indices: Indices) -> list[Any]:
        return list(indices.tolist())

    def close(self) -> None:
        pass

    def _form(self) -> str:
        return "int"


class OffByOne(Numbers):
    def _read(self, indices: Indices) -> list[Any]:
        return [min(index + 1, 29) for index in indices.tolist()]


class Sorted(Numbers):
    def _read(self, indices: Indices) -> list[Any]:
        return sorted(indices.tolist())


class Unpicklable(Numbers):
    def __reduce__(self) -> Any:
        raise TypeError("no")


class OfOneProcess(Numbers):
    """Like a source that uses an inherited handle."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.pid = os.getpid()

    def _read(self, indices: Indices) -> list[Any]:
        return list(indices.tolist()) if os.getpid() == self.pid else [0] * len(indices)


class ClosedForGood(Numbers):
    closed = False

    def close(self) -> None:
        self.closed = True

    def _read(self, indices: Indices) -> list[Any]:
        if self.closed:
            raise ValueError("closed")
        return list(indices.tolist())


class Endless(Numbers):
    def _checked(self, indices: Iterable[object]) -> Indices:
        return np.minimum(np.array(indices, np.int64), 29)


def suite_for(kind: type[Numbers]) -> SourceContract:
    class Suite(SourceContract):
        def make_source(self, **options: Any) -> Any:
            return kind(**options)

        def samples(self) -> list[Any]:
            return list(range(30))

    return Suite()


TESTS = [name for name in dir(SourceContract) if name.startswith("test_")]


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (OffByOne, "test_samples_are_what_was_written"),
        (Sorted, "test_several_samples_are_read_together"),
        (Unpicklable, "test_a_source_can_be_pickled_before_and_after_it_was_read"),
        (OfOneProcess, "test_a_forked_process_reads_after_its_parent_did"),
        (OfOneProcess, "test_batches_are_the_same_with_every_engine"),
        (ClosedForGood, "test_a_source_can_be_closed_twice_and_used_again"),
        (Endless, "test_an_index_out_of_range_gives_an_error_and_no_sample"),
    ],
)
def test_sources_that_break_the_contract_fail_the_suite(kind: type[Numbers], test: str) -> None:
    assert test in TESTS
    getattr(suite_for(Numbers), test)()
    with pytest.raises((AssertionError, TypeError, ValueError)):
        getattr(suite_for(kind), test)()


class InFile:
    """A source whose samples are the numbers in a file that its subclasses read carelessly, each in another way."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = len(self.numbers())

    def numbers(self) -> list[int]:
        """Return the numbers. The first says how many there are, the last is their sum."""
        try:
            found = [int(line) for line in self.path.read_text().splitlines()]
            if found[0] != len(found) - 2 or found[-1] != sum(found[1:-1]):
                raise ValueError(found)
            return found[1:-1]
        except (FileNotFoundError, ValueError, IndexError) as exc:
            raise CorruptSource(f"{self.path} is damaged: {exc}.") from exc

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return self.numbers()[index]


class Guessing(InFile):
    """Reads what is left of a file."""

    def numbers(self) -> list[int]:
        return [int(line) for line in self.path.read_bytes().split() if line.isdigit()][1:-1]


class Nameless(InFile):
    def numbers(self) -> list[int]:
        try:
            return super().numbers()
        except CorruptSource:
            raise CorruptSource("A file is damaged.") from None


class Remembering(InFile):
    """Keeps half of the samples, and reads the others."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.kept = self.numbers()[:15]

    def __getitem__(self, index: int) -> int:
        return self.kept[index] if index < 15 else super().__getitem__(index)


class TestInFile(SourceContract):
    kind: type[InFile] = InFile
    has_checksums = True

    @pytest.fixture(autouse=True)
    def _write(self, tmp_path: Path) -> None:
        self.path = tmp_path / "numbers.txt"
        self.write(self.samples())

    def write(self, numbers: list[int]) -> None:
        self.path.write_text("".join(f"{number}\n" for number in (len(numbers), *numbers, sum(numbers))))

    def make_source(self, **options: object) -> InFile:
        return self.kind(self.path)

    def samples(self) -> list[int]:
        return list(range(100, 130))

    def files(self) -> list[Path]:
        return [self.path]

    def rewrite(self) -> list[int]:
        self.write(list(range(200, 230)))
        return list(range(200, 230))

    @pytest.mark.slow
    def test_batches_are_the_same_with_every_start_method(self) -> None:
        super().test_batches_are_the_same_with_every_start_method()


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (Guessing, "test_a_file_that_is_cut_off_gives_an_error_that_names_it"),
        (Guessing, "test_a_file_of_another_kind_gives_an_error_that_names_it"),
        (Guessing, "test_a_changed_byte_gives_the_right_samples_or_an_error"),
        (Nameless, "test_a_missing_file_is_named"),
        (Remembering, "test_changed_files_are_never_mixed"),
    ],
)
def test_careless_sources_fail_the_suite(tmp_path: Path, kind: type[InFile], test: str) -> None:
    suite = type("Suite", (TestInFile,), {"kind": kind})()
    suite.path = tmp_path / "numbers.txt"
    suite.write(suite.samples())
    with pytest.raises(AssertionError):
        getattr(suite, test)()


@dataclass
class Record:
    image: torch.Tensor
    signal: np.ndarray[Any, Any]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (torch.tensor([1, 2]), torch.tensor([1.0, 2.0])),
        (torch.zeros(1, 2), torch.zeros(2)),
        (Record(torch.zeros(2), np.zeros(2)), Record(torch.zeros(2), np.ones(2))),
        ([1, 2], [1, 3]),
    ],
)
def test_differences_are_found(found: object, expected: object) -> None:
    with pytest.raises(AssertionError, match=r".+"):
        assert_same(found, expected)
