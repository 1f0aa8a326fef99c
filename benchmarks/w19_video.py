"""Question: how many clips per second come out of H.264 files, decoded, cropped and normalised?

Knob: the library that decodes, and the distance between key frames (`--gop`). `torch` is torch's loader with PyAV as
`torchvision.io.read_video` uses it: seek, decode a range of times, convert all of its frames, then pick every second
one. `decord` and `torchcodec` are these libraries in torch's loader, with one thread per worker; they get the 16 frames
by number. All three crop, resize, flip and normalise the clip with torch as torchvision (v2) does. `feedline` is
`VideoFolder` with `feedline.video`.

Held still: 640 x 360 pixels, 30 frames per second, 10 seconds, a moving image with noise; random clips of 16 frames at
a stride of 2, a random crop resized to 224 x 224, the same for all frames; float32 with the channel first, batches of 4
clips, two workers, random files with replacement.

How to read it: `x torch` is the ratio of clips per second to torch's loader with PyAV; to compare with another library,
divide. `peak` is the memory of the program and its workers.

torchcodec finds FFmpeg by the names of its shared libraries. If the system has no FFmpeg, put links to PyAV's copies
into a folder of `LD_LIBRARY_PATH`.

    python -m benchmarks.w19_video
    python -m benchmarks.w19_video --gop 12 --engine thread --peers
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import flags, peers, workloads
from feedline.tools.measure import harness, rows

RATE, STRIDE = 30, 2
MEAN = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
STD = torch.tensor([0.229, 0.224, 0.225])[:, None, None]


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__,
        engine=["process"],
        seconds=4.0,
        warmup=4,
        workers=[2],
        gop=[12, 60, 250],
        files=12,
        length=300,
        width=640,
        height=360,
        frames=16,
        size=224,
        batch_size=4,
    )
    peers.add_flag(parser, DECODERS)
    flags.add_data(parser)
    arguments = parser.parse_args(argv)
    shape, clip = (arguments.length, arguments.height, arguments.width), (arguments.frames, arguments.size)
    chosen = peers.installed(arguments.peers, {})
    entries: list[harness.Entry] = []
    for gop in arguments.gop:
        name = f"videos-{gop}-{arguments.files}-{'x'.join(map(str, shape))}"
        folder = workloads.stored(arguments.data, name, partial(write, gop, arguments.files, shape))
        # Any: datasets of several libraries.
        makes: dict[str, Callable[[], Any]] = {"torch": partial(Clips, folder, by_pyav, *clip)}
        makes["feedline"] = partial(ours, folder, *clip)
        makes |= {name: partial(Clips, folder, DECODERS[name], *clip) for name in chosen}
        ways = {name: partial(peers.drawn, make) for name, make in makes.items()}
        entries += rows.entries(arguments, {"gop": gop}, ways)
    clips = rows.Column("samples_per_s", "clips/s", digits=1, with_range=True, better="higher")
    rows.publish("w19_video", rows.measure(entries, arguments), arguments, columns=(clips, *rows.COSTS))
    return 0


def write(gop: int, files: int, shape: tuple[int, int, int], folder: Path) -> None:
    """Write videos of two classes: a picture with noise that moves across the frame."""
    import av

    length, height, width = shape
    for number in range(files):
        generator = np.random.default_rng(number)
        coarse = torch.from_numpy(generator.random((1, 3, height // 4, width // 4), np.float32))
        large = torch.nn.functional.interpolate(coarse, (2 * height, 2 * width), mode="bicubic")[0].permute(1, 2, 0)
        picture = (large.numpy() * 255).clip(0, 240).astype(np.uint8)
        path = folder / "ab"[number % 2] / f"{number}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        with av.open(str(path), "w") as container:
            options = {"preset": "fast", "crf": "23"}
            stream = container.add_stream("libx264", rate=RATE, options=options)
            stream.width, stream.height, stream.pix_fmt, stream.gop_size = width, height, "yuv420p", gop
            for frame in range(length):
                left, top = 2 * frame % width, frame % height
                pixels = picture[top : top + height, left : left + width]
                noisy = pixels + generator.integers(0, 12, pixels.shape, np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(noisy, "rgb24")))
            container.mux(stream.encode())


def ours(folder: Path, frames: int, size: int) -> Any:
    from feedline import images, video

    transforms = [images.RandomResizedCrop(size), images.HorizontalFlip(), images.Normalize()]
    clip = video.Compose([video.RandomClip(frames, stride=STRIDE), *transforms])
    return video.VideoFolder(folder, transform=clip, index=folder.parent / f"{folder.name}.index")


Decode = Callable[[str, int], torch.Tensor]
"""Takes a path and a number of frames; returns a random clip, uint8 with the axes frame, color, height, width."""


class Clips(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """What people write."""

    def __init__(self, folder: Path, decode: Decode, frames: int, size: int) -> None:
        self.paths = sorted(map(str, folder.glob("*/*.mp4")))
        self.decode, self.frames, self.size = decode, frames, size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self.paths[index]
        return transformed(self.decode(path, self.frames), self.size), int(Path(path).parent.name == "b")


def transformed(clip: torch.Tensor, size: int) -> torch.Tensor:
    """Crop, resize, flip and normalise as transforms of torchvision (v2) do, on uint8 tensors."""
    height, width = clip.shape[-2:]
    for _ in range(10):
        area = height * width * (0.08 + 0.92 * torch.rand(()).item())
        ratio = math.exp(math.log(3 / 4) + math.log(16 / 9) * torch.rand(()).item())
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            break
    else:
        across = down = min(height, width)
    top, left = (int(torch.randint(0, room + 1, ())) for room in (height - down, width - across))
    part = clip[..., top : top + down, left : left + across]
    resized = torch.nn.functional.interpolate(part, (size, size), mode="bilinear", antialias=True)
    if torch.rand(()) < 0.5:
        resized = resized.flip(-1)
    return resized.float().div_(255).sub_(MEAN).div_(STD)


def begin(count: int, frames: int) -> int:
    """Return a random first frame."""
    return int(torch.randint(0, max(1, count - (frames - 1) * STRIDE), ()))


def by_pyav(path: str, frames: int) -> torch.Tensor:
    """Decode as `torchvision.io.read_video` does, given a range of times."""
    import av

    with av.open(path, metadata_errors="ignore") as container:
        stream = container.streams.video[0]
        first = begin(stream.frames, frames)
        step = round(1 / (RATE * stream.time_base))
        start, end = first * step, (first + (frames - 1) * STRIDE) * step
        container.seek(start, any_frame=False, backward=True, stream=stream)
        kept = {}
        beyond = 0
        for frame in container.decode(stream):
            kept[frame.pts] = frame
            beyond += frame.pts >= end
            if beyond > 5:  # frames that come later may be shown earlier
                break
        chosen = [kept[pts] for pts in sorted(kept) if start <= pts <= end]
        clip = np.stack([frame.to_rgb().to_ndarray() for frame in chosen])
    return torch.from_numpy(clip)[::STRIDE].permute(0, 3, 1, 2)


# Any: what other libraries make.
def by_decord(path: str, frames: int) -> torch.Tensor:
    import decord

    reader: Any = decord.VideoReader(path, num_threads=1)
    first = begin(len(reader), frames)
    clip = reader.get_batch(range(first, first + frames * STRIDE - 1, STRIDE)).asnumpy()
    return torch.from_numpy(clip).permute(0, 3, 1, 2)


def by_torchcodec(path: str, frames: int) -> torch.Tensor:
    from torchcodec.decoders import VideoDecoder

    decoder: Any = VideoDecoder(path, num_ffmpeg_threads=1, seek_mode="approximate")
    first = begin(len(decoder), frames)
    clip: torch.Tensor = decoder.get_frames_at(list(range(first, first + frames * STRIDE - 1, STRIDE))).data
    return clip


DECODERS: dict[str, Decode] = {"decord": by_decord, "torchcodec": by_torchcodec}


if __name__ == "__main__":
    sys.exit(main())
