"""Object detection: images with a different number of boxes each, which move with the image.

    python examples/detection.py

Shows: `images.Compose(..., targets={"boxes": images.Boxes()})` crops, flips and rotates an image together with its
boxes, clips them at the edges, and drops those that are no longer visible, with their labels.
`feedline.collate.detection()` stacks the images and keeps the targets as a list, because every image has its own number
of boxes (some have none). With `seed=`, augmentation depends on the seed, the epoch and the sample, not on the worker
that makes it.

Look at: "boxes per image", which differ within a batch; the loss of each "epoch"; and the "recall", the share of boxes
that the model finds with an overlap (IoU) of at least one half. The script also checks that each box still frames its
object after the augmentation, and that the batches are the same with two workers as without any.
"""

from __future__ import annotations

import argparse
import io
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from feedline import DataLoader, collate, images

SIZE, CELL = 64, 8
GRID = SIZE // CELL

TARGETS = {"boxes": images.Boxes(format="xyxy", min_size=4, min_visible=0.3, fields=("labels",))}
TO_FLOATS = images.Normalize(mean=(0, 0, 0), std=(1, 1, 1))
TRAIN = images.Compose(
    [
        images.RandomResizedCrop(SIZE, scale=(0.5, 1.0)),
        images.HorizontalFlip(),
        images.RandomApply([images.RandomRotation(4, "bilinear")]),
        images.ColorJitter(brightness=0.1),
        TO_FLOATS,
    ],
    targets=TARGETS,
)
VALIDATION = images.Compose([images.Resize((SIZE, SIZE)), TO_FLOATS], targets=TARGETS)


class Scenes(torch.utils.data.Dataset[Any]):
    """Dark images with up to four bright rectangles. Their numbers decide what is in them."""

    def __init__(self, count: int, transform: images.Compose) -> None:
        self.samples = [draw_scene(number) for number in range(count)]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, dict[str, Any]]:
        """Return an image (channels first, 0 to 1) and its target."""
        file, boxes = self.samples[index]
        target = {"boxes": boxes, "labels": np.arange(len(boxes)), "image_id": index}
        sample: tuple[Any, dict[str, Any]] = self.transform((file, target))
        return sample


def draw_scene(number: int) -> tuple[bytes, list[list[int]]]:
    """Return a JPEG file and the boxes of its objects."""
    rng = np.random.default_rng(number)
    pixels = rng.integers(0, 60, (80, 96, 3), np.uint8)
    boxes = []
    for corner in rng.permutation(4)[: number % 5].tolist():  # one quarter of the image for each: none overlap
        width, height = rng.integers(14, 34, 2).tolist()
        left = corner % 2 * 48 + int(rng.integers(0, 48 - width))
        top = corner // 2 * 40 + int(rng.integers(0, 40 - height))
        pixels[top : top + height, left : left + width] += 180
        boxes.append([left, top, left + width, top + height])
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    return file.getvalue(), boxes


class Detector(nn.Sequential):
    """For each cell of a grid: is the centre of an object here, and how far away are the four sides of its box?"""

    def __init__(self) -> None:
        convolutions: list[nn.Module] = []
        for inputs, outputs in ((3, 8), (8, 16), (16, 32)):
            convolutions += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        super().__init__(*convolutions, nn.Conv2d(32, 32, 5, padding=2), nn.ReLU(), nn.Conv2d(32, 5, 1))

    def boxes(self, output: torch.Tensor) -> torch.Tensor:
        """Return the box that each cell of one image predicts, row by row."""
        places = (torch.arange(GRID) + 0.5) * CELL
        y, x = torch.meshgrid(places, places, indexing="ij")
        left, top, right, bottom = output[1:].exp() * CELL
        return torch.stack([x - left, y - top, x + right, y + bottom], -1).reshape(-1, 4)


def cells_of(boxes: torch.Tensor) -> torch.Tensor:
    """Return the number of the cell that the centre of each box is in."""
    x, y = (boxes[:, :2] + boxes[:, 2:]).div(2 * CELL).long().clamp(max=GRID - 1).unbind(1)
    return y * GRID + x


def iou(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return how much boxes overlap, pair by pair."""
    common = (torch.minimum(first[:, 2:], second[:, 2:]) - torch.maximum(first[:, :2], second[:, :2])).clamp(min=0)
    areas = [(boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(1) for boxes in (first, second)]
    return common.prod(1) / (areas[0] + areas[1] - common.prod(1))


def loss_of(model: Detector, pixels: torch.Tensor, targets: list[dict[str, Any]]) -> torch.Tensor:
    loss = pixels.new_zeros(())
    for output, target in zip(model(pixels), targets, strict=True):
        cells, boxes = cells_of(target["boxes"]), target["boxes"]
        is_here = torch.zeros(GRID * GRID).index_fill(0, cells, 1.0)
        loss = loss + nn.functional.binary_cross_entropy_with_logits(
            output[0].flatten(), is_here, reduction="sum", pos_weight=torch.tensor(4.0)
        )
        loss = loss + nn.functional.smooth_l1_loss(model.boxes(output)[cells], boxes, reduction="sum") / CELL
    return loss / len(pixels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    torch.manual_seed(0)

    def make_loader(workers: int, transform: images.Compose = TRAIN) -> DataLoader[Any, Any]:
        dataset = Scenes(400, transform)
        return DataLoader(
            dataset, 16, shuffle=True, num_workers=workers, seed=0, collate_fn=collate.detection(), drop_last=True
        )

    for (pixels, targets), (pixels_alone, targets_alone) in zip(make_loader(2), make_loader(0), strict=True):
        assert torch.equal(pixels, pixels_alone)
        for image, target, target_alone in zip(pixels, targets, targets_alone, strict=True):
            assert torch.equal(target["boxes"], target_alone["boxes"])
            assert len(target["labels"]) == len(target["boxes"])
            for left, top, right, bottom in target["boxes"].int().tolist():
                middle = image[:, (top + bottom) // 2, (left + right) // 2]
                assert middle.min() > 0.5, "the box is not where its object is"
    print(f"images: {tuple(pixels.shape)}, boxes per image: {[len(target['boxes']) for target in targets]}")

    model, loader = Detector(), make_loader(2)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(options.epochs):
        losses = []
        for pixels, targets in loader:
            loss = loss_of(model, pixels, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {np.mean(losses):.2f}")

    model.eval()
    found = total = 0
    with torch.no_grad():
        for pixels, targets in make_loader(0, VALIDATION):
            for output, target in zip(model(pixels), targets, strict=True):
                cells = cells_of(target["boxes"])
                is_found = (output[0].flatten()[cells] > 0) & (iou(model.boxes(output)[cells], target["boxes"]) > 0.5)
                found, total = found + int(is_found.sum()), total + len(cells)
    print(f"recall: {found / total:.0%} of {total} boxes")
    assert found / total > 0.5


if __name__ == "__main__":
    main()
