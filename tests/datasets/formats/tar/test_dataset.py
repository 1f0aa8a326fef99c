from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import feedline
from feedline.datasets import TarDataset
from feedline.errors import BadOption, CorruptSource
from tests.datasets.formats.tar.writing import numbered, tar_bytes


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"remote": {"anon": True}}, "remote= takes a feedline.datasets.Remote, but a dict"),
        ({"pickle": 1}, "pickle=1"),
        ({"unique_keys": None}, "unique_keys=None"),
        ({"max_field_bytes": "much"}, "max_field_bytes='much'"),
        ({"transform": 3}, "transform=3"),
        ({"fields": []}, "fields="),
        ({"fields": [3]}, "fields="),
        ({"fields": ["a", "a"]}, "twice"),
        ({"cache": 3}, "cache=3"),
    ],
)
def test_bad_options_are_rejected(options: dict[str, Any], word: str) -> None:
    with pytest.raises(BadOption, match=word):
        TarDataset("a.tar", **options)


@pytest.mark.parametrize("options", [{"shuffle": 1}, {"buffer": -1}, {"buffer": True}])
def test_bad_options_of_streams_are_rejected(options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(BadOption, match=f"{name}={value}"):
        TarDataset("a.tar").stream(**options)


def test_construction_and_repr_open_nothing() -> None:
    dataset = TarDataset(["none.tar", "s3://none/none.tar", "http://none.invalid/x.tar"], "cls")
    assert repr(dataset) == "TarDataset(3 shards, each sample cls)"
    assert repr(dataset.stream()) == "ShardStream(3 tar shards, each sample cls)"


def test_samples_have_the_form_of_fields(tmp_path: Path) -> None:
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
        assert list(TarDataset(path, fields=fields).stream()) == [expected]
        table = TarDataset(path, fields=fields, cache=False)
        assert list(table) == [expected]
        assert repr(table).startswith("TarDataset(1 samples of "), "the index is known by now"
        table.close()


@pytest.mark.parametrize("read", [iter, TarDataset.stream])
def test_fewer_samples_than_were_packed_are_detected(tmp_path: Path, read: Any) -> None:
    path = feedline.pack([{"x": number} for number in range(9)], tmp_path / "a.tar", workers=0).path
    assert list(read(TarDataset(path, fields="x.cls"))) == list(range(9))
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"000000008.x.cls")] + bytes(1024))
    with pytest.raises(CorruptSource, match=r"a\.tar has 8 samples, but 9 were packed"):
        list(read(TarDataset(path)))
    iterator = iter(TarDataset(path, fields="x.cls").stream())
    assert [next(iterator) for _ in range(8)] == list(range(8))
    with pytest.raises(CorruptSource, match="9 were packed"):
        next(iterator)
    assert list(iterator) == []


def test_a_pass_resumes_in_the_middle_of_a_packed_shard(tmp_path: Path) -> None:
    path = feedline.pack([{"x": number} for number in range(9)], tmp_path / "a.tar", workers=0).path
    iterator = iter(TarDataset(path, fields="x.cls").stream())
    assert [next(iterator) for _ in range(4)] == list(range(4))
    other = iter(TarDataset(path, fields="x.cls").stream())
    other.load_state_dict(iterator.state_dict())
    assert list(other) == list(range(4, 9))


@pytest.mark.parametrize(
    "read", [lambda shards: shards.__getitems__(range(len(shards))), lambda shards: list(shards.stream())]
)
def test_errors_of_the_transform_name_the_sample(tmp_path: Path, read: Any) -> None:
    """The loader may not know which sample of a batch failed, and an index into a stream says little."""
    paths = [tmp_path / "a.tar", tmp_path / "b.tar"]
    paths[0].write_bytes(tar_bytes(numbered(3)))
    paths[1].write_bytes(tar_bytes(numbered(3, 3)))

    def fail(number: int) -> int:
        if number == 4:
            raise OSError("damaged")
        return number

    with pytest.raises(OSError, match="damaged") as caught:
        read(TarDataset(paths, "cls", transform=fail, cache=False))
    assert caught.value.__notes__ == [f"It is sample '000004' in {paths[1]}."]
