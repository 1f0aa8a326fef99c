from __future__ import annotations

import struct

import pytest

from feedline.audio.containers import check_complete, format_of
from feedline.errors import CorruptSource
from tests.audio.sounds import FORMATS, encoded, sound


def check(data: bytes) -> None:
    name = format_of(data[:12])
    assert name is not None
    check_complete("a file", name, len(data), lambda place, count: data[place : place + count])


@pytest.mark.parametrize("format_", [*FORMATS, "RF64"])
def test_formats_are_recognised_and_whole_files_are_accepted(format_: str) -> None:
    data = encoded(sound(), format_)
    assert format_of(data[:12]) == format_
    check(data)
    check(data + bytes(100))


@pytest.mark.parametrize("head", [b"", b"R", b"\xff", b"RIFF\0\0\0\0WEBP", b"\x89PNG", b"caff", b".snd", b"text text"])
def test_other_files_are_not_recognised_as_audio(head: bytes) -> None:
    assert format_of(head) is None


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFF000, 0x7FFFFFFF])
def test_sizes_that_mean_up_to_the_end_are_accepted(size: int) -> None:
    data = encoded(sound(), "WAV")
    place = data.index(b"data") + 4
    check(data[:place] + struct.pack("<I", size) + data[place + 4 :])


def test_chunks_before_the_sound_are_skipped() -> None:
    data = encoded(sound(), "WAV")
    place = data.index(b"data")
    odd = data[:place] + b"LIST" + struct.pack("<I", 3) + b"abc\0" + data[place:]
    check(odd)
    with pytest.raises(CorruptSource):
        check(odd[:-10])
