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
import torchdata.stateful_dataloader
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline
from feedline.datasets import JSONLines, Remote, TarDataset, TFRecordDataset
from feedline.datasets.framework.shard_stream import ShardStream
from feedline.datasets.framework.shares import shares_of
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
    assert "shuffle=True, buffer=10, seed=1" in repr(dataset)


@pytest.mark.parametrize("kind", OWN)
def test_a_buffer_of_size_0_shuffles_only_shards(kind: str, paths: list[str]) -> None:
    found = list(stream(kind, paths, shuffle=True, buffer=0))
    assert found != list(range(COUNT))
    for start, size in zip(itertools.accumulate(SIZES, initial=0), SIZES, strict=False):
        if size:
            place = found.index(start)
            assert found[place : place + size] == list(range(start, start + size))


def test_shards_are_shuffled_before_they_are_split() -> None:
    """Each epoch gives a part different shards, not only another order."""
    dataset = stream("tar", [f"{number}.tar" for number in range(100)], shuffle=True)
    turns = [share.turn for share in shares_of(100, (0, 10))]
    own = [frozenset(dataset.order(epoch)[turn] for turn in turns) for epoch in range(150)]
    assert len(set(own)) == 150
    assert set().union(*own) == set(range(100))


# -- workers and ranks ---


@pytest.mark.parametrize("workers", [0, 1, 3, 10])
def test_each_sample_comes_once_with_any_number_of_workers(kind: str, paths: list[str], workers: int) -> None:
    engine: EngineName = "thread" if workers else "inline"
    dataset = stream(kind, paths, **({} if kind == "jsonl" else {"shuffle": True, "buffer": 10, "seed": 3}))
    for loader in (
        feedline.Loader(dataset, 4, workers=workers, engine=engine),
        feedline.DataLoader(dataset, 4, num_workers=workers, engine=engine),
    ):
        assert sorted(listed(loader)) == list(range(COUNT))
    assert isinstance(dataset, torch.utils.data.IterableDataset)


@pytest.mark.parametrize("packed", [False, True])
def test_worker_processes(kind: str, tmp_path: Path, packed: bool) -> None:
    dataset = stream(kind, write(tmp_path, kind, packed=packed))
    assert next(iter(dataset)) == 0  # files that are open now belong to the parent
    for workers in (2, 9):
        expected = listed(feedline.Loader(dataset, 4, workers=workers, engine="thread"))
        assert sorted(expected) == list(range(COUNT))
        assert listed(feedline.Loader(dataset, 4, workers=workers)) == expected
        assert listed(feedline.DataLoader(dataset, 4, num_workers=workers)) == expected
        torchs = listed(torch.utils.data.DataLoader(dataset, 4, num_workers=workers))
        assert sorted(torchs) == list(range(COUNT))


