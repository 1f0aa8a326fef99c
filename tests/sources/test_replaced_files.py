"""Files replaced by others of the same size and modification time are read anew, where no contract says so already."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from feedline.audio import durations
from feedline.datasets import JSONLines, LitDataDataset, MDSDataset, TarDataset, TextLines, TFRecordDataset
from feedline.datasets.framework import shard_files
from feedline.errors import SourceChanged
from tests.datasets.formats.litdata.chunks import write as write_chunks
from tests.datasets.formats.mds.shards import write as write_shards
from tests.datasets.formats.tfrecord.records import file_of

Write = Callable[[Path, int], None]
"""Writes one of two files of the same size."""
Read = Callable[[Path, Path], list[Any]]
"""Reads a file, with a folder for what is derived."""


def lines(path: Path, number: int) -> None:
    path.write_text("aaaa\nbb\n" if number else "aa\nbb\nb\n")


def packed_lines(path: Path, number: int) -> None:
    path.write_bytes(gzip.compress(b"%d\n" % number * 100, mtime=0))


def sound(path: Path, number: int) -> None:
    soundfile.write(path, np.zeros((800, 2) if number else 1600), 8000, format="WAV")


CASES: dict[str, tuple[str, Write, Read]] = {
    "index of lines": ("a.txt", lines, lambda path, folder: list(TextLines(path, cache=folder))),
    "copy of lines": (
        "a.jsonl.gz",
        packed_lines,
        lambda path, folder: list(JSONLines(path, cache=folder)),
    ),
    "durations": ("a.wav", sound, lambda path, folder: durations([path], cache=folder).tolist()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_replaced_file_is_read_anew(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.datasets.formats.lines.index.MOST_UNIT", 0)  # unpack small files, too
    name, write, read = CASES[case]
    path, other, folder = tmp_path / name, tmp_path / "other", tmp_path / "kept"
    write(path, 0)
    os.utime(path, ns=(0, 10**18))
    old = read(path, folder)
    assert read(path, folder) == old
    write(other, 1)
    assert other.stat().st_size == path.stat().st_size
    shutil.copystat(path, other)
    os.replace(other, path)
    assert path.stat().st_mtime_ns == 10**18
    new = read(path, folder)
    assert new != old
    fresh = tmp_path / "fresh"
    assert new == read(path, fresh)


def tar_of(texts: list[str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number, text in enumerate(texts):
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


def shards(folder: Path, parts: list[list[str]]) -> None:
    write_shards(folder / "x", {"text": "str"}, [[{"text": text} for text in part] for part in parts])


def chunks(folder: Path, parts: list[list[str]]) -> None:
    write_chunks(folder / "x", parts)


def files(ending: str, made: Callable[[list[str]], bytes]) -> Callable[[Path, list[list[str]]], None]:
    def write(folder: Path, parts: list[list[str]]) -> None:
        (folder / "x").mkdir()
        for number, part in enumerate(parts):
            (folder / "x" / f"{number}{ending}").write_bytes(made(part))

    return write


# Any: a source.
SOURCES: dict[str, tuple[Callable[[Path, list[list[str]]], None], Callable[[Path], Any]]] = {
    "lines": (files(".txt", lambda part: "".join(f"{text}\n" for text in part).encode()), TextLines),
    "tar": (files(".tar", tar_of), lambda folder: TarDataset(f"{folder}/*.tar", "txt")),
    "tfrecord": (
        files(".tfrecord", lambda part: file_of(text.encode() for text in part)),
        lambda folder: TFRecordDataset(folder, parse=bytes.decode),
    ),
    "mds": (shards, lambda folder: MDSDataset(folder, "text")),
    "litdata": (chunks, LitDataDataset),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_file_that_was_released_is_not_read_with_the_index_of_another(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size and its time are the same. New permissions and links are no other file."""
    monkeypatch.setattr(shard_files, "_MOST_OPEN", 1)
    monkeypatch.setattr("feedline.datasets.formats.lines.source.CACHE_BYTES", 0)
    write, source = SOURCES[name]
    write(tmp_path, [["a", "bbb"], ["c", "d"]])
    (tmp_path / "other").mkdir()
    others = ["a", "b", "b"] if name == "lines" else ["aaa", "b"]  # an index of lines counts them
    write(tmp_path / "other", [others, ["c", "d"]])
    dataset = source(tmp_path / "x")
    assert [dataset[index] for index in range(4)] == ["a", "bbb", "c", "d"]
    first = sorted(path for path in (tmp_path / "x").iterdir() if path.name != "index.json")[0]
    os.link(first, tmp_path / "link")
    assert [dataset[index] for index in (1, 3)] == ["bbb", "d"]
    other = tmp_path / "other" / "x" / first.name
    assert other.stat().st_size == first.stat().st_size
    shutil.copystat(first, other)
    os.replace(other, first)
    with pytest.raises(SourceChanged, match=first.name):
        dataset[1]
    dataset.close()
