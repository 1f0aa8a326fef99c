"""What streams of shards promise, in every format that is read this way."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import pickle
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline
from feedline.datasets import JSONLines, TarDataset, TFRecordDataset
from feedline.datasets.framework.shares import shares_of
from feedline.datasets.storage.ahead import Ahead
from feedline.errors import BadOption, BadState, CorruptSource, SourceChanged, SourceError, WorkerWarning
from feedline.types import EngineName
from tests.datasets.formats.tar.writing import numbered, tar_bytes
from tests.datasets.formats.tfrecord.records import file_of
from tests.datasets.transforms import FailsOnce
from tests.sampling import examples

SIZES = (13, 1, 20, 7, 16, 0, 9)
COUNT = sum(SIZES)
CONTENT: dict[str, Callable[[Iterable[int]], bytes]] = {
    "tar": lambda numbers: tar_bytes([file for number in numbers for file in numbered(1, number)]),
    "tfrecord": lambda numbers: file_of(b"%d" % number for number in numbers),
    "jsonl": lambda numbers: b"".join(b"%d\n" % number for number in numbers),
}
OWN = ["tar", "tfrecord"]
"""Formats of which every worker reads shards of its own."""


def write(folder: Path, kind: str, *, sizes: Iterable[int] = SIZES, packed: bool = False) -> list[str]:
    """Write shards of numbered samples; half of each in a gzip member of its own if they are packed."""
    folder.mkdir(exist_ok=True, parents=True)
    first, paths = 0, []
    for place, size in enumerate(sizes):
        data = CONTENT[kind](range(first, first + size))
        if packed:
            data = gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :])
        path = folder / f"shard-{place:03d}.{kind}{'.gz' if packed else ''}"
        path.write_bytes(data)
        paths.append(str(path))
        first += size
    return paths


# Any: options as users give them, and passes of streams, which have methods that iterators lack.
def stream(kind: str, paths: list[str], transform: Any = None, remote: Any = None, **order: Any) -> Any:
    if kind == "tar":
        return TarDataset(paths, "cls", transform=transform, remote=remote, cache=False).stream(**order)
    if kind == "tfrecord":
        return TFRecordDataset(paths, parse=int, transform=transform, cache=False).stream(**order)
    return JSONLines(paths, transform=transform, remote=remote, cache=False).stream(**order)


def listed(loader: Any) -> list[int]:
    return [int(number) for batch in loader for number in batch]


@pytest.fixture(params=CONTENT)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def paths(tmp_path: Path, kind: str) -> list[str]:
    return write(tmp_path / "shards", kind)


# -- order ---


def test_without_shuffling_samples_keep_their_order(kind: str, paths: list[str]) -> None:
    dataset = stream(kind, paths)
    assert list(dataset) == list(dataset) == list(range(COUNT))
    assert f"{len(SIZES)} " in repr(dataset)
    assert "str" in repr(stream(kind, paths, str))


@pytest.mark.parametrize("kind", OWN)
def test_each_epoch_has_its_own_order_that_follows_from_the_seed(kind: str, paths: list[str]) -> None:
    found = []
    for seed, epoch in itertools.product((0, 1), (0, 1)):
        dataset = stream(kind, paths, shuffle=True, buffer=10, seed=seed)
        dataset.set_epoch(epoch)
        found.append(tuple(dataset))
        assert sorted(found[-1]) == list(range(COUNT))
        assert tuple(dataset) == found[-1]
    assert len(set(found)) == 4
    found_in_shards = list(stream(kind, paths, shuffle=True, buffer=0))
    assert found_in_shards != list(range(COUNT))
    for start, size in zip(itertools.accumulate(SIZES, initial=0), SIZES, strict=False):
        if size:
            place = found_in_shards.index(start)
            assert found_in_shards[place : place + size] == list(range(start, start + size))


def test_shards_are_shuffled_before_they_are_split() -> None:
    """Each epoch gives a part different shards, not only another order."""
    dataset = stream("tar", [f"{number}.tar" for number in range(100)], shuffle=True)
    turns = [share.turn for share in shares_of(100, (0, 10))]
    own = [frozenset(dataset.order(epoch)[turn] for turn in turns) for epoch in range(150)]
    assert len(set(own)) == 150
    assert set().union(*own) == set(range(100))


# -- workers and ranks ---


@pytest.mark.parametrize("workers", [0, 3, 10])
def test_each_sample_comes_once_with_any_number_of_workers(kind: str, paths: list[str], workers: int) -> None:
    engine: EngineName = "thread" if workers else "inline"
    dataset = stream(kind, paths, **({} if kind == "jsonl" else {"shuffle": True, "buffer": 10, "seed": 3}))
    for shard in (None, True, False) if kind in OWN else (None,):
        loader = feedline.DataLoader(dataset, 4, num_workers=workers, engine=engine, shard=shard)
        assert sorted(listed(loader)) == list(range(COUNT))
    if kind in OWN:
        with pytest.raises(BadOption, match="shard"):
            feedline.Loader(dataset, 4, shard="exact")


def test_worker_processes(kind: str, tmp_path: Path) -> None:
    dataset = stream(kind, write(tmp_path, kind, packed=True))
    assert next(iter(dataset)) == 0  # files that are open now belong to the parent
    expected = listed(feedline.Loader(dataset, 4, workers=2, engine="thread"))
    assert listed(feedline.Loader(dataset, 4, workers=2)) == expected
    torchs = listed(torch.utils.data.DataLoader(dataset, 4, num_workers=2))
    assert sorted(torchs) == sorted(expected) == list(range(COUNT))


@pytest.mark.parametrize("kind", OWN)
def test_ranks_and_workers_split_without_overlap(kind: str, paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "4")
        dataset = stream(kind, paths, shuffle=True, buffer=5)
        found += (own := listed(feedline.Loader(dataset, 4, workers=3, engine="thread")))
        assert own
    assert sorted(found) == list(range(COUNT))
    expected, text = list(dataset), pickle.dumps(dataset)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert list(pickle.loads(text)) == expected, "a pickled stream carries its rank"
    monkeypatch.setenv("RANK", "2")
    for size in ("2", "x", ""):
        monkeypatch.setenv("WORLD_SIZE", size)
        with pytest.raises(BadOption, match="WORLD_SIZE"):
            iter(stream(kind, paths))


# -- positions ---


@settings(deadline=None, max_examples=examples(60))
@given(
    kind=st.sampled_from([*CONTENT]),
    taken=st.integers(0, COUNT),
    buffer=st.sampled_from([0, 1, 7, 40, 1000]),
    part=st.sampled_from([(0, 1), (1, 2), (9, 10)]),
    packed=st.booleans(),
    again=st.integers(0, 20),
)
def test_a_state_saved_anywhere_resumes_with_the_next_sample(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    taken: int,
    buffer: int,
    part: tuple[int, int],
    packed: bool,
    again: int,
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"resume-{kind}-{packed}"
    paths = sorted(map(str, folder.iterdir())) if folder.exists() else write(folder, kind, packed=packed)
    dataset = stream(kind, paths) if kind == "jsonl" else stream(kind, paths, shuffle=True, buffer=buffer, seed=1)
    begin = type(iter(dataset))
    if kind != "jsonl":
        dataset.set_epoch(2)
    expected = list(begin(dataset, part))
    first = begin(dataset, part)
    assert list(itertools.islice(first, taken)) == expected[:taken]
    state = json.loads(json.dumps(first.state_dict()))
    assert len(json.dumps(state)) < 400
    if kind != "jsonl":
        dataset.set_epoch(0)  # the state contains its own
    second = begin(dataset, part)
    second.load_state_dict(state)
    assert second.state_dict() == state
    middle = list(itertools.islice(second, again))
    third = begin(dataset, part)
    third.load_state_dict(second.state_dict())
    assert [*expected[:taken], *middle, *third] == expected
    assert list(first) == expected[taken:]


@settings(deadline=None, max_examples=examples(60))
@given(data=st.data())
def test_any_number_of_parts_continues_where_others_stopped(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Repeatedly, from states in the middle of shards that several parts share."""
    kind, packed = data.draw(st.sampled_from(OWN)), data.draw(st.booleans())
    folder = tmp_path_factory.getbasetemp() / f"reshard-{kind}-{packed}"
    paths = sorted(map(str, folder.iterdir())) if folder.exists() else write(folder, kind, packed=packed)
    dataset = stream(kind, paths, shuffle=data.draw(st.booleans()), buffer=data.draw(st.sampled_from([0, 3, 30])))
    dataset.set_epoch(1)
    begin, found, states = type(iter(dataset)), list[int](), dict[int, Any]()
    count = data.draw(st.integers(1, 9))
    for _ in range(3):
        left = {}
        for number in range(count):
            part = begin(dataset, (number, count))
            if number in states:
                part.load_state_dict(states[number])
            taken = data.draw(st.integers(0, 30))
            found += itertools.islice(part, taken)
            left[number] = json.loads(json.dumps(part.state_dict())) if taken or states else None
        into = data.draw(st.integers(1, 9))
        states, count = dict(enumerate(dataset.reshard(left, count, into, 1))), into
    for number, state in states.items():
        part = begin(dataset, (number, count))
        part.load_state_dict(state)
        found += part
    assert sorted(found) == list(range(COUNT))


