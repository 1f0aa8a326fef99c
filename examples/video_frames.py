"""Video: a few frames of each video, spread over its length, for a model that looks at single images.

    python examples/video_frames.py

Shows: `EvenFrames` takes one frame from each part of a video, random ones for training and those in the middle for
validation; the script's own sampler takes one frame per second, regardless of the videos' frame rates. Decoding starts
at the key frame before each wanted frame, so the frames in between are not decoded. The videos are fields of tar
shards: the transform receives their bytes.

Look at: the "frames" that each sampler takes of a video, the loss of each "epoch", and the "accuracy".
"""

from __future__ import annotations

import argparse
import io
import tarfile
import tempfile
from pathlib import Path

import av
import numpy as np
import torch
from torch import nn

from feedline import DataLoader, images, video
from feedline.datasets import TarDataset

SIZE, COLORS = 32, ((200, 40, 40), (40, 200, 40), (40, 40, 200))


class EverySecond(video.ClipSampler):
    """One frame per second, at most so many."""

    def __init__(self, most: int) -> None:
        self.most = most

    def pick(self, timeline: video.Timeline) -> np.ndarray:
        return timeline.at(np.arange(min(self.most, int(timeline.duration_s) + 1)))


def encoded(color: tuple[int, int, int], rate: int, seconds: int, rng: np.random.Generator) -> bytes:
    """Return a video of noise in which a color shows for a part of the time."""
    out = io.BytesIO()
    begin = rng.integers(0, rate * seconds // 2)
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate, options={"preset": "ultrafast", "g": str(rate)})
        stream.width = stream.height = SIZE
        stream.pix_fmt = "yuv420p"
        for frame in range(rate * seconds):
            pixels = rng.integers(60, 120, (SIZE, SIZE, 3), np.uint8)
            if begin <= frame < begin + rate * seconds // 2:
                pixels[8:24, 8:24] = color
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        container.mux(stream.encode())
    return out.getvalue()


def write_shard(path: Path, count: int) -> None:
    """Write videos of different rates and lengths: files 0007.mp4 and 0007.cls each."""
    rng = np.random.default_rng(count)
    with tarfile.open(path, "w") as file:
        for number in range(count):
            label = number % len(COLORS)
            data = encoded(COLORS[label], int(rng.choice([10, 15, 24])), int(rng.integers(2, 6)), rng)
            for ending, content in (("mp4", data), ("cls", str(label).encode())):
                info = tarfile.TarInfo(f"{number:04d}.{ending}")
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    torch.manual_seed(0)
    small = [images.Resize((16, 16)), images.Normalize()]
    with tempfile.TemporaryDirectory() as name:
        for part, count in (("train", 72), ("test", 24)):
            write_shard(Path(name, f"{part}.tar"), count)

        def dataset(part: str, sampler: video.ClipSampler) -> TarDataset:
            clip = video.Compose([sampler, *small])
            return TarDataset(str(Path(name, f"{part}.tar")), ("mp4", "cls"), transform=clip, cache=False)

        for sampler in (video.EvenFrames(4), EverySecond(8)):
            frames, _ = dataset("test", sampler)[0]
            print(f"frames of a video by {type(sampler).__name__}: {len(frames)}")
        loader = DataLoader(dataset("train", video.EvenFrames(4, random=True)), 12, shuffle=True, seed=0, num_workers=2)

        model = nn.Sequential(nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
        head = nn.Linear(16, len(COLORS))
        optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-2)

        def scores(frames: torch.Tensor) -> torch.Tensor:
            """Look at each frame alone, then keep the strongest signal of a video."""
            return head(model(frames.flatten(0, 1)).unflatten(0, frames.shape[:2]).amax(1))

        for epoch in range(options.epochs):
            losses = []
            for frames, labels in loader:
                loss = nn.functional.cross_entropy(scores(frames), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            print(f"epoch {epoch}: loss {np.mean(losses):.2f}")
        test = dataset("test", video.EvenFrames(4))
        with torch.no_grad():
            right = sum(int((scores(frames).argmax(1) == labels).sum()) for frames, labels in DataLoader(test, 8))
        print(f"accuracy: {right / len(test):.0%} of {len(test)} videos")
    assert right / len(test) > 0.8


if __name__ == "__main__":
    main()
