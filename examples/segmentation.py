"""Semantic segmentation: a mask that moves with its image, pixel for pixel.

    python examples/segmentation.py

Shows: `images.Compose(..., targets={"mask": images.Mask()})` crops, flips and rotates an image together with its mask,
which may be an array or, as here, the bytes of a PNG file. Class numbers are never mixed, and the area beyond the image
gets a number that the loss ignores. The default collate function stacks images and masks, so the last steps of the
images are left to it.

Look at: the shapes of "images and masks", the loss of each "epoch", and the "mean IoU" of the classes. The script also
checks that masks still fit their images, and that the batches are the same with two workers as without any.
"""

from __future__ import annotations

import argparse
import io
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn

from feedline import DataLoader, images

SIZE, CLASSES, IGNORED = 48, 3, 255
TO_FLOATS = images.Normalize(mean=(0, 0, 0), std=(1, 1, 1))
TRAIN = images.Compose(
    [
        images.RandomResizedCrop(SIZE, scale=(0.5, 1.0)),
        images.HorizontalFlip(),
        images.RandomRotation(15, "bilinear"),
        images.ColorJitter(brightness=0.1),
        TO_FLOATS,
    ],
    targets={"mask": images.Mask(fill=IGNORED)},
)
VALIDATION = images.Compose([images.Resize((SIZE, SIZE)), TO_FLOATS], targets={"mask": images.Mask(fill=IGNORED)})


class Shapes(torch.utils.data.Dataset[Any]):
    """Dark images with a red circle and a green square. Their masks have the classes 1 and 2."""

    hands_on_images = True
    """Tells the loader that `__getitem__` returns the result of the pipeline unchanged."""

    def __init__(self, count: int, transform: images.Compose) -> None:
        self.samples = [draw_shapes(number) for number in range(count)]
        self.transform = transform.on("image").deferring()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        image, mask = self.samples[index]
        return self.transform({"image": image, "mask": mask})


def draw_shapes(number: int) -> tuple[bytes, bytes]:
    """Return an image and its mask, as a JPEG and a PNG file."""
    rng = np.random.default_rng(number)
    image = Image.fromarray(rng.integers(0, 60, (64, 80, 3), np.uint8))
    mask = Image.new("L", image.size)
    for left, kind in zip(rng.permutation([4, 42]).tolist(), (1, 2), strict=True):
        left, top, size = left + int(rng.integers(8)), int(rng.integers(4, 30)), int(rng.integers(20, 30))
        box = (left, top, left + size, top + size)
        for canvas, color in ((image, ((210, 60, 60), (60, 210, 60))[kind - 1]), (mask, kind)):
            draw = ImageDraw.Draw(canvas)
            (draw.ellipse if kind == 1 else draw.rectangle)(box, color)
    return stored(image, "JPEG"), stored(mask, "PNG")


def stored(image: Image.Image, kind: str) -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def make_model() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 12), (12, 12)):
        layers += [nn.Conv2d(inputs, outputs, 5, padding=2), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(12, CLASSES, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    torch.manual_seed(0)
    dataset = Shapes(128, TRAIN)

    def make_loader(workers: int) -> DataLoader[Any, Any]:
        return DataLoader(dataset, 16, shuffle=True, num_workers=workers, seed=0)

    for batch, alone in zip(make_loader(2), make_loader(0), strict=True):
        assert torch.equal(batch["image"], alone["image"])
        assert torch.equal(batch["mask"], alone["mask"])
        red, green, _ = batch["image"].unbind(1)
        fits = (red - green > 0.2) == (batch["mask"] == 1)
        assert fits.float().mean() > 0.97, "a mask is not where its object is"
    print(f"images and masks: {tuple(batch['image'].shape)}, {tuple(batch['mask'].shape)}")

    model, loader = make_model(), make_loader(2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(options.epochs):
        losses = []
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["mask"].long(), ignore_index=IGNORED)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}")

    model.eval()
    common, either = torch.zeros(CLASSES), torch.zeros(CLASSES)
    with torch.no_grad():
        for batch in DataLoader(Shapes(32, VALIDATION), 16):
            found = model(batch["image"]).argmax(1)
            for number in range(CLASSES):
                is_found, is_there = found == number, batch["mask"] == number
                common[number] += (is_found & is_there).sum()
                either[number] += (is_found | is_there).sum()
    print(f"mean IoU: {(common / either).mean():.2f}")
    assert (common / either).mean() > 0.8


if __name__ == "__main__":
    main()
