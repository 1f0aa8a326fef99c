"""Errors: the user's exception arrives with the worker's traceback, and nothing hangs."""

import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Sampler

import feedline
from tests.parity import datasets
from tests.parity.children import in_a_child
from tests.parity.observation import Failure
from tests.parity.sides import Parity, Side, same_inline, same_with_workers

pytestmark = pytest.mark.workers(1)

Make = Callable[[int], BaseException]

ORDINARY: dict[str, tuple[Make, str]] = {
    "ValueError": (datasets.value_error, "bad sample 5"),
    "KeyError": (datasets.key_error, "column-5"),
    "with a message field": (datasets.message_field, "message 5"),
}


def drain(loader: Any, limit: int = 50) -> list[Any]:
    """Return everything the loader delivers until it ends, exceptions included."""
    results: list[Any] = []
    iterator = iter(loader)
    while len(results) < limit:
        try:
            results.append(next(iterator))
        except StopIteration:
            return results
        except Exception as error:
            Failure.of(error)
            results.append(error.with_traceback(None))
    raise AssertionError("the loader never ends")


@pytest.mark.parametrize("name", ORDINARY)
def test_an_exception_of_the_dataset_keeps_its_type(parity: Parity, name: str) -> None:
    make, text = ORDINARY[name]

    def code(side: Side) -> object:
        return list(side.loader(datasets.Failing(make), batch_size=2))

    failure = parity.same_failure(code, text)
    assert "__getitem__" in failure.report, "the traceback of the dataset is lost"
    assert "datasets.py" in failure.report


@pytest.mark.parametrize("at", [(0, 1, 2), (2, 4, 11)])
def test_iteration_continues_after_a_failed_batch(parity: Parity, at: tuple[int, ...]) -> None:
    parity.same(lambda side: drain(side.loader(datasets.Failing(datasets.value_error, at=at), batch_size=2)))


# Other places that may raise


def test_an_exception_of_an_iterable_dataset(parity: Parity) -> None:
    def code(side: Side) -> object:
        return list(side.loader(datasets.FailingIterable(3), batch_size=2))

    failure = parity.same_failure(code, "cannot read value 3")
    assert "__iter__" in failure.report


@pytest.mark.parametrize("batch_size", [None, 2])
def test_batches_of_an_iterable_dataset_around_a_failure(parity: Parity, batch_size: int | None) -> None:
    """A generator that raised is finished, so the samples it yielded for the failed batch are lost."""
    parity.same(lambda side: drain(side.loader(datasets.FailingIterable(3), batch_size=batch_size)))


@pytest.mark.parametrize("invalid", ["a", 1.5])
def test_a_sampler_that_yields_invalid_indices(parity: Parity, invalid: object) -> None:
    def code(side: Side) -> object:
        return list(side.loader(["x", "y"], sampler=[invalid], batch_size=1))

    parity.same_failure(code, "list indices must be integers or slices")


# Samplers


class FailingSampler(Sampler[int]):
    """Raises an exception when its iterator is requested, or before its third index; it would go on afterwards."""

    def __init__(self, at: str) -> None:
        self.at = at

    def __iter__(self) -> Iterator[int]:
        if self.at == "iter":
            raise ValueError("no order")
        return self

    yielded = 0

    def __next__(self) -> int:
        self.yielded += 1
        if self.yielded == 3:
            raise ValueError("no third index")
        if self.yielded == 7:
            raise StopIteration
        return self.yielded

    def __len__(self) -> int:
        return 6


@pytest.mark.parametrize(("at", "batch_size"), [("iter", 2), ("next", 2), ("next", None)])
@same_inline
def test_an_iterator_after_an_exception_of_its_sampler(side: Side, at: str, batch_size: int | None) -> object:
    """torch's BatchSampler is a generator, and ends with the exception."""
    return drain(side.loader(datasets.Squares(8), sampler=FailingSampler(at), batch_size=batch_size))


