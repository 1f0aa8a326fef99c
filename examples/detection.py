"""Object detection: images with a different number of boxes each, flipped together with their boxes.

    python examples/detection.py

Shows: `feedline.collate.detection()` stacks the images and leaves the targets a list, because every image has its own
number of boxes (none at all in some). The dataset flips image and boxes together and draws the decision from
`feedline.rng()`, so that it follows from the seed, the epoch and the sample, and not from the worker that makes it.

Look at: "boxes per image", which differ within a batch; the loss of each "epoch"; and the "recall", the share of boxes
that the model finds with an overlap (IoU) of at least one half. The script also checks that each box still frames its
object after the flip, and that the batches are the same with two workers as without any.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch import nn

import feedline
from feedline import DataLoader, collate

SIZE, CELL = 64, 8
GRID = SIZE // CELL


class Scenes(torch.utils.data.Dataset[Any]):
    """Dark images with up to four bright rectangles. The index of an image decides what is in it."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[np.ndarray, dict[str, Any]]:
        """Return an image (channels first, 0 to 1) and its target."""
        rng = np.random.default_rng(index)
        image = rng.random((3, SIZE, SIZE), np.float32) * 0.3
        boxes = []
        for corner in rng.permutation(4)[: index % 5]:  # one quarter of the image for each, so that none overlap
            width, height = rng.integers(10, 24, 2)
            left = corner % 2 * 32 + rng.integers(0, 32 - width)
            top = corner // 2 * 32 + rng.integers(0, 32 - height)
            image[:, top : top + height, left : left + width] += 0.6
            boxes.append([left, top, left + width, top + height])
        array = np.array(boxes, np.float32).reshape(-1, 4)
        if feedline.rng().random() < 0.5:
            image = np.ascontiguousarray(image[:, :, ::-1])
            array[:, [0, 2]] = SIZE - array[:, [2, 0]]
        return image, {"boxes": array, "image_id": index}


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


def loss_of(model: Detector, images: torch.Tensor, targets: list[dict[str, Any]]) -> torch.Tensor:
    loss = images.new_zeros(())
    for output, target in zip(model(images), targets, strict=True):
        cells, boxes = cells_of(target["boxes"]), target["boxes"]
        is_here = torch.zeros(GRID * GRID).index_fill(0, cells, 1.0)
        loss = loss + nn.functional.binary_cross_entropy_with_logits(
            output[0].flatten(), is_here, reduction="sum", pos_weight=torch.tensor(4.0)
        )
        loss = loss + nn.functional.smooth_l1_loss(model.boxes(output)[cells], boxes, reduction="sum") / CELL
    return loss / len(images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    torch.manual_seed(0)

    def make_loader(workers: int) -> DataLoader[Any, Any]:
        return DataLoader(
            Scenes(400), 16, shuffle=True, num_workers=workers, seed=0, collate_fn=collate.detection(), drop_last=True
        )

    for (images, targets), (images_alone, targets_alone) in zip(make_loader(2), make_loader(0), strict=True):
        assert torch.equal(images, images_alone)
        for image, target, target_alone in zip(images, targets, targets_alone, strict=True):
            assert torch.equal(target["boxes"], target_alone["boxes"])
            for left, top, right, bottom in target["boxes"].int().tolist():
                assert image[:, top:bottom, left:right].min() > 0.55, "the box is not where its object is"
    print(f"images: {tuple(images.shape)}, boxes per image: {[len(target['boxes']) for target in targets]}")

    model, loader = Detector(), make_loader(2)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(options.epochs):
        losses = []
        for images, targets in loader:
            loss = loss_of(model, images, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {np.mean(losses):.2f}")

    model.eval()
    found = total = 0
    with torch.no_grad():
        for images, targets in make_loader(0):
            for output, target in zip(model(images), targets, strict=True):
                cells = cells_of(target["boxes"])
                is_found = (output[0].flatten()[cells] > 0) & (iou(model.boxes(output)[cells], target["boxes"]) > 0.5)
                found, total = found + int(is_found.sum()), total + len(cells)
    print(f"recall: {found / total:.0%} of {total} boxes")
    assert found / total > 0.5


if __name__ == "__main__":
    main()