@pytest.mark.parametrize("kind", OWN)
def test_ranks_and_workers_split_without_overlap(kind: str, paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for ranks, workers in ((2, 0), (4, 3)):
        found = []
        for rank in range(ranks):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", str(ranks))
            dataset = stream(kind, paths, shuffle=True, buffer=5)
            own = listed(feedline.Loader(dataset, 4, workers=workers, engine="thread" if workers else "inline"))
            assert own
            found += own
        assert sorted(found) == list(range(COUNT))
    expected, text = list(dataset), pickle.dumps(dataset)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert list(pickle.loads(text)) == expected, "a pickled stream carries its rank"
    monkeypatch.setenv("RANK", "2")
    for size in ("2", "x", ""):
        monkeypatch.setenv("WORLD_SIZE", size)
        with pytest.raises(BadOption, match=r"environment.*WORLD_SIZE"):
            iter(stream(kind, paths))


@pytest.mark.parametrize("kind", OWN)
def test_the_loader_does_not_split_it_again(kind: str, paths: list[str]) -> None:
    for shard in (None, True, False):
        loader = feedline.DataLoader(stream(kind, paths), 4, num_workers=2, engine="thread", shard=shard)
        assert sorted(listed(loader)) == list(range(COUNT))
    with pytest.raises(BadOption, match="splits itself"):
        feedline.Loader(stream(kind, paths), 4, shard="exact")


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


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loader_kind", ["Loader", "DataLoader"])
def test_loaders_resume_at_every_step(kind: str, paths: list[str], workers: int, loader_kind: str) -> None:
    def make() -> Any:
        dataset = stream(kind, paths, **({} if kind == "jsonl" else {"shuffle": True, "buffer": 12, "seed": 4}))
        engine: EngineName = "thread" if workers else "inline"
        if loader_kind == "Loader":
            return feedline.Loader(dataset, 4, workers=workers, engine=engine)
        return feedline.DataLoader(dataset, 4, num_workers=workers, engine=engine)

    loader = make()
    epochs = [[[int(n) for n in batch] for batch in loader] for _ in range(2)]
    for steps in range(len(epochs[0]) + 1):
        first = make()
        iterator = iter(first)
        for _ in range(steps):
            next(iterator)
        state = json.loads(json.dumps(first.state_dict()))
        second = make()
        second.load_state_dict(state)
        assert [[int(n) for n in batch] for batch in second] == epochs[0][steps:]
        assert [[int(n) for n in batch] for batch in second] == epochs[1]
        del iterator


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_torchdatas_loader_resumes_it(kind: str, paths: list[str]) -> None:
    def make() -> Any:
        return torchdata.stateful_dataloader.StatefulDataLoader(stream(kind, paths), 4, num_workers=0)

    expected = [batch.tolist() for batch in make()]
    first = make()
    iterator = iter(first)
    for _ in range(5):
        next(iterator)
    second = make()
    second.load_state_dict(first.state_dict())
    assert [batch.tolist() for batch in second] == expected[5:]


@pytest.mark.parametrize("kind", OWN)
def test_states_of_other_options_files_and_parts_are_rejected(kind: str, paths: list[str]) -> None:
    state = iter(stream(kind, paths, shuffle=True)).state_dict()
    for options, word in (
        ({"shuffle": True, "seed": 1}, "seed"),
        ({"shuffle": True, "buffer": 5}, "buffer"),
        ({}, "shuffle"),
    ):
        with pytest.raises(BadState, match=word):
            iter(stream(kind, paths, **options)).load_state_dict(state)
    with pytest.raises(BadState, match=f"{len(SIZES)} files, and now there are {len(SIZES) - 1}"):
        iter(stream(kind, paths[1:], shuffle=True)).load_state_dict(state)
    with pytest.raises(BadState, match="files of other names"):
        iter(stream(kind, paths[::-1], shuffle=True)).load_state_dict(state)
    with pytest.raises(BadState, match="part"):
        type(iter(stream(kind, paths)))(stream(kind, paths, shuffle=True), (0, 2)).load_state_dict(state)
    for wrong in (None, {}, {"epoch": 1}, [1]):
        with pytest.raises(BadState, match="not the state of a pass"):
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
    state = samples.state_dict()
    assert list(samples) == [403, 404, 405]
    again = iter(stream(kind, paths))
    again.load_state_dict(json.loads(json.dumps(state)))
    assert list(again) == [403, 404, 405]
    for workers in (0, 2):
        loader = feedline.Loader(stream(kind, paths), 4, workers=workers, on_error="skip")
        assert sorted(listed(loader)) == [*found, 403, 404, 405]


@pytest.mark.parametrize("kind", OWN)
def test_a_missing_file_is_named_and_the_others_are_read(kind: str, paths: list[str]) -> None:
    dataset = stream(kind, paths)
    Path(paths[2]).unlink()
    iterator = iter(dataset)
    assert list(itertools.islice(iterator, 14)) == list(range(14))
    with pytest.raises(SourceError, match=r"shard-002\.\w+ cannot be opened"):
        next(iterator)
    assert list(iterator) == list(range(34, COUNT))
    skips = feedline.faults.Retry(2, wait_s=0, then="skip")
    for policy in ("skip", skips):
        loader = feedline.Loader(dataset, 4, on_error=policy)
        assert listed(loader) == [*range(14), *range(34, COUNT)]
        assert loader.stats()["faults"]["retry"] == 0, "the exception is not about one sample"


@pytest.mark.parametrize("taken", [5, 20, 40])
@pytest.mark.parametrize("kind", OWN)
def test_a_shard_that_comes_back_before_a_resume_repeats_nothing(kind: str, tmp_path: Path, taken: int) -> None:
    paths = write(tmp_path, kind, sizes=(20, 20, 20, 20))
    dataset = stream(kind, paths, shuffle=True, buffer=30, seed=3)
    gone = dataset.order(0)[1]
    away = Path(paths[gone]).rename(tmp_path / "away")
    loader = feedline.Loader(dataset, 1, on_error="skip")
    found = [int(batch[0]) for batch in itertools.islice(loader, taken)]
    state = loader.state_dict()
    away.rename(paths[gone])
    again = feedline.Loader(stream(kind, paths, shuffle=True, buffer=30, seed=3), 1, on_error="skip")
    again.load_state_dict(state)
    found += listed(again)
    assert len(found) == len(set(found))
    assert set(range(80)) - set(range(20 * gone, 20 * gone + 20)) <= set(found)


def test_a_common_stream_ends_if_a_file_is_missing(tmp_path: Path) -> None:
    paths = write(tmp_path, "jsonl")
    dataset = stream("jsonl", paths)
    away = Path(paths[2]).rename(tmp_path / "away")
    with pytest.raises(SourceError, match=r"shard-002\.jsonl cannot be opened"):
        listed(feedline.Loader(dataset, 4, on_error="skip"))
    iterator = iter(dataset)
    assert list(itertools.islice(iterator, 14)) == list(range(14))
    with pytest.raises(SourceError, match="shard-002"):
        next(iterator)
    assert iterator.has_broken_off
    away.rename(paths[2])
    assert list(iterator) == list(range(14, COUNT))


@pytest.mark.parametrize("workers", [0, 2])
def test_all_workers_of_a_common_stream_read_the_same_version(tmp_path: Path, workers: int) -> None:
    paths = write(tmp_path, "jsonl")
    loader = feedline.Loader(stream("jsonl", paths), 4, workers=workers, engine="thread" if workers else "inline")
    Path(paths[2]).write_bytes(b"1\n" * 50)
    with pytest.raises(SourceChanged, match="shard-002"):
        listed(loader)


@pytest.mark.parametrize("buffer", [0, 1000])
def test_damage_after_a_state_was_saved_is_an_error(tmp_path: Path, buffer: int) -> None:
    """The samples that follow it were not returned yet, even if some with higher numbers were."""
    for kind in OWN:
        paths = write(tmp_path / kind, kind, sizes=[200, 20])
        first = iter(stream(kind, paths, shuffle=True, buffer=buffer, seed=1))
        found = list(itertools.islice(first, 60))
        state, whole = first.state_dict(), Path(paths[0]).read_bytes()
        Path(paths[0]).write_bytes(whole[: len(whole) // 2] + b"\xff" * (len(whole) - len(whole) // 2))
        second = iter(stream(kind, paths, shuffle=True, buffer=buffer, seed=1))
        second.load_state_dict(state)
        with pytest.raises(CorruptSource, match="shard-000"):
            found.extend(second)
        found.extend(second)
        assert len({*found}) == len(found) >= 60


def test_a_closed_pass_goes_on_where_it_was(kind: str, tmp_path: Path) -> None:
    for packed in (False, True):
        paths = write(tmp_path / str(packed), kind, sizes=[3000, 5], packed=packed)
        samples = iter(stream(kind, paths))
        found = list(itertools.islice(samples, 10))
        samples.close()
        assert not [file for file in Path("/proc/self/fd").iterdir() if str(tmp_path) in os.path.realpath(file)]
        found += samples
        assert found == list(range(3005))


@pytest.mark.parametrize("kind", ["tar", "jsonl"])
def test_a_forked_process_goes_on_with_a_pass_that_reads_ahead(kind: str, paths: list[str]) -> None:
    samples = iter(stream(kind, paths, remote=Remote(read_ahead=2)))
    assert next(samples) == 0
    pid = os.fork()
    if pid == 0:
        os._exit(0 if list(samples) == list(range(1, COUNT)) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert list(samples) == list(range(1, COUNT))


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


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_retried_sample_is_not_lost(kind: str, paths: list[str], workers: int, shuffle: bool) -> None:
    dataset = stream(kind, paths, FailsOnce({0, 11, 33}), shuffle=shuffle)
    loader = feedline.Loader(dataset, 4, workers=workers, on_error=feedline.faults.Retry(1, wait_s=0))
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


@pytest.mark.parametrize("packed", [False, True])
def test_an_interrupt_while_reading_loses_nothing(
    kind: str, tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from feedline.datasets.storage.ahead import Ahead

    dataset = stream(kind, write(tmp_path, kind, packed=packed), **({} if kind == "jsonl" else {"shuffle": True}))
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


@pytest.mark.parametrize("number", [0, 30])
def test_a_killed_worker_is_replaced_and_nothing_is_lost_or_repeated(
    kind: str, paths: list[str], tmp_path: Path, number: int
) -> None:
    order = {} if kind == "jsonl" else {"shuffle": True, "buffer": 12}
    plain = feedline.Loader(stream(kind, paths, **order), 4, workers=2, engine="thread")
    expected = [[int(n) for n in batch] for batch in plain]
    deadly = stream(kind, paths, KillsItsWorkerOnce(tmp_path / "killed", number), **order)
    loader = feedline.Loader(deadly, 4, workers=2)
    with pytest.warns(WorkerWarning):
        assert [[int(n) for n in batch] for batch in loader] == expected
    assert (tmp_path / "killed").exists()


# -- reading ahead ---


@pytest.mark.parametrize("kind", ["tar", "jsonl"])
def test_reading_ahead_with_threads_gives_the_same_samples(kind: str, paths: list[str]) -> None:
    for depth in (1, 4):
        assert list(stream(kind, paths, remote=Remote(read_ahead=depth))) == list(range(COUNT))
    half = iter(stream(kind, paths, remote=Remote(read_ahead=4)))
    next(half)
    del half  # its threads end with it


def test_the_kinds_of_streams(kind: str, paths: list[str]) -> None:
    assert isinstance(stream(kind, paths), ShardStream) == (kind in OWN)
