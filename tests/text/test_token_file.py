"""The file format: what opening a file rejects, and what `verify` finds."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.errors import BadOption, CorruptSource
from feedline.text import TokenDataset, verify
from feedline.text.token_file import BLOCK_BYTES, HEADER_BYTES, TokenFile, find_tokens
from tests.sampling import examples
from tests.text.token_files import write


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("one") / "tokens.bin"
    return write(path, [[1, 2, 3], [], [4, 5]], tokenizer="gpt2", tokenizer_hash="ab", end_token=5).read_bytes()


def saved(folder: Path, content: bytes) -> Path:
    path = folder / "tokens.bin"
    path.write_bytes(content)
    return path


def test_layout(tmp_path: Path, content: bytes) -> None:
    """The layout is checked byte by byte, since other programs rely on it."""
    found = find_tokens(str(saved(tmp_path, content)))
    assert (found.token_count, found.document_count, found.dtype.name) == (5, 3, "uint16")
    assert (found.end_token, found.tokenizer, found.tokenizer_hash) == (5, "gpt2", "ab")
    assert content[:8] == b"\x93FEEDTOK"
    assert np.frombuffer(content, "<u2", 5, HEADER_BYTES).tolist() == [1, 2, 3, 4, 5]
    assert np.frombuffer(content, "<i8", 4, HEADER_BYTES + 16).tolist() == [0, 3, 3, 5]
    assert len(content) == HEADER_BYTES + 16 + 4 * 8 + 4 == found.size


def test_truncation_at_any_byte_is_detected(tmp_path: Path, content: bytes) -> None:
    for size in [*range(8, len(content), 97), len(content) - 1]:
        with pytest.raises(CorruptSource, match="truncated"):
            TokenDataset(saved(tmp_path, content[:size]), 2)
    for start in (content[:5], b""):
        with pytest.raises(BadOption, match=r"tokens\.bin"):
            TokenDataset(saved(tmp_path, start), 2)
    with pytest.raises(CorruptSource, match=r"tokens\.bin"):
        TokenDataset(saved(tmp_path, content + b"x"), 2)


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_every_flipped_bit_is_detected(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    padding = range(HEADER_BYTES + 10, HEADER_BYTES + 16)
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    path = saved(tmp_path_factory.mktemp("flipped"), bytes(damaged))
    if bit // 8 in padding:
        verify(path)
        return
    with pytest.raises((CorruptSource, BadOption), match=r"damaged|not a token file|version"):
        verify(path)


def test_verify_names_the_damaged_tokens(tmp_path: Path) -> None:
    tokens = np.zeros(BLOCK_BYTES, np.uint16)  # exactly two blocks
    path = write(tmp_path / "tokens.bin", [tokens, [1]])  # type: ignore[list-item]  # an array
    reported: list[int] = []
    assert verify(path, report=reported.append).token_count == BLOCK_BYTES + 1
    assert reported == [BLOCK_BYTES, 2 * BLOCK_BYTES, 2 * BLOCK_BYTES + 2]
    with open(path, "r+b") as file:
        file.seek(HEADER_BYTES + BLOCK_BYTES + 5)
        file.write(b"x")
    with pytest.raises(CorruptSource, match=r"in tokens 8,388,608 to 16,777,215"):
        verify(path)
    assert TokenDataset(path, 8, labels=None)[0].tolist() == [0] * 8  # reading does not verify checksums


def test_rejects_offsets_that_are_not_in_order(tmp_path: Path) -> None:
    file = TokenFile(str(tmp_path / "tokens.bin"), 2, 4, 2)
    tokens = bytes(8)
    tail = np.array([0, 5, 4], "<i8").tobytes() + np.array([zlib.crc32(tokens)], "<u4").tobytes()
    file = TokenFile(file.path, 2, 4, 2, tail_sum=zlib.crc32(tail))
    Path(file.path).write_bytes(file.header() + tokens + tail)
    with pytest.raises(CorruptSource, match="not in order"):
        verify(file.path)


@pytest.mark.parametrize("dtype", ["int16", "uint8", "float32", "x", None])
def test_raw_types(tmp_path: Path, dtype: str | None) -> None:
    path = saved(tmp_path, b"12345678")
    with pytest.raises(BadOption, match="raw_dtype"):
        TokenDataset(path, 2, raw_dtype=dtype)
    with pytest.raises(CorruptSource, match="not a multiple of"):
        TokenDataset(saved(tmp_path, b"123"), 1, raw_dtype="uint16")


def test_rejects_a_tokenizer_name_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="too long"):
        write(tmp_path / "a.bin", [[1]], tokenizer="x" * 5000)
    assert os.listdir(tmp_path) == []
