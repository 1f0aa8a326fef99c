"""Image classification: train on a folder of JPEG files, on the CPU or on a GPU.

    python examples/image_classification.py
    python examples/image_classification.py --device cuda --epochs 5

Shows: `ImageFolder` reads the files, one `feedline.images` pipeline decodes, crops, flips, jitters and normalises them,
and `device=` is the only difference between the CPU and a GPU. With `--device cuda` the batches arrive on the GPU; if
torchvision is installed, the GPU also decodes the files. `seed=` fixes the order and the augmentation, so two runs with
different numbers of workers see the same pixels.

Look at: the loss of each "epoch", the "validation accuracy", and the "verdict" of the loader, which says whether
training waited for data.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn

from feedline import DataLoader, images
from feedline.datasets import ImageFolder

SHAPES = ("circle", "square", "triangle")


def draw_photos(folder: Path, count: int, seed: int) -> None:
    """Write noisy JPEG files of different sizes, in one directory for each class."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        shape = SHAPES[number % len(SHAPES)]
        width, height = rng.integers(64, 96, 2).tolist()
        image = Image.fromarray(rng.integers(0, 80, (height, width, 3), np.uint8))
        color = tuple(rng.integers(140, 256, 3).tolist())
        size = int(rng.integers(28, 44))
        left, top = int(rng.integers(8, width - size - 7)), int(rng.integers(8, height - size - 7))
        right, bottom = left + size, top + size
        draw = ImageDraw.Draw(image)
        if shape == "circle":
            draw.ellipse((left, top, right, bottom), color)
        elif shape == "square":
            draw.rectangle((left, top, right, bottom), color)
        else:
            draw.polygon([(left, bottom), (right, bottom), (left + size // 2, top)], color)
        (folder / shape).mkdir(parents=True, exist_ok=True)
        image.save(folder / shape / f"{number:04d}.jpg", quality=90)


def make_model() -> nn.Module:
    """Return a small convolutional network."""
    layers: list[nn.Module] = []
    for channels_in, channels_out in ((3, 8), (8, 16), (16, 32)):
        layers += [nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.BatchNorm2d(channels_out), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 6 * 6, len(SHAPES)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)

    augment = images.Compose(
        [
            images.RandomResizedCrop(48, scale=(0.7, 1.0)),
            images.HorizontalFlip(),
            images.ColorJitter(brightness=0.2, contrast=0.2),
            images.Normalize(),
        ]
    )
    plain = images.Compose([images.Resize((48, 48)), images.Normalize()])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw_photos(folder / "train", 360, seed=1)
        draw_photos(folder / "validation", 120, seed=2)
        train = DataLoader(
            ImageFolder(folder / "train", transform=augment),
            batch_size=24,
            shuffle=True,
            num_workers=options.workers,
            persistent_workers=options.workers > 0,
            seed=0,
            device=options.device,
        )
        validation = DataLoader(ImageFolder(folder / "validation", transform=plain), 40, device=options.device)

        model = make_model().to(options.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for epoch in range(options.epochs):
            model.train()
            total = torch.zeros((), device=options.device)
            for pixels, labels in train:
                loss = nn.functional.cross_entropy(model(pixels), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.detach()
            print(f"epoch {epoch}: loss {total.item() / len(train):.3f}")

        model.eval()
        with torch.no_grad():
            right = sum(int((model(pixels).argmax(1) == labels).sum()) for pixels, labels in validation)
        accuracy = right / len(validation.dataset)
        print(f"validation accuracy: {accuracy:.0%} of {len(validation.dataset)} images")
        print(f"verdict: {train.stats().verdict}")
        train.close()
    assert accuracy > 0.8, "the classes are easy to tell apart, so something is wrong with the pixels or the labels"


if __name__ == "__main__":
    main()
