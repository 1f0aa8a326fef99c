from __future__ import annotations

import io
import os
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.audio import AudioInfo, decode_audio, info
from feedline.errors import BadOption, CorruptSource, MissingExtra, SourceError
from tests.audio.sounds import FORMATS, RATE, decoded, encoded, sound


@pytest.mark.parametrize("format_", FORMATS)
def test_a_file_may_have_any_form(format_: str, tmp_path: Path) -> None:
    data = encoded(sound(1.0, 2), format_)
    path = tmp_path / "a.audio"
    path.write_bytes(data)
    forms: list[Any] = [path, str(path), data, memoryview(data), np.frombuffer(data, np.uint8), io.BytesIO(data)]
    for form in forms:
        assert info(form) == AudioInfo(format_, RATE, 2, RATE)
        samples, rate = decode_audio(form)
        assert rate == RATE
        assert samples.dtype == np.float32
        assert samples.flags.c_contiguous
        assert np.abs(samples - decoded(data)).max() <= FORMATS[format_]
    for share in (0.2, 0.6, 0.8):
        path.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(CorruptSource, match=r"a\.audio"):
            decode_audio(path)


_FILES = {name: encoded(sound(1.5, 2), name) for name in FORMATS}


@given(st.sampled_from(sorted(FORMATS)), st.floats(0, 2), st.none() | st.floats(0, 2))
def test_some_seconds_equal_those_of_the_whole_file(format_: str, start: float, seconds: float | None) -> None:
    data = _FILES[format_]
    whole = decoded(data)
    samples, _ = decode_audio(data, start=start, seconds=seconds)
    first = min(round(start * RATE), whole.shape[1])
    last = None if seconds is None else first + round(seconds * RATE)
    expected = whole[:, first:last]
    assert samples.shape == expected.shape
    assert np.abs(samples - expected).max(initial=0) <= FORMATS[format_]


class Counting(io.BytesIO):
    count, fails = 0, False

    def read(self, size: int | None = -1, /) -> bytes:
        if self.fails:
            raise ConnectionResetError("the store has gone away")
        data = super().read(size)
        self.count += len(data)
        return data


@pytest.mark.parametrize("format_", ["WAV", "FLAC"])
def test_only_the_wanted_seconds_are_read(format_: str) -> None:
    data = encoded(sound(60.0), format_)
    file = Counting(data)
    decode_audio(file, start=40, seconds=1)
    assert 0 < file.count < len(data) / 6
    header = Counting(data)
    info(header)
    assert header.count < 100_000
    file.fails = True
    with pytest.raises(SourceError, match="the store has gone away") as caught:
        decode_audio(file)
    assert not isinstance(caught.value, CorruptSource)
    assert isinstance(caught.value.__cause__, ConnectionResetError)


def test_opus_is_close_after_a_seek() -> None:
    data = encoded(sound(3.0), "OGG", subtype="OPUS")
    part, _ = decode_audio(data, start=1.0, seconds=1.0)
    assert np.abs(part - decoded(data)[:, RATE : 2 * RATE]).max() < 0.02


def test_damage_in_the_middle_of_a_flac_file_is_detected_only_there() -> None:
    data = bytearray(encoded(sound(10.0)))
    place = len(data) // 2
    data[place : place + 4] = bytes(4)
    with pytest.raises(CorruptSource, match="decoder"):
        decode_audio(bytes(data))
    intact, _ = decode_audio(bytes(data), seconds=2)
    assert np.array_equal(intact, decode_audio(encoded(sound(10.0)), seconds=2)[0])


@pytest.mark.parametrize(("subtype", "as_file"), [("VORBIS", False), ("OPUS", True)])
def test_damage_of_an_ogg_file_is_detected_in_a_clip_that_holds_it_and_nowhere_else(
    subtype: str, as_file: bool
) -> None:
    data = encoded(sound(30.0, 2), "OGG", subtype=subtype)
    assert len(data) > 2 * 65_307  # more than the search for the pages of a clip reads at once
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 1
    file: Any = io.BytesIO(damaged) if as_file else bytes(damaged)
    for part in ({"start": 14.0, "seconds": 2}, {"start": 14.9, "seconds": 2}, {}):
        with pytest.raises(CorruptSource, match="damaged at byte"):
            decode_audio(file, **part)
    for begin in (0, 18, 28):
        found, _ = decode_audio(file, start=begin, seconds=2)
        assert np.array_equal(found, decode_audio(data, start=begin, seconds=2)[0])


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_damage_near_an_end_of_an_ogg_file_does_not_change_its_length(subtype: str) -> None:
    data = encoded(sound(3.0), "OGG", subtype=subtype)
    pages = [place for place in range(len(data)) if data.startswith(b"OggS\0", place)]
    for page in (*pages[:3], pages[-1]):
        damaged = bytearray(data)
        damaged[page + 300 if page else 30] ^= 1
        with pytest.raises(CorruptSource, match="bytes"):
            info(bytes(damaged))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"RIFF",
        b"hello, this is text",
        b"fLaC" + bytes(100),
        b"OggS" + bytes(100),
        b"ID3" + bytes(100),
        b"\xff\xfb" + bytes(1000),
        b"FORM\0\0\0\x20AIFF" + bytes(30),
        encoded(sound()[:, :0], "WAV"),
    ],
)
def test_rejects_files_without_sound(data: bytes, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(data)
    for read in (decode_audio, info):
        with pytest.raises(CorruptSource, match="victim"):
            read(tmp_path / "victim")
    assert "Traceback" not in capfd.readouterr().err


def with_total(frames: int) -> bytes:
    """Return a FLAC file whose header declares this number of frames."""
    data = bytearray(encoded(sound(1.0)))
    data[21] = data[21] & 0xF0 | frames >> 32
    data[22:26] = (frames & 0xFFFFFFFF).to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize("frames", [0, 1 << 28, (1 << 36) - 1])
def test_a_header_that_declares_billions_of_frames_allocates_nothing(frames: int) -> None:
    data = with_total(frames)
    tracemalloc.start()
    with pytest.raises(CorruptSource, match=r"declare|takes|decoded"):
        decode_audio(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000_000


def test_the_size_of_a_sample_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(sound(1.0))
    monkeypatch.setenv("FEEDLINE_MAX_SAMPLE_BYTES", "32000")
    with pytest.raises(CorruptSource, match="FEEDLINE_MAX_SAMPLE_BYTES"):
        decode_audio(data)
    assert decode_audio(data, seconds=0.5)[0].shape == (1, 8000)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="missing"):
        decode_audio(tmp_path / "missing.flac")
    with pytest.raises(SourceError, match="folder"):
        decode_audio(tmp_path)
    os.mkfifo(tmp_path / "pipe.wav")  # opening it would wait for a writer
    with pytest.raises(SourceError, match=r"pipe\.wav"):
        decode_audio(tmp_path / "pipe.wav")
    with pytest.raises(BadOption, match="address"):
        decode_audio("s3://bucket/a.flac")


@pytest.mark.parametrize("options", [{"start": -1}, {"seconds": -0.5}, {"start": float("nan")}, {"seconds": "1"}])
def test_bad_options_are_rejected(options: Any) -> None:
    with pytest.raises(BadOption, match=next(iter(options))):
        decode_audio(encoded(sound()), **options)
    for wrong in (3, None, object()):
        with pytest.raises(BadOption, match="not an audio file"):
            decode_audio(wrong)  # type: ignore[arg-type]


def test_the_error_without_soundfile_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingExtra, match=r"feedline\[audio\]"):
        decode_audio(b"fLaC")
