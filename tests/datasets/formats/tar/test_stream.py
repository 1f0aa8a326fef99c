from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import pickle
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
import torchdata.stateful_dataloader
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline
from feedline.datasets import Remote, TarDataset
from feedline.datasets.formats.tar import arrays, members
from feedline.datasets.framework.shard_stream import ShardPass
from feedline.datasets.framework.shares import shares_of
from feedline.errors import BadOption, BadState, CorruptSource, SourceChanged, SourceError, WorkerWarning
from feedline.types import EngineName
from tests.datasets.formats.tar.writing import numbered, tar_bytes, write_shards
from tests.datasets.transforms import FailsOnce
from tests.sampling import examples

pytestmark = pytest.mark.sample(5)

SIZES = (13, 1, 20, 7, 16, 0, 9)
COUNT = sum(SIZES)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_shards(tmp_path_factory.mktemp("shards"), SIZES)


# Any, throughout: options as the user gives them, samples as they come.
def stream(shards: Any, **options: Any) -> Any:
    order = {name: options.pop(name) for name in ("shuffle", "buffer", "seed") if name in options}
    return TarDataset(shards, **{"fields": "cls", **options}).stream(**order)


def listed(loader: Any) -> list[int]:
    return [int(number) for batch in loader for number in batch]


def test_without_shuffling_samples_keep_their_order(shards: list[str]) -> None:
    assert list(stream(shards)) == list(range(COUNT))
    dataset = stream(shards)
    dataset.set_epoch(5)
    assert list(dataset) == list(range(COUNT))


def test_each_epoch_has_its_own_order_that_follows_from_the_seed(shards: list[str]) -> None:
    found = []
    for seed, epoch in itertools.product((0, 1), (0, 1)):
        dataset = stream(shards, shuffle=True, buffer=10, seed=seed)
        dataset.set_epoch(epoch)
        found.append(tuple(dataset))
        assert sorted(found[-1]) == list(range(COUNT))
        assert tuple(dataset) == found[-1]
    assert len(set(found)) == 4


def test_a_buffer_of_size_0_shuffles_only_shards(shards: list[str]) -> None:
    found = list(stream(shards, shuffle=True, buffer=0))
    assert found != list(range(COUNT))
    first = list(itertools.accumulate(SIZES, initial=0))
    runs = [list(range(start, start + size)) for start, size in zip(first, SIZES, strict=False) if size]
    for run in runs:
        place = found.index(run[0])
        assert found[place : place + len(run)] == run


@pytest.mark.parametrize("workers", [0, 1, 2, 3, 10])
def test_each_sample_comes_once_with_any_number_of_workers(shards: list[str], workers: int) -> None:
    dataset = stream(shards, shuffle=True, buffer=10, seed=3)
    engine: EngineName = "thread" if workers else "inline"
    for loader in (
        feedline.Loader(dataset, 4, workers=workers, engine=engine),
        feedline.DataLoader(dataset, 4, num_workers=workers, engine=engine),
    ):
        first, second = listed(loader), listed(loader)
        assert sorted(first) == sorted(second) == list(range(COUNT))
        assert first != second


@pytest.mark.parametrize(
    "method",
    ["fork", pytest.param("forkserver", marks=pytest.mark.slow), pytest.param("spawn", marks=pytest.mark.slow)],
)
def test_worker_processes(shards: list[str], method: str) -> None:
    dataset = stream(shards, shuffle=True, buffer=10, seed=3)
    assert next(iter(dataset)) is not None  # files that are open now belong to the parent
    expected = listed(feedline.Loader(dataset, 4, workers=2, engine="thread"))
    assert listed(feedline.Loader(dataset, 4, workers=2, start_method=method)) == expected
    assert listed(feedline.DataLoader(dataset, 4, num_workers=2, multiprocessing_context=method)) == expected


def test_torchs_own_loader(shards: list[str]) -> None:
    dataset = stream(shards, shuffle=True, buffer=10, seed=3)
    assert isinstance(dataset, torch.utils.data.IterableDataset)
    for workers in (0, 2):
        found = listed(torch.utils.data.DataLoader(dataset, 4, num_workers=workers))
        assert sorted(found) == list(range(COUNT))
        expected = listed(feedline.DataLoader(dataset, 4, num_workers=workers, engine="thread" if workers else None))
        assert found == expected


