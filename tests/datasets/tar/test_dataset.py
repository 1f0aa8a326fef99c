from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import feedline
from feedline.datasets import TarDataset
from feedline.datasets.tar import TarStream, TarTable
from feedline.errors import BadOption, CorruptSource
from tests.datasets.tar.writing import numbered, tar_bytes


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"mode": "both"}, "mode='both'"),
        ({"shuffle": 1}, "shuffle=1"),
        ({"buffer": -1}, "buffer=-1"),
        ({"buffer": True}, "buffer=True"),
        ({"read_ahead": -1}, "read_ahead=-1"),
        ({"retries": -1}, "retries=-1"),
        ({"timeout_s": 0}, "timeout_s=0"),
        ({"pickle": 1}, "pickle=1"),
        ({"unique_keys": None}, "unique_keys=None"),
        ({"max_field_bytes": "much"}, "max_field_bytes='much'"),
        ({"storage_options": "anon"}, "storage_options= is a dict"),
        ({"transform": 3}, "transform=3"),
        ({"fields": []}, "fields="),
        ({"fields": [3]}, "fields="),
        ({"fields": ["a", "a"]}, "twice"),
        ({"index": "folder"}, 'index=.*about mode="random"'),
        ({"mode": "random", "shuffle": True}, 'shuffle=True is about mode="stream".*Give the loader shuffle=True'),
        ({"mode": "random", "seed": 3}, "seed=3"),
        ({"mode": "random", "index": 3}, "index=3"),
        ({"mode": "random", "buffer": 3}, "buffer=3"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], word: str) -> None:
    with pytest.raises(BadOption, match=word):
        TarDataset("a.tar", **options)


def test_nothing_is_opened_when_it_is_made() -> None:
    for mode in ("stream", "random"):
        TarDataset(["none.tar", "s3://none/none.tar", "http://none.invalid/x.tar"], mode=mode)


def test_which_class_it_is() -> None:
    stream: TarStream = TarDataset("a.tar")
    table: TarTable = TarDataset("a.tar", mode="random")
    assert not hasattr(stream, "__len__")
    assert not hasattr(stream, "__getitem__")
    assert hasattr(table, "__getitems__")


def test_forms_of_samples(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes(numbered(1)))
    for fields, expected in (
        ("cls", 0),
        (("cls", "txt"), (0, "sämple 0")),
        (["cls"], {"cls": 0}),
        ({"label": "cls", "key": "__key__"}, {"label": 0, "key": "000000"}),
        ("nothing;txt", "sämple 0"),
        (None, {"__key__": "000000", "__url__": str(path), "cls": 0, "txt": "sämple 0", "bin": b""}),
    ):
        assert list(TarDataset(path, fields=fields)) == [expected]
        table = TarDataset(path, fields=fields, mode="random", index=False)
        assert list(table) == [expected]
        table.close()


@pytest.mark.parametrize("mode", ["stream", "random"])
def test_a_header_that_was_overwritten_with_zeros_ends_no_shard(tmp_path: Path, mode: Any) -> None:
    path = tmp_path / "a.tar"
    data = tar_bytes(numbered(20))
    place = data.index(b"000010.cls")
    path.write_bytes(data[:place] + bytes(512) + data[place + 512 :])
    with pytest.raises(CorruptSource, match=rf"a\.tar: a block of zeros.* at byte {place}, but other bytes follow"):
        list(TarDataset(path, mode=mode))


@pytest.mark.parametrize("mode", ["stream", "random"])
def test_the_number_of_samples_that_was_packed_is_compared(tmp_path: Path, mode: Any) -> None:
    path = feedline.pack([{"x": number} for number in range(9)], tmp_path / "a.tar", workers=0).path
    dataset = TarDataset(path, mode=mode, fields="x.cls")
    assert list(dataset) == list(range(9))
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"000000008.x.cls")] + bytes(1024))
    with pytest.raises(CorruptSource, match=r"a\.tar has 8 samples, but 9 were packed"):
        list(TarDataset(path, mode=mode))
    iterator = iter(TarDataset(path, fields="x.cls"))
    assert [next(iterator) for _ in range(8)] == list(range(8))
    with pytest.raises(CorruptSource, match="9 were packed"):
        next(iterator)
    assert list(iterator) == []


def test_a_pass_that_is_gone_on_with_in_the_middle_of_a_packed_shard(tmp_path: Path) -> None:
    path = feedline.pack([{"x": number} for number in range(9)], tmp_path / "a.tar", workers=0).path
    iterator = iter(TarDataset(path, fields="x.cls"))
    assert [next(iterator) for _ in range(4)] == list(range(4))
    other = iter(TarDataset(path, fields="x.cls"))
    other.load_state_dict(iterator.state_dict())
    assert list(other) == list(range(4, 9))