# Exceptions that are hard to transfer


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (datasets.two_arguments, "sample 5: broken header"),
        (datasets.keyword_only, "code 5"),
        (datasets.unpicklable_error, "locked 5"),
        (datasets.unicode_error, "bad byte in 5"),
        (datasets.picky, "number 5"),
    ],
)
def test_exceptions_with_odd_constructors(parity: Parity, make: Make, text: str) -> None:
    """torch falls back on RuntimeError if it cannot rebuild the exception; the original type is better."""
    expected, actual = parity.both(lambda side: list(side.loader(datasets.Failing(make), batch_size=2)))
    assert expected.failure is not None
    assert actual.failure is not None, "the exception was lost"
    assert actual.failure.kind in (type(make(5)), expected.failure.kind), actual.failure.report
    assert text in actual.failure.text
    assert "__getitem__" in actual.failure.report


def test_exceptions_of_local_classes(parity: Parity) -> None:
    """torch's loader with workers hangs here: the class cannot be found by name in the other process."""

    class Local(Exception):
        pass

    loader = parity.feedline.loader(datasets.Failing(lambda index: Local(f"local {index}")), batch_size=2)
    with pytest.raises(Exception, match="local 5") as caught:
        list(loader)
    assert "__getitem__" in Failure.of(caught.value).report


def test_an_exception_with_a_cause(parity: Parity) -> None:
    class Caused(datasets.Squares):
        def __getitem__(self, index: int) -> Any:
            try:
                return dict[str, int]()["missing"]
            except KeyError as error:
                raise RuntimeError("cannot decode") from error

    failure = parity.same_failure(lambda side: list(side.loader(Caused(4), batch_size=2)), "cannot decode")
    assert "missing" in failure.report, "the cause is lost"


@same_with_workers
def test_stop_iteration_of_a_map_dataset(side: Side) -> object:
    """In a worker, it must not end the loop by accident."""
    loader = side.loader(datasets.Failing(datasets.stop_iteration), batch_size=2)
    iterator = iter(loader)
    seen = []
    try:
        for _ in range(6):
            seen.append(next(iterator))
    except StopIteration as error:
        Failure.of(error)
        seen.append("stopped")
    return seen


# Batches that cannot be transferred. torch's loader hangs: its worker prints a traceback and never answers.


def test_a_batch_that_cannot_be_pickled_is_a_clear_error() -> None:
    options: dict[str, Any] = {"num_workers": 1, "engine": "process", "collate_fn": datasets.lock_in_batch}
    loader = feedline.DataLoader(datasets.Squares(4), batch_size=2, **options)
    with pytest.raises(Exception, match=r"(?i)pickle") as caught:
        next(iter(loader))
    Failure.of(caught.value)


# Running out of system resources


def test_running_out_of_descriptors_names_the_limit() -> None:
    def work() -> object:
        loader = feedline.DataLoader(datasets.Squares(8), batch_size=2, num_workers=2, engine="process")
        first_free = os.dup(0)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (first_free + 4, hard))
        return [batch.tolist() for batch in loader]

    assert "ulimit -n" in str(in_a_child(work))


# Time-outs


def test_a_timeout_has_torchs_message(worker_parity: Parity) -> None:
    """torch's own loader takes ten seconds to end such a worker."""
    dataset = datasets.Stuck()
    with pytest.raises(RuntimeError, match=r"^DataLoader timed out after 0\.2 seconds"):
        next(iter(worker_parity.feedline.loader(dataset, batch_size=1, timeout=0.2)))
    dataset.released.set()


# Workers that die


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_worker_raises_a_runtime_error_with_its_pid(
    process_parity: Parity, tmp_path: Path, signal_number: int
) -> None:
    pids = []

    def code(side: Side) -> object:
        note = tmp_path / f"{side.is_feedline}"
        try:
            return list(side.loader(datasets.Killed(note, signal_number=signal_number), batch_size=2))
        finally:
            pids.append(note.read_text())

    expected, actual = process_parity.both(code)
    for observation, pid in zip((expected, actual), pids, strict=True):
        assert observation.failure is not None
        assert issubclass(observation.failure.kind, RuntimeError)
        assert pid in observation.failure.text
