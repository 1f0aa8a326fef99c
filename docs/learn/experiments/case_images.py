"""Question: what does each step from a slow to a fast image loader gain?

It writes JPEG files of 800x600 pixels, and feeds random crops of 128x128 to a training step that takes a fixed time and
leaves the processor alone, as a GPU does. All files stay in the page cache. Each arrangement trains for some seconds,
in turn, for several rounds.

How to read it: medians of the rounds. `images/s` is the rate of the training loop, `CPU` the processor time of all
processes for 1,000 images, `waited` the share of the time that training waited.

    python docs/learn/experiments/case_images.py --workers 2 --rounds 3
"""

# ruff: noqa: D101, D103, T201

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from feedline import DataLoader, images
from feedline.datasets import ImageFolder

BATCH = 32
MEAN, STD = np.array(images.IMAGENET_MEAN, np.float32), np.array(images.IMAGENET_STD, np.float32)


def write_photos(root, count, size):
    drawn = np.random.default_rng(0)
    for number in range(count):
        folder = Path(root) / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(drawn.integers(0, 256, (30, 40, 3), dtype=np.uint8)).resize(size, Image.BICUBIC)
        coarse.save(folder / f"{number:04}.jpg", quality=90)


class ByHand(torch.utils.data.Dataset):
    def __init__(self, root):
        self.paths = sorted(str(path) for path in Path(root).rglob("*.jpg"))
        self.labels = [int("dog" in path) for path in self.paths]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with Image.open(self.paths[index]) as image:
            image = image.convert("RGB")
        width, height = image.size
        side = np.random.uniform(0.5, 1) * min(width, height)
        left, top = np.random.uniform(0, width - side), np.random.uniform(0, height - side)
        crop = image.resize((128, 128), Image.BILINEAR, box=(left, top, left + side, top + side))
        pixels = np.asarray(crop, np.float32) / 255
        return np.ascontiguousarray(((pixels - MEAN) / STD).transpose(2, 0, 1)), self.labels[index]


def crops(*last):
    return images.Compose([images.RandomResizedCrop(128, scale=(0.2, 0.75)), images.HorizontalFlip(), *last])


def measure(loader, step_s, seconds):
    """Train for some seconds; return rate, CPU seconds for 1,000 images, share waited, verdict."""
    before, began, seen, waited = sum(os.times()[:4]), time.perf_counter(), 0, 0.0
    while time.perf_counter() - began < seconds:
        asked = time.perf_counter()
        for pixels, _ in loader:
            waited += time.perf_counter() - asked
            seen += len(pixels)
            time.sleep(step_s)
            asked = time.perf_counter()
    took = time.perf_counter() - began
    verdict = loader.stats().verdict if hasattr(loader, "stats") else ""
    if hasattr(loader, "close"):
        loader.close()  # so that the workers' time is counted
    del loader
    return seen / took, (sum(os.times()[:4]) - before) / seen * 1000, waited / took, verdict


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--images", type=int, default=320)
    parser.add_argument("--step-ms", type=float, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    root, small = tempfile.mkdtemp(), tempfile.mkdtemp()
    write_photos(root, given.images, (800, 600))
    write_photos(small, given.images, (213, 160))  # as feedline pack --resize 160 makes them
    many = {"batch_size": BATCH, "shuffle": True, "drop_last": True, "num_workers": given.workers}
    kept = {**many, "persistent_workers": True, "seed": 0}
    ways = {
        "by hand, no workers": lambda: torch.utils.data.DataLoader(ByHand(root), **{**many, "num_workers": 0}),
        "by hand, workers": lambda: torch.utils.data.DataLoader(ByHand(root), **many),
        "by hand, workers kept": lambda: DataLoader(ByHand(root), **kept),
        "feedline.images": lambda: DataLoader(ImageFolder(root, transform=crops(images.Normalize())), **kept),
        "feedline.images, uint8": lambda: DataLoader(ImageFolder(root, transform=crops()), **kept),
        "smaller files": lambda: DataLoader(ImageFolder(small, transform=crops()), **kept),
    }
    found = {name: [] for name in ways}
    for _ in range(given.rounds):
        for name, make in ways.items():
            found[name].append(measure(make(), given.step_ms / 1000, given.seconds))
    print(f"{given.workers} workers, step {given.step_ms} ms, {os.cpu_count()} cores, torch {torch.__version__}")
    for name, rows in found.items():
        rate, cpu, waited = (statistics.median(row[k] for row in rows) for k in range(3))
        print(f"{name:24} {rate:6.0f} images/s  CPU {cpu:5.2f} s  waited {waited:4.0%}  {rows[-1][3]}")


if __name__ == "__main__":
    main()
