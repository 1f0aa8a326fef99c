from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.datasets import TarDataset
from feedline.datasets.formats.tar import arrays, members
from feedline.errors import BadState, CorruptSource, SourceError
from tests.datasets.formats.tar.writing import tar_bytes, write_shards

SIZES = (13, 1, 20, 7, 16, 0, 9)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_shards(tmp_path_factory.mktemp("shards"), SIZES)


# Any, throughout: options as the user gives them, samples as they come.
def stream(shards: Any, **options: Any) -> Any:
    order = {name: options.pop(name) for name in ("shuffle", "buffer", "seed") if name in options}
    return TarDataset(shards, **{"fields": "cls", **options}).stream(**order)


@pytest.mark.parametrize("pair", ["https://host/get?file={}", "https://host/get?st={}", "/data/ada:{}@x.tar"])
def test_shards_are_distinguished_by_everything_except_signatures(pair: str) -> None:
    shards = [pair.format(1), pair.format(2)]
    state = iter(stream(shards)).state_dict()
    iter(stream(shards)).load_state_dict(state)
    with pytest.raises(BadState, match="2 files of other names"):
        iter(stream(shards[::-1])).load_state_dict(state)


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
    for files, named in (
        ([("a.x", b"1"), ("a.X", b"2")], r"'a' has the field 'x' twice.*'a\.X' at byte 1024"),
        ([("a.x", b"1"), ("b.x", b"2"), ("a.y", b"3")], r"a\.tar: the key 'a' comes again at byte 2048"),
    ):
        path.write_bytes(tar_bytes(files))
        with pytest.raises(CorruptSource, match=named):
            list(TarDataset(path, decode=False).stream())
    assert [sample["__key__"] for sample in TarDataset(path, unique_keys=False).stream()] == ["a", "b", "a"]


def test_a_name_that_leaves_the_folder_is_only_a_key_and_nothing_is_written(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    path = inner / "a.tar"
    path.write_bytes(tar_bytes([("../../x.txt", b"hello"), ("/etc/y.txt", b"world")]))
    before = sorted(tmp_path.rglob("*"))
    assert [(s["__key__"], s["txt"]) for s in TarDataset(path).stream()] == [("../../x", "hello"), ("/etc/y", "world")]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_sample_that_cannot_be_decoded_does_not_end_the_stream(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("0.cls", b"0"), ("1.cls", b"one"), ("2.cls", b"2")]))
    iterator = iter(stream(path))
    assert next(iterator) == 0
    with pytest.raises(CorruptSource, match=r"a\.tar: field 'cls' of sample '1'"):
        next(iterator)
    assert list(iterator) == [2]


@pytest.mark.parametrize("fields", ["jpg", ("jpg", "cls")])
def test_the_error_for_a_missing_field_lists_the_existing_ones(fields: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("a.png", b"1"), ("a.cls", b"1"), ("a.txt", b"1")]))
    with pytest.raises(SourceError, match=r"sample 'a' has no field jpg; it has cls, png, txt"):
        next(iter(stream(str(path), fields=fields)))


def test_the_repr(shards: list[str]) -> None:
    assert repr(stream(shards)) == "ShardStream(7 tar shards, each sample cls)"
    text = repr(stream(shards, shuffle=True, fields=("txt;text", "cls"), transform=len))
    assert "(txt;text, cls)" in text
    assert "shuffle=True, buffer=1000, seed=0" in text
    assert "len" in text
