"""Question: how many random clips per second come from long audio files?

Knob: the files (`16k`: 16 kHz, mono; `44k`: 44.1 kHz, stereo, mixed and resampled to 16 kHz), and the way. `torch` is
what many datasets do: soundfile decodes the whole file, and the clip is cut out of it, in torch's loader. `seek` is the
same with a seek, written by hand: `soundfile.read(path, start=..., frames=...)`. `torchaudio` is `torchaudio.load` with
`frame_offset=` and `num_frames=`, which decodes with torchcodec, and its own resampling; also in torch's loader.
`feedline` is an `AudioFolder` with a `RandomClip`.

Held still: 24 FLAC files of 60 s, clips of 4 s, batches of 16, two workers, one thread each for torch; files are drawn
with replacement. All deliver one channel at 16 kHz. The others resample the clip alone; feedline decodes a margin
around it, so that a clip equals the same clip of the resampled file.

How to read it: `x torch` is the ratio to decoding whole files. `peak PSS` is the memory of all processes.

    python -m benchmarks.w18_audio
    python -m benchmarks.w18_audio --files 44k --workers 0 2 --peers seek
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from benchmarks import flags, peers, workloads
from feedline.tools.measure import harness, rows

RATE, SECONDS, CLIP_S = 16_000, 60, 4
FILES = {"16k": (16_000, 1), "44k": (44_100, 2)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, engine=["process"], seconds=2.0, workers=[2], count=24, batch_size=16)
    flags.choose(parser, "--files", list(FILES))
    ways = {"torch": Whole, "feedline": ours, "seek": Sought, "torchaudio": OfTorchaudio}
    peers.add_flag(parser, ways)
    flags.add_data(parser)
    arguments = parser.parse_args(argv)
    chosen = peers.chosen(arguments, ways, {"seek": "soundfile"})
    entries: list[harness.Entry] = []
    for files in arguments.files:
        name = f"audio-{files}-{arguments.count}"
        folder = workloads.stored(arguments.data, name, partial(write, arguments.count, *FILES[files]))
        given = {name: partial(peers.drawn, partial(make, folder)) for name, make in chosen.items()}
        entries += rows.entries(arguments, {"files": files}, given)
    columns = (rows.SAMPLES, *rows.COSTS)
    rows.publish("w18_audio", rows.measure(entries, arguments), arguments, columns=columns)
    return 0


def write(count: int, rate: int, channels: int, folder: Path) -> None:
    """Write files of a tone and noise."""
    import soundfile

    (folder / "class").mkdir(parents=True)
    generator = np.random.default_rng(0)
    moment = np.arange(rate * SECONDS) / rate
    for number in range(count):
        tone = 0.3 * np.sin(2 * np.pi * 55 * (number + 1) * moment)
        noise = generator.normal(0, 0.02, (channels, len(moment)))
        soundfile.write(folder / "class" / f"{number:03d}.flac", (tone + noise).T, rate)


def ours(folder: Path) -> object:
    from feedline import audio

    return audio.AudioFolder(
        folder, transform=audio.Compose([audio.RandomClip(CLIP_S), audio.Resample(RATE), audio.Mono()])
    )


class Clips(Dataset[tuple[torch.Tensor, int]]):
    """Audio files in torch's loader, as people write it."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(map(str, folder.glob("*/*.flac")))

    def __len__(self) -> int:
        return len(self.paths)


class Whole(Clips):
    """The whole file is decoded, and then cut."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        import soundfile

        samples, rate = soundfile.read(self.paths[index], dtype="float32", always_2d=True)
        start = int(torch.randint(len(samples) - CLIP_S * rate + 1, ()))
        return _converted(samples[start : start + CLIP_S * rate], rate), 0


class Sought(Clips):
    """The clip is decoded after a seek."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        import soundfile

        with soundfile.SoundFile(self.paths[index]) as file:
            rate = file.samplerate
            file.seek(int(torch.randint(file.frames - CLIP_S * rate + 1, ())))
            samples = file.read(CLIP_S * rate, dtype="float32", always_2d=True)
        return _converted(samples, rate), 0


def _converted(samples: NDArray[np.float32], rate: int) -> torch.Tensor:
    """Mix and resample the clip."""
    import soxr

    mono = samples.mean(axis=1)
    return torch.from_numpy(mono if rate == RATE else soxr.resample(mono, rate, RATE))[None]


class OfTorchaudio(Clips):
    """The clip is decoded and resampled by torchaudio; the rate and length of each file are read once."""

    def __init__(self, folder: Path) -> None:
        import soundfile

        super().__init__(folder)
        found = soundfile.info(self.paths[0])  # torchaudio no longer reads headers
        self.rate, self.frames = found.samplerate, found.frames

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        import torchaudio

        start = int(torch.randint(self.frames - CLIP_S * self.rate + 1, ()))
        samples, rate = torchaudio.load(self.paths[index], frame_offset=start, num_frames=CLIP_S * self.rate)
        mono = samples.mean(dim=0, keepdim=True)
        return torchaudio.functional.resample(mono, rate, RATE), 0


if __name__ == "__main__":
    sys.exit(main())