def test_ranks_and_workers_split_without_overlap(shards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for ranks, workers in ((2, 0), (3, 2), (4, 3)):
        found = []
        for rank in range(ranks):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", str(ranks))
            dataset = stream(shards, shuffle=True, buffer=5)
            engine: EngineName = "thread" if workers else "inline"
            own = listed(feedline.Loader(dataset, 4, workers=workers, engine=engine))
            assert own
            found += own
        assert sorted(found) == list(range(COUNT))


def test_a_pickled_dataset_carries_its_rank(shards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dataset = stream(shards)
    expected = list(dataset)
    text = pickle.dumps(dataset)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert list(pickle.loads(text)) == expected
    assert list(stream(shards)) != expected


def test_rejects_an_invalid_rank_in_the_environment(shards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    for size in ("2", "x", ""):
        monkeypatch.setenv("WORLD_SIZE", size)
        with pytest.raises(BadOption, match=r"environment.*WORLD_SIZE"):
            iter(stream(shards))


def test_shard_exact_is_rejected(shards: list[str]) -> None:
    with pytest.raises(BadOption, match="splits itself"):
        feedline.Loader(stream(shards), 4, shard="exact")


def test_the_loader_neither_splits_it_again_nor_warns(shards: list[str]) -> None:
    """Two workers that start with the same sample do not mean repeated samples here."""
    paths = [shards[0], shards[0] + ".copy"]
    Path(paths[1]).write_bytes(Path(shards[0]).read_bytes())
    for shard in (None, True, False):
        found = listed(feedline.DataLoader(stream(paths), 4, num_workers=2, engine="thread", shard=shard))
        assert sorted(found) == sorted([*range(13), *range(13)])


@settings(deadline=None, max_examples=examples(40))
@given(
    taken=st.integers(0, COUNT),
    buffer=st.sampled_from([0, 1, 7, 40, 1000]),
    part=st.sampled_from([(0, 1), (1, 2), (9, 10)]),
    packed=st.booleans(),
    again=st.integers(0, 20),
)
def test_a_state_saved_anywhere_resumes_with_the_next_sample(
    tmp_path_factory: pytest.TempPathFactory, taken: int, buffer: int, part: tuple[int, int], packed: bool, again: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"resume-{packed}"
    if not folder.exists():
        folder.mkdir()
        for path in write_shards(folder, SIZES):
            if packed:
                Path(path).write_bytes(gzip.compress(Path(path).read_bytes()))
    dataset = stream(sorted(map(str, folder.iterdir())), shuffle=True, buffer=buffer, seed=1)
    dataset.set_epoch(2)
    expected = list(ShardPass(dataset, part))
    first = ShardPass(dataset, part)
    assert list(itertools.islice(first, taken)) == expected[:taken]
    state = json.loads(json.dumps(first.state_dict()))
    assert len(json.dumps(state)) < 400
    dataset.set_epoch(0)  # the state contains its own
    second = ShardPass(dataset, part)
    second.load_state_dict(state)
    assert second.state_dict() == state
    middle = list(itertools.islice(second, again))
    third = ShardPass(dataset, part)
    third.load_state_dict(second.state_dict())
    assert [*expected[:taken], *middle, *third] == expected
    assert list(first) == expected[taken:]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["Loader", "DataLoader"])
def test_loaders_resume_at_every_step(shards: list[str], workers: int, kind: str) -> None:
    def make() -> Any:
        dataset = stream(shards, shuffle=True, buffer=12, seed=4)
        engine: EngineName = "thread" if workers else "inline"
        if kind == "Loader":
            return feedline.Loader(dataset, 4, workers=workers, engine=engine)
        return feedline.DataLoader(dataset, 4, num_workers=workers, engine=engine)

    loader = make()
    epochs = [[[int(n) for n in batch] for batch in loader] for _ in range(2)]
    assert epochs[0] != epochs[1]
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


def test_resuming_reads_only_the_rest(shards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = stream(shards[:3])
    first = iter(dataset)
    next(itertools.islice(first, 24, None))
    opened: list[tuple[str, int]] = []
    from feedline.datasets.storage.blob import LocalBlob

    read = LocalBlob.read

    def watched(self: LocalBlob, start: int, stop: int) -> bytes:
        opened.append((Path(self.name).name, start))
        return read(self, start, stop)

    monkeypatch.setattr(LocalBlob, "read", watched)
    second = iter(dataset)
    second.load_state_dict(first.state_dict())
    assert list(second) == list(range(25, 34))
    assert [name for name, _ in opened] == ["shard-002.tar"]
    assert opened[0][1] > 0


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_torchdatas_loader_resumes_it(shards: list[str]) -> None:
    def make() -> Any:
        dataset = stream(shards, shuffle=True, buffer=12, seed=4)
        return torchdata.stateful_dataloader.StatefulDataLoader(dataset, 4, num_workers=0)

    expected = [batch.tolist() for batch in make()]
    first = make()
    iterator = iter(first)
    for _ in range(5):
        next(iterator)
    second = make()
    second.load_state_dict(first.state_dict())
    assert [batch.tolist() for batch in second] == expected[5:]


def test_states_of_other_options_shards_and_parts_are_rejected(shards: list[str]) -> None:
    state = iter(stream(shards, shuffle=True)).state_dict()
    for options, word in (
        ({"shuffle": True, "seed": 1}, "seed"),
        ({"shuffle": True, "buffer": 5}, "buffer"),
        ({}, "shuffle"),
    ):
        with pytest.raises(BadState, match=word):
            iter(stream(shards, **options)).load_state_dict(state)
    with pytest.raises(BadState, match=f"{len(SIZES)} files, and now there are {len(SIZES) - 1}"):
        iter(stream(shards[1:], shuffle=True)).load_state_dict(state)
    with pytest.raises(BadState, match="part"):
        ShardPass(stream(shards, shuffle=True), (0, 2)).load_state_dict(state)
    for wrong in (None, {}, {"epoch": 1}, [1]):
        with pytest.raises(BadState, match="not the state of a pass"):
            iter(stream(shards)).load_state_dict(wrong)


@pytest.mark.parametrize("pair", ["https://host/get?file={}", "https://host/get?st={}", "/data/ada:{}@x.tar"])
def test_shards_are_distinguished_by_everything_except_signatures(pair: str) -> None:
    shards = [pair.format(1), pair.format(2)]
    state = iter(stream(shards)).state_dict()
    iter(stream(shards)).load_state_dict(state)
    with pytest.raises(BadState, match="2 files of other names"):
        iter(stream(shards[::-1])).load_state_dict(state)


def test_the_error_names_a_missing_shard_and_the_others_can_be_read(shards: list[str], tmp_path: Path) -> None:
    missing = str(tmp_path / "none.tar")
    iterator = iter(stream([shards[0], missing, shards[2]]))
    assert list(itertools.islice(iterator, 13)) == list(range(13))
    with pytest.raises(SourceError, match=r"none\.tar cannot be opened"):
        next(iterator)
    assert list(iterator) == list(range(14, 34))
    loader = feedline.Loader(stream([shards[0], missing, shards[2]]), 4, on_error="skip")
    assert listed(loader) == [*range(13), *range(14, 34)]


def test_a_truncated_shard_raises_after_its_complete_samples(shards: list[str], tmp_path: Path) -> None:
    path = tmp_path / "cut.tar"
    data = Path(shards[2]).read_bytes()
    path.write_bytes(data[:9000])
    found: list[int] = []
    with pytest.raises(CorruptSource, match=r"cut\.tar.*9000"):
        found.extend(stream(path))
    assert found == list(range(14, 14 + len(found)))
    assert found


def test_a_shard_that_changes_while_it_is_read_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes(numbered(5)))
    iterator = iter(stream(path))
    next(iterator)
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceChanged, match=r"a\.tar was changed"):
        list(iterator)


def test_sizes_are_checked_without_a_call_per_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls per file, which also prepared error messages, took a sixth of the time of a pass."""
    stored = io.BytesIO()
    np.save(stored, np.arange(3))
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("a.npy", stored.getvalue()), ("a.cls", b"1")]))
    for module in (members, arrays):
        monkeypatch.setattr(module, "check_size", lambda *args, **options: pytest.fail("nothing is too large"))
    (sample,) = TarDataset(path).stream()
    assert (sample["npy"].tolist(), sample["cls"]) == ([0, 1, 2], 1)


def test_duplicate_keys_and_fields_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("a.x", b"1"), ("b.x", b"2"), ("a.y", b"3")]))
    with pytest.raises(CorruptSource, match=r"a\.tar: the key 'a' comes again at byte 2048.*sort.*unique_keys=False"):
        list(TarDataset(path, decode=False).stream())
    assert [sample["__key__"] for sample in TarDataset(path, unique_keys=False).stream()] == ["a", "b", "a"]
    path.write_bytes(tar_bytes([("a.x", b"1"), ("a.X", b"2")]))
    with pytest.raises(CorruptSource, match=r"sample 'a' has the field 'x' twice.*'a\.X' at byte 1024"):
        list(TarDataset(path, decode=False).stream())


def test_a_name_that_leaves_the_folder_is_only_a_key_and_nothing_is_written(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    path = inner / "a.tar"
    path.write_bytes(tar_bytes([("../../x.txt", b"hello"), ("/etc/y.txt", b"world")]))
    before = sorted(tmp_path.rglob("*"))
    assert [(s["__key__"], s["txt"]) for s in TarDataset(path).stream()] == [("../../x", "hello"), ("/etc/y", "world")]
    assert sorted(tmp_path.rglob("*")) == before


def test_read_ahead_with_threads_gives_the_same_samples(shards: list[str]) -> None:
    expected = list(stream(shards, shuffle=True, buffer=10))
    for depth in (1, 4):
        iterator = iter(stream(shards, shuffle=True, buffer=10, remote=Remote(read_ahead=depth)))
        assert list(iterator) == expected
    half = iter(stream(shards, remote=Remote(read_ahead=4)))
    next(half)
    del half  # its threads end with it


def test_a_sample_that_cannot_be_decoded_does_not_end_the_stream(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("0.cls", b"0"), ("1.cls", b"one"), ("2.cls", b"2")]))
    iterator = iter(stream(path))
    assert next(iterator) == 0
    with pytest.raises(CorruptSource, match=r"a\.tar: field 'cls' of sample '1' cannot be decoded: ValueError.*b'one'"):
        next(iterator)
    assert list(iterator) == [2]


def test_the_error_for_a_missing_field_lists_the_existing_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("a.png", b"1"), ("a.cls", b"1"), ("a.txt", b"1")]))
    for fields in ("jpg", ("jpg", "cls")):
        with pytest.raises(SourceError, match=r"sample 'a' has no field jpg; it has cls, png, txt\."):
            next(iter(stream(str(path), fields=fields)))


def test_transforms_and_their_errors(shards: list[str]) -> None:
    assert list(stream(shards[1], transform=str)) == ["13"]

    def fail(sample: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        list(stream(shards[1], transform=fail))


def test_the_repr(shards: list[str]) -> None:
    assert repr(stream(shards)) == "ShardStream(7 tar shards, each sample cls)"
    text = repr(stream(shards, shuffle=True, fields=("txt;text", "cls"), transform=len))
    assert "(txt;text, cls)" in text
    assert "shuffle=True, buffer=1000, seed=0" in text
    assert "len" in text


def test_it_can_be_mixed(shards: list[str]) -> None:
    mixture = feedline.datasets.mix([stream(shards), range(100, 200)], size=20)
    found: Iterator[Any] = iter(mixture)
    assert sum(int(sample) < 100 for sample in found) == 10


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
    shards: list[str], tmp_path: Path, number: int
) -> None:
    plain = feedline.Loader(stream(shards, shuffle=True, buffer=12), 4, workers=2, engine="thread")
    expected = [[int(n) for n in batch] for batch in plain]
    deadly = stream(shards, shuffle=True, buffer=12, transform=KillsItsWorkerOnce(tmp_path / "killed", number))
    loader = feedline.Loader(deadly, 4, workers=2)
    with pytest.warns(WorkerWarning):
        assert [[int(n) for n in batch] for batch in loader] == expected
    assert (tmp_path / "killed").exists()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_retried_sample_is_not_lost(shards: list[str], workers: int, shuffle: bool) -> None:
    again = feedline.faults.Retry(1, wait_s=0)
    dataset = stream(shards, transform=FailsOnce({0, 11, 33}), shuffle=shuffle)
    loader = feedline.Loader(dataset, 4, workers=workers, on_error=again)
    assert sorted(listed(loader)) == list(range(COUNT))


def test_errors_that_cannot_be_retried_follow_the_final_policy(shards: list[str], tmp_path: Path) -> None:
    path = tmp_path / "cut.tar"
    path.write_bytes(Path(shards[2]).read_bytes()[:9000])
    again = feedline.faults.Retry(2, wait_s=0)
    with pytest.raises(CorruptSource, match=r"cut\.tar"):
        listed(feedline.Loader(stream([shards[0], str(path), shards[3]]), 4, on_error=again))
    with pytest.raises(SourceError, match=r"none\.tar"):
        listed(feedline.Loader(stream([shards[0], str(tmp_path / "none.tar")]), 4, on_error=again))
    skips = feedline.faults.Retry(2, wait_s=0, then="skip")
    loader = feedline.Loader(stream([shards[0], str(tmp_path / "none.tar"), shards[2]]), 4, on_error=skips)
    assert listed(loader) == [*range(13), *range(14, 34)]
    assert loader.stats()["faults"]["retry"] == 0


# -- which shards a part reads ---


def test_shards_are_shuffled_before_they_are_split() -> None:
    """Each epoch gives a part different shards, not only another order."""
    dataset = stream([f"{number}.tar" for number in range(100)], shuffle=True)
    turns = [share.turn for share in shares_of(100, (0, 10))]
    own = [frozenset(dataset.order(epoch)[turn] for turn in turns) for epoch in range(150)]
    assert len(set(own)) == 150
    assert set().union(*own) == set(range(100))


def test_without_shuffling_shards_keep_their_order(shards: list[str]) -> None:
    assert stream(shards).order(3) == list(range(len(shards)))
    assert [share.turn for share in shares_of(7, (0, 1))] == list(range(7))


@pytest.mark.slow
def test_every_order_of_shards_is_equally_likely(shards: list[str]) -> None:
    dataset = stream(shards[:4], shuffle=True)
    found = Counter(tuple(dataset.order(epoch)) for epoch in range(4_800))
    assert len(found) == 24
    assert all(130 < count < 280 for count in found.values())