def test_resuming_reads_only_the_rest(kind: str, paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first = iter(stream(kind, paths[:3]))
    next(itertools.islice(first, 24, None))
    read: list[str] = []
    from feedline.datasets.storage.blob import LocalBlob

    original = LocalBlob.read

    def watched(self: LocalBlob, start: int, stop: int) -> bytes:
        read.append(Path(self.name).stem)
        return original(self, start, stop)

    monkeypatch.setattr(LocalBlob, "read", watched)
    second = iter(stream(kind, paths[:3]))
    second.load_state_dict(first.state_dict())
    assert list(second) == list(range(25, 34))
    assert {*read} == {"shard-002"}


@pytest.mark.parametrize("kind", OWN)
def test_states_of_other_options_files_and_parts_are_rejected(kind: str, paths: list[str]) -> None:
    state = iter(stream(kind, paths, shuffle=True)).state_dict()
    for names, options, word in (
        (paths, {"shuffle": True, "seed": 1}, "seed"),
        (paths, {"shuffle": True, "buffer": 5}, "buffer"),
        (paths, {}, "shuffle"),
        (paths[1:], {"shuffle": True}, f"{len(SIZES)} files"),
        (paths[::-1], {"shuffle": True}, "names"),
    ):
        with pytest.raises(BadState, match=word):
            iter(stream(kind, names, **options)).load_state_dict(state)
    with pytest.raises(BadState, match="part"):
        type(iter(stream(kind, paths)))(stream(kind, paths, shuffle=True), (0, 2)).load_state_dict(state)
    for wrong in (None, {}, {"epoch": 1}, [1]):
        with pytest.raises(BadState):
            iter(stream(kind, paths)).load_state_dict(wrong)


def test_moved_files_are_the_same_and_changed_ones_are_not(kind: str, tmp_path: Path) -> None:
    first = iter(stream(kind, write(tmp_path / "before", kind)))
    next(itertools.islice(first, 17, None))
    state, rest = first.state_dict(), list(first)
    moved = write(tmp_path / "after", kind)
    second = iter(stream(kind, moved))
    second.load_state_dict(state)
    assert list(second) == rest
    Path(moved[2]).write_bytes(CONTENT[kind](range(30)))
    third = iter(stream(kind, moved))
    third.load_state_dict(state)
    with pytest.raises(SourceChanged, match="when the state was saved"):
        next(third)


# -- several samples at a time ---


def test_take_and_next_and_skip_in_any_order(kind: str, paths: list[str]) -> None:
    for first, count in itertools.product(range(0, COUNT, 7), (0, 1, 5, 29, 100)):
        iterator = iter(stream(kind, paths))
        assert iterator.skip(first) == first
        found: list[int] = []
        while len(found) < count and (some := iterator.take(count - len(found))):
            found += some
        assert found == list(range(COUNT))[first : first + count]
        state = iterator.state_dict()
        assert iterator.skip(2) == len(range(COUNT)[first + count :][:2])
        assert list(iterator) == list(range(COUNT))[first + count + 2 :]
        again = iter(stream(kind, paths))
        again.load_state_dict(json.loads(json.dumps(state)))
        assert list(again) == list(range(COUNT))[first + count :]


# -- failures ---


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_was_cut_off_raises_after_its_complete_samples(kind: str, tmp_path: Path, packed: bool) -> None:
    paths = write(tmp_path, kind, sizes=(3, 400, 3), packed=packed)
    cut = Path(paths[1])
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size * 3 // 4])
    if kind == "jsonl" and not packed:
        cut.write_bytes(cut.read_bytes() + b"?")  # its last line is damaged
    samples, found = iter(stream(kind, paths)), list[int]()
    with pytest.raises(CorruptSource, match="shard-001"):
        found.extend(samples)
    assert found == list(range(len(found)))
    assert len(found) > 100
    again = iter(stream(kind, paths))
    again.load_state_dict(json.loads(json.dumps(samples.state_dict())))
    assert list(samples) == list(again) == [403, 404, 405]
    loader = feedline.Loader(stream(kind, paths), 4, workers=2, engine="thread", on_error="skip")
    assert sorted(listed(loader)) == [*found, 403, 404, 405]


@pytest.mark.parametrize("kind", OWN)
def test_a_missing_file_is_named_and_the_others_are_read(kind: str, paths: list[str]) -> None:
    dataset = stream(kind, paths)
    Path(paths[2]).unlink()
    iterator = iter(dataset)
    assert list(itertools.islice(iterator, 14)) == list(range(14))
    with pytest.raises(SourceError, match="shard-002"):
        next(iterator)
    assert list(iterator) == list(range(34, COUNT))
    loader = feedline.Loader(dataset, 4, on_error=feedline.faults.Retry(2, wait_s=0, then="skip"))
    assert listed(loader) == [*range(14), *range(34, COUNT)]
    assert loader.stats()["faults"]["retry"] == 0, "the exception is not about one sample"


@pytest.mark.parametrize("kind", OWN)
def test_a_shard_that_comes_back_before_a_resume_repeats_nothing(kind: str, tmp_path: Path) -> None:
    paths = write(tmp_path, kind, sizes=(20, 20, 20, 20))
    dataset = stream(kind, paths, shuffle=True, buffer=30, seed=3)
    gone = dataset.order(0)[1]
    away = Path(paths[gone]).rename(tmp_path / "away")
    loader = feedline.Loader(dataset, 1, on_error="skip")
    found = [int(batch[0]) for batch in itertools.islice(loader, 20)]
    away.rename(paths[gone])
    again = feedline.Loader(stream(kind, paths, shuffle=True, buffer=30, seed=3), 1, on_error="skip")
    again.load_state_dict(loader.state_dict())
    found += listed(again)
    assert len(found) == len(set(found))
    assert set(range(80)) - set(range(20 * gone, 20 * gone + 20)) <= set(found)


def test_a_common_stream_ends_if_a_file_is_missing(tmp_path: Path) -> None:
    paths = write(tmp_path, "jsonl")
    iterator = iter(stream("jsonl", paths))
    away = Path(paths[2]).rename(tmp_path / "away")
    assert list(itertools.islice(iterator, 14)) == list(range(14))
    with pytest.raises(SourceError, match="shard-002"):
        next(iterator)
    assert iterator.has_broken_off
    away.rename(paths[2])
    assert list(iterator) == list(range(14, COUNT))


@pytest.mark.parametrize("kind", OWN)
def test_damage_after_a_state_was_saved_is_an_error(kind: str, tmp_path: Path) -> None:
    """The samples that follow it were not returned yet, even if some with higher numbers were."""
    paths = write(tmp_path / kind, kind, sizes=[200, 20])
    first = iter(stream(kind, paths, shuffle=True, buffer=1000, seed=1))
    found = list(itertools.islice(first, 60))
    whole = Path(paths[0]).read_bytes()
    Path(paths[0]).write_bytes(whole[: len(whole) // 2] + b"\xff" * (len(whole) - len(whole) // 2))
    second = iter(stream(kind, paths, shuffle=True, buffer=1000, seed=1))
    second.load_state_dict(first.state_dict())
    with pytest.raises(CorruptSource, match="shard-000"):
        found.extend(second)
    found.extend(second)
    assert len({*found}) == len(found) >= 60


def test_a_closed_pass_goes_on_where_it_was(kind: str, tmp_path: Path) -> None:
    samples = iter(stream(kind, write(tmp_path, kind, sizes=[3000, 5], packed=True)))
    found = list(itertools.islice(samples, 10))
    samples.close()
    assert not [file for file in Path("/proc/self/fd").iterdir() if str(tmp_path) in os.path.realpath(file)]
    found += samples
    assert found == list(range(3005))


def test_stop_iteration_of_a_transform_is_an_error(kind: str, paths: list[str]) -> None:
    def stopped(number: int) -> int:
        return number if number != 5 else next(iter(()))

    for read in (list, lambda samples: [samples.take(3) for _ in range(9)]):
        with pytest.raises(RuntimeError, match="StopIteration"):
            read(iter(stream(kind, paths, stopped)))


def test_a_file_that_changes_while_it_is_read_is_detected(kind: str, tmp_path: Path) -> None:
    (path,) = write(tmp_path, kind, sizes=[2000])
    iterator = iter(stream(kind, [path]))
    next(iterator)
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceChanged, match="was changed while it was read"):
        list(iterator)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_retried_sample_is_not_lost(kind: str, paths: list[str], shuffle: bool) -> None:
    dataset = stream(kind, paths, FailsOnce({0, 11, 33}), shuffle=shuffle)
    loader = feedline.Loader(dataset, 4, on_error=feedline.faults.Retry(1, wait_s=0))
    assert sorted(listed(loader)) == list(range(COUNT))


def test_a_failing_transform_costs_one_sample(kind: str, paths: list[str]) -> None:
    def fail(number: int) -> int:
        if number % 10 == 3:
            raise KeyError(number)
        return number

    loader = feedline.Loader(stream(kind, paths, fail), 4, on_error="skip")
    assert listed(loader) == [number for number in range(COUNT) if number % 10 != 3]


def test_an_interrupt_loses_nothing(kind: str, paths: list[str]) -> None:
    calls: list[int] = []

    def interrupted(number: int) -> int:
        calls.append(number)
        if calls.count(number) == 1 and number in (0, 5, 17, COUNT - 1):
            signal.raise_signal(signal.SIGINT)
        return number

    for order in [{}] if kind == "jsonl" else [{}, {"shuffle": True, "buffer": 7}]:
        for step in (None, 9):
            calls.clear()
            iterator, found = iter(stream(kind, paths, interrupted, **order)), list[int]()
            while len(found) < COUNT:
                state = iterator.state_dict()
                try:
                    found += [next(iterator)] if step is None else iterator.take(step)
                except KeyboardInterrupt:
                    now = iterator.state_dict()
                    assert (now["number"], now["last"]) == (state["number"], state["last"])
            assert sorted(found) == list(range(COUNT))


def test_an_interrupt_while_reading_loses_nothing(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = stream(kind, write(tmp_path, kind, packed=True), **({} if kind == "jsonl" else {"shuffle": True}))
    whole, found, original, calls = list(dataset), list[int](), Ahead.next_chunk, itertools.count(1)

    def interrupted(self: Ahead) -> bytes:
        if next(calls) in (1, 3, 6, 9):
            raise KeyboardInterrupt
        return original(self)

    monkeypatch.setattr(Ahead, "next_chunk", interrupted)
    samples, interrupts = iter(dataset), 0
    while len(found) < len(whole):
        try:
            found.extend(samples)
        except KeyboardInterrupt:
            interrupts += 1
    assert found == whole
    assert interrupts == 4


# -- reading ahead ---


class KillsItsWorkerOnce:
    """A transform that kills its process the first time it sees a certain sample."""

    def __init__(self, marker: Path, number: int) -> None:
        self.marker = marker
        self.number = number

    def __call__(self, sample: Any) -> Any:
        if sample == self.number and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return sample


def test_a_killed_worker_is_replaced_and_nothing_is_lost_or_repeated(
    kind: str, paths: list[str], tmp_path: Path
) -> None:
    order = {} if kind == "jsonl" else {"shuffle": True, "buffer": 12}
    plain = feedline.Loader(stream(kind, paths, **order), 4, workers=2, engine="thread")
    expected = [[int(n) for n in batch] for batch in plain]
    deadly = stream(kind, paths, KillsItsWorkerOnce(tmp_path / "killed", 30), **order)
    loader = feedline.Loader(deadly, 4, workers=2)
    with pytest.warns(WorkerWarning):
        assert [[int(n) for n in batch] for batch in loader] == expected
    assert (tmp_path / "killed").exists()
