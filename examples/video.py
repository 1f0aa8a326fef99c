"""Video: train on random clips of video files, validate on several clips of each.

    python examples/video.py

Shows: `VideoFolder` finds the frames and key frames of its videos once, so decoding a random clip starts at the last
key frame before it, and decodes no more frames than needed. `feedline.video.Compose` draws a crop and a flip once per
clip. For validation, `EvenClips` takes several clips of each video, and the predictions for them are averaged. The same
transform reads videos from tar shards and Parquet columns.

Look at: the loss of each "epoch", the milliseconds of a batch in "decoding", and the "accuracy": the direction of a
movement cannot be seen in a single frame.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import av
import numpy as np
import torch
from torch import nn

from feedline import DataLoader, images, video

DIRECTIONS = {"down": (0, 1), "left": (-1, 0), "right": (1, 0), "up": (0, -1)}
LENGTH, SIZE, FRAMES = 30, 48, 6


def write_videos(folder: Path, count: int) -> None:
    """Write videos of a spot that moves, in one folder per direction."""
    rng = np.random.default_rng(0)
    for number in range(count):
        name = list(DIRECTIONS)[number % len(DIRECTIONS)]
        path = folder / name / f"{number:03d}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        place, step = rng.integers(0, SIZE, 2), np.array(DIRECTIONS[name])
        with av.open(str(path), "w") as container:
            stream = container.add_stream("libx264", rate=15, options={"preset": "ultrafast", "g": "10"})
            stream.width = stream.height = SIZE
            stream.pix_fmt = "yuv420p"
            for frame in range(LENGTH):
                pixels = rng.integers(0, 60, (SIZE, SIZE, 3), np.uint8)
                x, y = (place + 2 * step * frame) % SIZE
                pixels[np.ix_(np.arange(y, y + 12) % SIZE, np.arange(x, x + 12) % SIZE)] = 230
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
            container.mux(stream.encode())


def network() -> nn.Module:
    """Return a small network of three-dimensional convolutions over color, frame, height and width."""
    return nn.Sequential(
        nn.Conv3d(3, 24, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2)),
        nn.ReLU(),
        nn.Conv3d(24, 48, 3, stride=(2, 2, 2), padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool3d(1),
        nn.Flatten(),
        nn.Linear(48, len(DIRECTIONS)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    torch.manual_seed(0)
    train_clip = video.Compose(
        [video.RandomClip(FRAMES, stride=2), images.RandomResizedCrop(32, scale=(0.6, 1.0)), images.Normalize()],
        axes="CTHW",
    )
    test_clips = video.Compose(
        [video.EvenClips(FRAMES, clips=3, stride=2), images.Resize(32), images.Normalize()], axes="CTHW"
    )
    with tempfile.TemporaryDirectory() as name:
        write_videos(Path(name, "train"), 96)
        write_videos(Path(name, "test"), 24)
        train = video.VideoFolder(Path(name, "train"), transform=train_clip, index=Path(name, "train.index"))
        test = video.VideoFolder(Path(name, "test"), transform=test_clips, index=Path(name, "test.index"))
        loader = DataLoader(train, 16, shuffle=True, seed=0, num_workers=2)

        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for epoch in range(options.epochs):
            losses = []
            for clips, labels in loader:
                loss = nn.functional.cross_entropy(model(clips), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            print(f"epoch {epoch}: loss {np.mean(losses):.2f}")
        print(f"decoding: {1000 * loader.stats().total.stages['transform'].mean:.0f} ms per batch")

        right = 0
        with torch.no_grad():
            for clips, labels in DataLoader(test, 8):
                several = clips.flatten(0, 1)  # every clip of every video
                scores = model(several).softmax(1).reshape(len(labels), -1, len(DIRECTIONS)).mean(1)
                right += int((scores.argmax(1) == labels).sum())
        print(f"accuracy: {right / len(test):.0%} of {len(test)} videos")
    assert right / len(test) > 0.7


if __name__ == "__main__":
    main()
