"""`mix`: exact proportions, endless random orders, any number of workers; of map-style data, streams and parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline
from feedline.datasets import ArrayDataset, mix
from feedline.datasets.framework.passes import PartedStream
from feedline.errors import BadOption, SourceError
from feedline.faults import Retry
from feedline.pipes import MapPipe, ShardedPipe, StreamPipe, pipe
from feedline.types import EngineName
from tests.pipes.streams import Plain, saved
from tests.sampling import examples

# Any, throughout: samples and datasets are of any kind.


class Numbers(Plain):
    epoch = -1

    def __init__(self, start: int, count: int = 20) -> None:
        super().__init__(range(start, start + count))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def samples_of(loader: Any) -> list[int]:
    return [int(sample) for batch in loader for sample in batch]


def named(*sizes: int) -> list[list[tuple[int, int]]]:
    return [[(number, index) for index in range(size)] for number, size in enumerate(sizes)]


# --- map-style data ---


@settings(max_examples=examples(40))
@given(
    st.lists(st.tuples(st.integers(1, 40), st.floats(0.1, 10)), min_size=1, max_size=4),
    st.none() | st.integers(1, 150),
    st.integers(0, 2**64),
    st.integers(1, 3),
)
def test_proportions_are_exact_and_no_sample_repeats_before_all_have_come(
    parts: list[tuple[int, float]], size: int | None, seed: int, epochs: int
) -> None:
    mixture: Any = mix(named(*[count for count, _ in parts]), [weight for _, weight in parts], size=size, seed=seed)
    samples = []
    for epoch in range(epochs):
        mixture.set_epoch(epoch)
        samples += list(mixture)
        indices = np.random.default_rng(epoch).integers(-len(mixture), len(mixture), 9)
        assert mixture.__getitems__(indices) == [mixture[index] for index in indices]
        assert [mixture.origin(index)[1] for index in indices] == [mixture[index][1] for index in indices]
    whole = sum(weight for _, weight in parts)
    for number, (count, weight) in enumerate(parts):
        came = np.cumsum([sample[0] == number for sample in samples])
        assert np.abs(came - weight / whole * np.arange(1, len(samples) + 1)).max() < 1.1  # weights may be rounded
        own = [sample for sample in samples if sample[0] == number]
        for start in range(0, len(own), count):
            assert len({*own[start : start + count]}) == len(own[start : start + count])


def test_the_order_depends_only_on_seed_epoch_and_weights() -> None:
    def order(seed: int = 0, epoch: int = 0, weights: Any = (1, 2)) -> list[Any]:
        mixture: Any = mix(named(50, 50), size=60, seed=seed)
        mixture.set_weights(weights)
        mixture.set_epoch(epoch)
        return list(mixture)

    orders = [order(), order(seed=1), order(epoch=1), order(weights=None), order(weights=[2, 1])]
    assert len({tuple(one) for one in orders}) == len(orders)
    assert order(weights=[10, 20]) == order() == order()


def test_members_may_be_mixtures_have_an_order_of_their_own_or_be_large() -> None:
    mixture = mix([mix([["a"] * 10, ["b"] * 10]), ["c"] * 100], size=80)
    assert Counter(mixture) == {"a": 20, "b": 20, "c": 40}
    assert [x for x in pipe(range(4)).mix(pipe(range(10, 14)), size=10) if x < 10] == [0, 1, 2, 3, 0]
    for size in (2**32 + 1, 10**15):
        large: Any = mix([range(3), range(size)], [1, 10**6])
        assert len({large[place] for place in (0, 1, size - 1, size)}) == 4


def test_a_failed_sample_is_named_in_its_dataset() -> None:
    class Broken(list[int]):
        def __getitem__(self, index: Any) -> int:  # type: ignore[override]
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as caught:
        list(feedline.Loader(mix([[1] * 9, Broken([5])], size=9), 3))
    assert "which is sample 0 of the Broken in loader.dataset.datasets[1]" in "".join(caught.value.__notes__)


def test_workers_deliver_what_the_mixture_contains() -> None:
    mapped = mix([ArrayDataset(np.arange(30)), ArrayDataset(np.arange(100, 110))], [3, 1], size=40, seed=1)
    for mixture, engine in ((mapped, "process"), (mix([Numbers(0), Numbers(100), range(200, 220)]), "thread")):
        expected = [int(sample) for sample in mixture]
        with feedline.Loader(mixture, 8, workers=2, engine=engine) as loader:  # type: ignore[arg-type]
            assert samples_of(loader) == expected


# --- weights ---


def test_a_schedule_changes_the_proportions_of_a_mixture() -> None:
    weights = {0: [1, 0], 10: [1, 1], 30: [0, 1]}
    made = pipe(["a"] * 50).mix(["b"] * 50, weights=weights, size=60)
    samples = list(made)
    assert isinstance(made, MapPipe)
    assert [Counter(samples[low:high])["a"] for low, high in ((0, 10), (10, 30), (30, 60))] == [10, 10, 0]
    streamed = pipe(["a"]).repeat().mix(pipe(["b"]).repeat(), weights=weights)
    assert list(streamed.take(60)) == samples


def test_a_mixture_by_tokens() -> None:
    short, long = pipe([[1] * 5]).repeat(), pipe([[2] * 50]).repeat()
    tokens = Counter[int]()
    for sample in short.mix(long, weights=[0.5, 0.5], measure=len).take(400):
        tokens[sample[0]] += len(sample)
        assert abs(tokens[1] - tokens[2]) <= 50
    with_schedule = short.mix(long, weights={0: [1, 0], 100: [0, 1]}, measure=len)
    assert [len(sample) for sample in with_schedule.take(22)] == [5] * 20 + [50] * 2


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_sample_whose_measure_failed_is_retried(error: type[BaseException]) -> None:
    failures = [error()]

    def measure(x: int) -> int:
        if x == 4 and failures:
            raise failures.pop()
        return 1

    mixture: Any = pipe(Plain(range(8))).mix(Plain(range(10, 18)), measure=measure)
    iterator = iter(mixture)
    found: list[int] = []
    while len(found) < 20:
        try:
            if not (taken := iterator.take(1)):
                break
            found += taken
        except OSError:
            assert iterator.try_again()
        except KeyboardInterrupt:
            pass
    assert found == [x for pair in zip(range(8), range(10, 18), strict=True) for x in pair]


@pytest.mark.parametrize(
    "weights", [[1], [1, -1], [1, float("nan")], [0, 0], {5: [1, 1]}, {"a": [1, 1]}, "ab", Numbers(1)], ids=repr
)
def test_bad_weights_are_rejected(weights: Any) -> None:
    for datasets in ([[1], [2]], [[1], Numbers(3)]):
        mixture = mix(datasets)
        for act in (lambda: mix(datasets, weights), lambda: mixture.set_weights(weights)):  # noqa: B023
            with pytest.raises(BadOption, match="weights"):
                act()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"datasets": []}, "datasets"),
        ({"datasets": {"a": [1]}}, "datasets"),
        ({"datasets": ArrayDataset(np.arange(3))}, "datasets"),
        ({"datasets": [[1], 3]}, r"datasets\[1\]=3"),
        ({"datasets": [[1], iter([2])]}, r"datasets\[1\]"),
        *(({"datasets": [first, []]}, r"datasets\[1\]") for first in ([1], Numbers(1))),
        ({"size": 0}, "size=0"),
        ({"seed": "a"}, "seed='a'"),
        ({"repeat": 1}, "repeat=1"),
    ],
)
def test_what_cannot_be_mixed(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(BadOption, match=named):
        mix(**{"datasets": [[1], [2]], **arguments})
    assert {*mix([[1], []], [1, 0], size=3)} == {1}


def test_weights_can_be_set_in_all_workers() -> None:
    for datasets in ([["a"] * 9, ["b"] * 9], [pipe(["a"]).repeat(), pipe(["b"]).repeat()]):
        mixture = mix(datasets, size=12)
        with feedline.Loader(mixture, 4, workers=2, engine="thread", collate_fn=list, persistent=True) as loader:
            assert Counter(sample for batch in loader for sample in batch) == {"a": 6, "b": 6}
            loader.broadcast("set_weights", [1, 3])
            assert Counter(sample for batch in loader for sample in batch) == {"a": 3, "b": 9}
    with pytest.raises(BadOption, match="has no weights"):
        mixture.take(3).set_weights([1, 1])


# --- streams ---


def test_a_stream_among_the_datasets_makes_a_stream() -> None:
    parts: list[Any] = [Numbers(0), range(100, 110)]
    mixture = mix(parts)
    assert isinstance(mixture, StreamPipe)
    samples = list(mixture)
    first = [x for x in samples if x < 100]
    assert first == list(range(len(first))), "in its own order"
    others = [x for x in samples if x >= 100]
    assert sorted(others) == list(range(100, 110)) != others, "once, in random order"
    mixture.set_epoch(1)
    assert [x for x in mixture if x >= 100] != others
    assert parts[0].epoch == 1


def test_datasets_repeat_until_size() -> None:
    mixture = mix([Numbers(0, 3), range(100, 104)], size=20, repeat=True)
    samples = list(mixture)
    assert len(mixture) == len(samples) == 20
    assert [x for x in samples if x < 100] == [number % 3 for number in range(10)]
    others = [x for x in samples if x >= 100]
    assert sorted(others[:4]) == sorted(others[4:8]) == list(range(100, 104))


@pytest.mark.parametrize("on_error", [None, "skip"])
def test_a_dataset_without_samples_cannot_be_repeated(on_error: Any) -> None:
    assert list(mix([Numbers(0, 0)])) == []
    with pytest.raises(SourceError, match="yields no samples"):
        samples_of(feedline.Loader(mix([Numbers(0, 0), Numbers(9)], repeat=True, size=30), 3, on_error=on_error))


class Torn:
    """A generator that fails at its sixth sample: always, or as often as `failures` has entries."""

    def __init__(self, failures: list[str] | None = None) -> None:
        self.failures = failures

    def __iter__(self) -> Iterator[int]:
        for number in range(20):
            if number == 5 and (self.failures is None or self.failures):
                raise OSError(self.failures.pop() if self.failures else "torn")
            yield number


@pytest.mark.parametrize(
    ("make", "on_error", "workers"),
    [
        (lambda: mix([Torn(), Numbers(100)]), "skip", 0),
        (lambda: mix([Torn(), Numbers(100)], repeat=True, size=60), "retry", 2),
        (lambda: mix([mix([Torn(), Numbers(100)]), Numbers(200)]), Retry(1, then="skip", wait_s=0), 2),
        (lambda: pipe(Torn()).filter(lambda _: True).map(abs).window_shuffle(3), None, 2),
        (lambda: pipe(Torn()).batch(2, collate_fn=list).unbatch().zip(range(20)).map(sum), "retry", 0),
        # Fails in one worker, and the sample may belong to a batch of the other one.
        *((lambda: mix([Torn(["torn"]), Numbers(100)]), on_error, 2) for on_error in ("skip", "retry")),
    ],
)
def test_the_error_of_a_generator_is_raised_under_every_policy(make: Any, on_error: Any, workers: int) -> None:
    engine: Any = "thread" if workers else "inline"
    with (
        feedline.Loader(make(), 3, workers=workers, engine=engine, on_error=on_error) as loader,
        pytest.raises(OSError, match="torn") as caught,
    ):
        samples_of(loader)
    assert sum("is a generator" in note for note in caught.value.__notes__) == 1


def test_a_generator_that_fails_while_a_resumed_mixture_reads_again() -> None:
    iterator: Any = iter(mix([Torn([]), Numbers(100)]))
    assert len(list(islice(iterator, 16))) == 16
    resumed: Any = iter(mix([Torn(), Numbers(100)]))
    with pytest.raises(OSError, match="torn"):
        resumed.load_state_dict(iterator.state_dict())


# --- streams that split themselves ---


class Parts(PartedStream):
    """Numbers, split round-robin."""

    def __init__(self, start: int, count: int) -> None:
        super().__init__()
        self.numbers = range(start, start + count)

    def __iter__(self) -> Iterator[int]:
        part, parts = self._part()
        return iter(self.numbers[part::parts])


def split_mixture(count: int = 240, **options: Any) -> Any:
    return mix([Parts(0, count), Numbers(1000, count), np.arange(2000, 2000 + count)], **options)


@pytest.mark.parametrize(("engine", "workers", "ranks"), [("inline", 0, 1), ("thread", 3, 2)])
def test_a_mixture_with_a_stream_that_splits_itself_splits_itself(
    engine: EngineName, workers: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(split_mixture(), ShardedPipe)
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    found, limited = [], []
    for rank in range(ranks):
        monkeypatch.setenv("RANK", str(rank))
        with feedline.Loader(split_mixture(), 4, engine=engine, workers=workers) as loader:
            came = samples_of(loader)
        shares = Counter(number // 1000 for number in came)
        assert max(shares.values()) - min(shares.values()) <= 4 * max(1, workers)
        assert len(came) > 0.9 * 720 / ranks
        found += came
        limited += samples_of(feedline.Loader(split_mixture(50, size=400, repeat=True), 4, workers=0))
    assert len(found) == len({*found}), "each sample comes once"
    assert len(limited) == 400, "the size is that of all parts"


def test_a_mixture_that_splits_itself_resumes() -> None:
    whole = [batch.tolist() for batch in feedline.Loader(split_mixture(60), 4)]
    for taken in (0, 1, 15):
        loader = feedline.Loader(split_mixture(60), 4)
        first = [batch.tolist() for batch in islice(loader, taken)]
        other = feedline.Loader(split_mixture(60), 4)
        other.load_state_dict(saved(loader.state_dict()))
        loader.close()
        assert first + [batch.tolist() for batch in other] == whole
