"""Video: clips as JPEG frames in tar shards, of which only a few frames are decoded.

    python examples/video.py

Shows: a sample of a tar shard may have any number of fields, here one JPEG for each frame of a clip. `TarDataset`
leaves images as bytes unless `decode=` says otherwise, so the transform decides which frames to decode: it takes some
that follow each other, from a random place on, and decodes no others. The clips of two shards are read by index here;
over a network, use `.stream(shuffle=True)` of the same dataset. Parts of the transform have names
(`feedline.stage`), so that the loader's statistics say what each of them costs.

Look at: the frames "decoded", the milliseconds of a batch in "read" and "decode", the loss of each "epoch", and the
"accuracy": the direction of a movement cannot be seen in a single frame.
"""

from __future__ import annotations

import argparse
import io
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

import feedline
from feedline import DataLoader, images
from feedline.datasets import TarDataset

DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
FRAMES, TAKEN, SIZE = 24, 6, 32


def write_shards(folder: Path, clips: int) -> None:
    """Write clips of a spot that moves, in two shards: files 0007.000.jpg, 0007.001.jpg, ... and 0007.cls each."""
    rng = np.random.default_rng(0)
    for shard in range(2):
        with tarfile.open(folder / f"clips-{shard}.tar", "w") as file:
            for clip in range(shard, clips, 2):
                label = clip // 2 % len(DIRECTIONS)
                step = np.array(list(DIRECTIONS.values())[label])
                place = rng.integers(0, SIZE, 2)
                for frame in range(FRAMES):
                    pixels = rng.integers(0, 60, (SIZE, SIZE, 3), np.uint8)
                    x, y = (place + 2 * step * frame) % SIZE
                    pixels[np.arange(y, y + 8) % SIZE, x % SIZE : x % SIZE + 8] = 230
                    content = io.BytesIO()
                    Image.fromarray(pixels).save(content, "JPEG", quality=85)
                    add(file, f"{clip:04d}.{frame:03d}.jpg", content.getvalue())
                add(file, f"{clip:04d}.cls", str(label).encode())


def add(file: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    file.addfile(info, io.BytesIO(content))


def take_frames(sample: dict[str, Any]) -> dict[str, Any]:
    """Decode some frames that follow each other: an array of frame, height, width and color."""
    names = sorted(name for name in sample if name.endswith("jpg"))
    begin = int(feedline.rng().integers(0, len(names) - TAKEN + 1))
    with feedline.stage("decode"):
        frames = [images.decode_image(sample[name]) for name in names[begin : begin + TAKEN]]
    return {"frames": np.stack(frames), "label": sample["cls"], "decoded": len(frames), "stored": len(names)}


def prepared(frames: torch.Tensor) -> torch.Tensor:
    """Return grey values from 0 to 1, with the frames as channels."""
    return frames.float().mean(-1) / 255


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_shards(folder, 240)
        clips = TarDataset(str(folder / "clips-*.tar"), transform=take_frames, cache=False)
        train, test = feedline.split(clips, [0.8, 0.2], seed=0)
        loader = DataLoader(train, 16, shuffle=True, seed=0, num_workers=2)

        model = nn.Sequential(
            nn.Conv2d(TAKEN, 32, 5, stride=2, padding=2, padding_mode="circular"),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1, padding_mode="circular"),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(32, len(DIRECTIONS)),
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        decoded = stored = 0
        for epoch in range(options.epochs):
            losses = []
            for batch in loader:
                loss = nn.functional.cross_entropy(model(prepared(batch["frames"])), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                decoded, stored = decoded + int(batch["decoded"].sum()), stored + int(batch["stored"].sum())
            print(f"epoch {epoch}: loss {np.mean(losses):.2f}")
        print(f"decoded {decoded} of {stored} frames")
        stages = loader.stats().total.stages
        print(f"per batch: read {1000 * stages['fetch'].mean:.1f} ms, decode {1000 * stages['decode'].mean:.1f} ms")

        with torch.no_grad():
            right = sum(
                int((model(prepared(batch["frames"])).argmax(1) == batch["label"]).sum())
                for batch in DataLoader(test, 48)
            )
        print(f"accuracy: {right / len(test):.0%} of {len(test)} clips")
    assert decoded * FRAMES == stored * TAKEN
    assert right / len(test) > 0.8


if __name__ == "__main__":
    main()
