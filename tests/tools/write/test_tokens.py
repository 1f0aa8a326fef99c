"""`write_tokens`: the same bytes with any number of workers, and after being killed at any point."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import feedline.datasets
from feedline.errors import BadOption, CorruptSource, PackError
from feedline.text import TokenDataset, verify, write_tokens
from tests.tools.write.stores import content, without_workers

TEXTS = [f"text {number} ☃ " * (number % 7) for number in range(100)]


def encode(text: str) -> list[int]:
    return list(text.encode())


class Texts:
    def __len__(self) -> int:
        return len(TEXTS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"text": TEXTS[index], "number": index}


class Stream:
    def __iter__(self) -> Iterator[str]:
        return iter(TEXTS)


write = partial(write_tokens, tokenizer=encode, append_eos=7, workers=0, batch=5)


def decoded(*paths: Path) -> list[str]:
    return [bytes(one.tolist()[:-1]).decode() for one in TokenDataset(list(paths), 1).documents]


@pytest.mark.parametrize("source", [TEXTS, Texts(), Stream()], ids=["list", "map", "stream"])
def test_texts_are_read_back(tmp_path: Path, source: Any) -> None:
    written = write(source, tmp_path / "tokens.bin")
    assert decoded(written.path) == TEXTS
    assert (written.document_count, written.resumed) == (100, 0)
    assert written.token_count == sum(len(encode(text)) + 1 for text in TEXTS)
    assert (written.files, written.size) == ((written.path,), written.path.stat().st_size)
    found = verify(written.path)
    assert (found.end_token, found.tokenizer, found.dtype.name) == (7, "encode", "uint32")
    assert os.listdir(tmp_path) == ["tokens.bin"]
    scope: dict[str, Any] = {"feedline": feedline}
    exec(without_workers(written.line.replace("block=2048", "block=8")), scope)
    assert next(iter(scope["loader"]))["tokens"].shape == (32, 8)


@pytest.mark.parametrize("options", [{}, {"workers": 2}])
def test_shards_are_written_and_read_back(tmp_path: Path, options: dict[str, Any]) -> None:
    """The output does not depend on the number of workers."""
    written = write(Texts(), tmp_path / "out", shard_tokens=1000, **options)
    assert len(written.files) > 2
    assert [file.name for file in written.files] == sorted(os.listdir(tmp_path / "out"))
    assert decoded(*written.files) == TEXTS
    assert all(verify(file).token_count >= 1000 for file in written.files[:-1])
    assert TokenDataset(tmp_path / "out", 8).token_count == written.token_count
    assert content(written.path) == content(write(Texts(), tmp_path / "alone", shard_tokens=1000).path)


class Breaks(Texts):
    def __init__(self, stops: bool) -> None:
        self._stops = stops

    def fingerprint(self) -> str:
        return "the same texts"

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._stops and index == 50:
            raise OSError("no such text")
        return super().__getitem__(index)


def test_only_the_same_job_is_resumed(tmp_path: Path) -> None:
    out, act = tmp_path / "tokens", partial(write, shard_tokens=200)
    with pytest.raises(OSError, match="no such text"):
        act(Breaks(stops=True), out)
    assert os.listdir(tmp_path) == ["tokens.packing"]
    for options, message in (
        ({"batch": 6}, "batch=5, but now it is 6"),
        ({"append_eos": 8}, "end_token=7, but now it is 8"),
        ({"tokenizer": lambda text: [len(text)]}, "tokenizer="),
    ):
        with pytest.raises(BadOption, match=message):
            act(Breaks(stops=False), out, **options)
    assert 0 < act(Breaks(stops=False), out).resumed <= 50
    assert decoded(*sorted(out.iterdir())) == TEXTS
    with pytest.raises(OSError, match="no such text"):
        act(Breaks(stops=True), out, overwrite=True)
    assert act(Breaks(stops=False), out, overwrite=True, restart=True).resumed == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out": "a.bin", "shard_tokens": 5}, "Give a folder"),
        ({"out": "a", "shard_tokens": 0}, "shard_tokens=0"),
        ({"out": "here.bin"}, "exists already"),
        ({"out": "folder", "overwrite": True}, "mine.txt"),
        ({"out": "a.bin", "dtype": "int64"}, "int64"),
        ({"out": "a.bin", "append_eos": True}, "does not tell which"),
        ({"out": "a.bin", "field": "body", "source": Texts()}, "no field 'body'; its fields are 'text', 'number'"),
        ({"out": "a.bin", "field": "number", "source": Texts()}, "text is expected"),
        ({"out": "a.bin", "source": [b"\xff"]}, "UTF-8"),
        (
            {"out": "a.bin", "source": ["a", "ccc"], "dtype": "uint16", "tokenizer": lambda text: [65_533 + len(text)]},
            r"'ccc'.* token id 65536.*uint32",
        ),
    ],
)
def test_rejects_bad_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    (tmp_path / "here.bin").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.txt").touch()
    source, out = options.pop("source", TEXTS), tmp_path / options.pop("out")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(BadOption, match=message):
        write(source, out, **options)
    assert sorted(tmp_path.iterdir()) == before


def test_rejects_a_source_without_texts(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="no texts"):
        write([], tmp_path / "a.bin")
    assert os.listdir(tmp_path) == []


def test_sources_can_be_paths(tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("text,label\nto be,1\nor not,2\n")
    assert decoded(write(tmp_path / "texts.csv", tmp_path / "a.bin").path) == ["to be", "or not"]


def test_unreadable_documents_are_skipped_with_on_error_skip(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "ab" * number}) for number in range(1, 9)]
    lines[3] = "{broken"
    source = tmp_path / "corpus.jsonl"
    source.write_text("\n".join(lines))
    with pytest.raises(CorruptSource, match="line 4"):
        write_tokens(str(source), tmp_path / "whole.bin", encode, workers=0)
    written = write_tokens(str(source), tmp_path / "tokens.bin", encode, workers=0, on_error="skip")
    assert (written.document_count, written.skipped) == (7, 1)
    assert written.token_count == 2 * (sum(range(1, 9)) - 4)
