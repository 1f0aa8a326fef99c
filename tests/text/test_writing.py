"""Writing gives the same bytes in every way, and an interrupted writer leaves nothing under the file's name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.errors import BadOption, BadState
from feedline.text import TokenDataset, TokenWriter, verify
from tests.sampling import examples
from tests.text.token_files import documents, write


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), documents=documents)
def test_a_writer_continues_after_any_checkpoint(
    data: st.DataObject, documents: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("writing")
    whole = write(folder / "whole.bin", documents).read_bytes()
    path = folder / "tokens.bin"
    safe, lost = sorted(data.draw(st.tuples(*[st.integers(0, len(documents))] * 2)))
    writer = TokenWriter(path, dtype="uint16")
    writer.write(documents[:safe])
    checkpoint = writer.checkpoint()
    writer.write(documents[safe:lost])
    writer.close()  # as after a kill: some later bytes were already written
    assert not path.exists()
    with TokenWriter(path, dtype="uint16", resume=checkpoint) as other:
        other.write(documents[safe:])
    assert path.read_bytes() == whole
    assert sorted(os.listdir(folder)) == ["tokens.bin", "whole.bin"]
    verify(path)


def test_checksums_continue_inside_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.text.writing.BLOCK_BYTES", 16)
    monkeypatch.setattr("feedline.text.token_file.BLOCK_BYTES", 16)
    tokens = list(range(100))
    whole = write(tmp_path / "whole.bin", [tokens]).read_bytes()
    path = tmp_path / "tokens.bin"
    writer = TokenWriter(path, dtype="uint16")
    for start in range(0, 100, 7):
        writer.write_joined(np.array(tokens[start : start + 7]), [len(tokens[start : start + 7])])
        checkpoint = writer.checkpoint()
        writer.close()
        writer = TokenWriter(path, dtype="uint16", resume=checkpoint)
    writer.finish()
    assert verify(path).document_count == 15
    assert path.read_bytes()[4096 : 4096 + 200] == whole[4096 : 4096 + 200]
    assert path.read_bytes()[-4 * 13 :] == whole[-4 * 13 :]  # the checksums


def test_an_exception_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="65536"), TokenWriter(tmp_path / "tokens.bin", dtype="uint16") as writer:
        writer.write([[1], [65_536]])
    assert os.listdir(tmp_path) == []


def test_a_file_is_replaced_only_at_the_end(tmp_path: Path) -> None:
    path = write(tmp_path / "tokens.bin", [[1, 2]])
    with TokenWriter(path, dtype="uint16") as writer:
        writer.write([[3, 4, 5]])
        assert TokenDataset(path, 2, labels=None).token_count == 2
        assert repr(writer) == f"TokenWriter({str(path)!r}, 3 tokens in 1 documents)"
    assert TokenDataset(path, 2, labels=None).token_count == 3


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([65_536], "65536.*uint16.*dtype='uint32'"),
        ([1, -1], "-1"),
        ([1 << 40], "1099511627776"),
        *((wrong, "token ids") for wrong in ([0.5], "text", [[1]])),
    ],
)
def test_bad_tokens_are_rejected(tmp_path: Path, tokens: Any, message: str) -> None:
    with TokenWriter(tmp_path / "tokens.bin", dtype="uint16") as writer:
        writer.write([[7]])
        with pytest.raises(BadOption, match=message):
            writer.write([[8], tokens])
        with pytest.raises(BadOption, match="add up to"):
            writer.write_joined(np.array([1, 2]), [1])
        writer.write([[]])
    assert TokenDataset(tmp_path / "tokens.bin", 1).documents.lengths.tolist() == [1, 0]


def test_rejects_a_checkpoint_of_another_file(tmp_path: Path) -> None:
    writer = TokenWriter(tmp_path / "a.bin", dtype="uint16")
    writer.write([[1, 2, 3]])
    checkpoint = writer.checkpoint()
    writer.close()
    os.truncate(tmp_path / "a.bin.unfinished", 4098)
    with pytest.raises(BadState, match="4,102 at the checkpoint"):
        TokenWriter(tmp_path / "a.bin", dtype="uint16", resume=checkpoint)


@pytest.mark.parametrize("name", ["a.bin.unfinished", "a.bin.lengths"])
def test_files_of_the_user_are_not_emptied(tmp_path: Path, name: str) -> None:
    with TokenWriter(tmp_path / "a.bin", dtype="uint16") as writer:
        writer.write([[1, 2], [3]])
        checkpoint = writer.checkpoint()
    (tmp_path / name).write_bytes(b"precious" * 1000)
    (tmp_path / "precious").write_bytes(b"precious")
    with pytest.raises(BadOption, match=name):
        TokenWriter(tmp_path / "a.bin", dtype="uint16")
    with pytest.raises(BadState, match=r"a\.bin"):
        TokenWriter(tmp_path / "a.bin", dtype="uint16", resume=checkpoint)
    assert (tmp_path / name).read_bytes() == b"precious" * 1000
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to(tmp_path / "precious")
    with pytest.raises(BadOption, match=name):
        TokenWriter(tmp_path / "a.bin", dtype="uint16")
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_what_an_interrupted_writer_left_is_replaced(tmp_path: Path) -> None:
    writer = TokenWriter(tmp_path / "a.bin", dtype="uint16")
    writer.write([[1, 2], [3]])
    writer.checkpoint()
    writer.close()
    with TokenWriter(tmp_path / "a.bin", dtype="uint16") as writer:
        writer.write([[5]])
    assert verify(tmp_path / "a.bin").token_count == 1
