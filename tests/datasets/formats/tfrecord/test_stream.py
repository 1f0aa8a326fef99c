"""Streams of TFRecord files: parts, orders, positions, and files that cannot be read."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import feedline
from feedline.datasets import TFRecordDataset
from feedline.datasets.storage.content import ByteReader
from feedline.errors import BadOption, BadState, CorruptSource
from tests.datasets.formats.tfrecord.records import file_of


def write(folder: Path, *counts: int, pack: bool = True) -> TFRecordDataset:
    number = 0
    for place, count in enumerate(counts):
        data = file_of(b"%d" % one for one in range(number, number + count))
        name = f"{place}.tfrecord{'.gz' if pack else ''}"
        (folder / name).write_bytes(gzip.compress(data) if pack else data)
        number += count
    return TFRecordDataset(folder, parse=int)


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("workers", [0, 2, 3])
def test_every_record_comes_once(tmp_path: Path, pack: bool, workers: int) -> None:
    stream = write(tmp_path, 7, 0, 12, 1, 5, pack=pack).stream()
    assert list(stream) == list(range(25))
    found = [int(one) for batch in feedline.Loader(stream, batch_size=4, workers=workers) for one in batch]
    assert sorted(found) == list(range(25))


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_own_loader_delivers_each_record_once(tmp_path: Path, workers: int) -> None:
    stream = write(tmp_path, 7, 12, 5).stream()
    loader: Any = torch.utils.data.DataLoader(stream, batch_size=4, num_workers=workers)  # type: ignore[arg-type]
    assert sorted(torch.cat(list(loader)).tolist()) == list(range(24))


def test_orders(tmp_path: Path) -> None:
    stream = write(tmp_path, 20, 20, 20).stream(shuffle=True, buffer=16, seed=3)
    first = list(stream)
    assert sorted(first) == list(range(60))
    assert first != sorted(first)
    assert list(stream) == first
    stream.set_epoch(1)
    assert list(stream) not in (first, sorted(first))
    assert "buffer=16" in repr(stream)
    assert "3 TFRecord files" in repr(pickle.loads(pickle.dumps(stream)))
    with pytest.raises(BadOption):
        write(tmp_path, 1).stream(shuffle=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_pass_resumes_at_every_step(tmp_path: Path, shuffle: bool) -> None:
    stream = write(tmp_path, 7, 0, 6).stream(shuffle=shuffle, buffer=5, seed=1)
    stream.set_epoch(2)
    whole = list(stream)
    for step in range(len(whole) + 1):
        first = iter(stream)
        assert [next(first) for _ in range(step)] == whole[:step]
        state = json.loads(json.dumps(first.state_dict()))
        other = iter(write(tmp_path, 7, 0, 6).stream(shuffle=shuffle, buffer=5, seed=1))
        other.load_state_dict(state)
        assert list(other) == whole[step:]


def test_states_of_other_files_or_options_are_rejected(tmp_path: Path) -> None:
    state = iter(write(tmp_path, 7, 6).stream()).state_dict()
    with pytest.raises(BadState, match="seed"):
        iter(write(tmp_path, 7, 6).stream(seed=1)).load_state_dict(state)
    with pytest.raises(BadState, match="files"):
        iter(write(tmp_path, 7, 6, 1).stream()).load_state_dict(state)
    with pytest.raises(BadState):
        iter(write(tmp_path, 7).stream()).load_state_dict({})


def test_files_may_be_moved(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    samples = iter(write(before, 7, 6).stream(shuffle=True))
    next(samples)
    state, rest = samples.state_dict(), list(samples)
    before.rename(after)
    moved = iter(TFRecordDataset(after, parse=int).stream(shuffle=True))
    moved.load_state_dict(state)
    assert list(moved) == rest


def test_a_file_that_cannot_be_read_is_skipped(tmp_path: Path) -> None:
    stream = write(tmp_path, 3, 400, 3).stream()
    path = tmp_path / "1.tfrecord.gz"
    path.write_bytes(path.read_bytes()[:400])
    samples, found = iter(stream), list[int]()
    with pytest.raises(CorruptSource, match=r"1\.tfrecord\.gz"):
        found.extend(samples)
    state = samples.state_dict()
    assert list(samples) == [403, 404, 405]
    again = iter(stream)
    again.load_state_dict(state)
    assert list(again) == [403, 404, 405]


def test_a_record_that_cannot_be_parsed_is_retried(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(file_of([b"1", b"two", b"3"]))
    samples = iter(TFRecordDataset(tmp_path, parse=int).stream())
    assert next(samples) == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="two"):
            next(samples)
        assert samples.try_again()
    with pytest.raises(ValueError, match="two"):
        next(samples)
    assert list(samples) == [3]


def test_an_interrupt_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pack in (False, True):
        stream = write(tmp_path, 7, 5, pack=pack).stream(shuffle=True, buffer=3)
        whole, samples = list(stream), iter(stream)
        found = [next(samples) for _ in range(4)]
        with monkeypatch.context() as patch:
            patch.setattr(ByteReader, "take", interrupted)
            with pytest.raises(KeyboardInterrupt):
                found.extend(samples)  # as far as the buffer reaches
        assert 4 <= len(found) < len(whole)
        assert found + list(samples) == whole


def interrupted(self: ByteReader, count: int) -> bytes:
    raise KeyboardInterrupt
