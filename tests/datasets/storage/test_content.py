import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from feedline.datasets import TarDataset
from feedline.datasets.storage.content import Content, packing_of
from feedline.errors import BadOption, CorruptSource
from tests.datasets.formats.tar.writing import numbered, tar_bytes

DATA = tar_bytes(numbered(40))
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}

CHECKED = {**PACKERS, "zstd": zstandard.ZstdCompressor(write_checksum=True).compress}


@pytest.mark.parametrize("packing", PACKERS)
def test_compressed_shards_are_read_under_any_name(packing: str, tmp_path: Path) -> None:
    pack = PACKERS[packing]
    path = tmp_path / "a.tar"
    path.write_bytes(DATA)
    expected = list(TarDataset(path, fields=("__key__", "cls", "txt", "bin")).stream())
    assert len(expected) == 40
    assert packing_of(pack(DATA)) == packing
    for packed in (pack(DATA), pack(DATA[:1000]) + pack(DATA[1000:])):
        path.write_bytes(packed)
        assert list(TarDataset(path, fields=("__key__", "cls", "txt", "bin")).stream()) == expected


@pytest.mark.parametrize("packing", PACKERS)
def test_damaged_compressed_shards(packing: str, tmp_path: Path) -> None:
    """They are read to their end: after the last sample, a checksum shows that nothing is missing."""
    path = tmp_path / "a.tar"
    packed = CHECKED[packing](DATA)
    damaged = [packed[:-count] for count in (1, 2, 4, 5, 8, 12, len(packed) // 2, len(packed) - 20)]
    damaged += [
        packed[:-place] + bytes([packed[-place] ^ 1]) + packed[len(packed) - place + 1 :] for place in (2, 3, 4)
    ]
    damaged.append(packed[:200] + b"?!" * 50 + packed[300:])
    for wrong in damaged:
        path.write_bytes(wrong)
        with pytest.raises(CorruptSource, match=r"a\.tar"):
            list(TarDataset(path, decode=False).stream())


def test_zeros_after_an_xz_stream_are_part_of_the_format(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    packed = lzma.compress(DATA[:1000]) + bytes(8) + lzma.compress(DATA[1000:])
    path.write_bytes(packed + bytes(1 << 18))
    assert len(list(TarDataset(path, decode=False).stream())) == 40
    chunks = iter([bytes([value]) for value in packed + bytes(512)])
    content = Content(lambda: next(chunks, b""), "a.tar", "xz")
    assert b"".join(iter(content.take_some, b"")) == DATA


@pytest.mark.parametrize(
    ("packing", "trailing"),
    [("gzip", b"more"), ("bzip2", b"more"), ("zstd", bytes(512)), ("xz", b"more"), ("xz", b"\xfd7z")],
)
def test_bytes_after_a_compressed_shard_are_reported(packing: str, trailing: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(PACKERS[packing](DATA) + trailing)
    with pytest.raises(CorruptSource, match=r"a\.tar .*something follows"):
        list(TarDataset(path, decode=False).stream())


@pytest.mark.parametrize("packing", PACKERS)
def test_the_size_of_decompressed_chunks_is_limited(packing: str) -> None:
    """A few KB decompress to 4 MB of zeros."""
    chunks = [PACKERS[packing](bytes(1 << 22))]
    content = Content(lambda: chunks.pop() if chunks else b"", "a.tar", packing)
    total, most = 0, 1 << 26 if packing == "zstd" else 1 << 18
    while piece := content.take_some():
        assert len(piece) <= most
        total += len(piece)
    assert total == 1 << 22


def test_frames_without_content_are_passed(tmp_path: Path) -> None:
    """pzstd and seekable zstd write such frames."""
    path, frame = tmp_path / "a.tar.zst", b"\x5e\x2a\x4d\x18\x03\0\0\0abc"
    path.write_bytes(frame + zstandard.compress(DATA[:1000]) + frame + zstandard.compress(DATA[1000:]) + frame)
    assert len(list(TarDataset(path, decode=False).stream())) == 40


def test_a_decompression_bomb_is_rejected_before_it_is_decompressed(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.zst"
    path.write_bytes(zstandard.compress(tar_bytes([("a.bin", bytes(1 << 25))])))
    assert path.stat().st_size < 1 << 14
    with pytest.raises(CorruptSource, match=r"'a\.bin' at byte 0 takes 33554432 bytes.*max_field_bytes="):
        list(TarDataset(path, max_field_bytes=1 << 20).stream())
    assert len(next(iter(TarDataset(path, fields="bin").stream()))) == 1 << 25


def test_random_access_rejects_compressed_shards(tmp_path: Path) -> None:
    for packing, pack in PACKERS.items():
        path = tmp_path / "a.tar"
        path.write_bytes(pack(DATA))
        with pytest.raises(BadOption, match=rf"a\.tar is compressed as a whole \({packing}\).*stream\(\)"):
            len(TarDataset(path, cache=False))
