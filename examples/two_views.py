"""Two views of every image, for self-supervised learning as in SimCLR.

    python examples/two_views.py

Shows: `images.Views([pipeline, pipeline])` decodes an image once, and crops it and changes its colours twice. A batch
has one tensor for each view. DINO's multi-crop is the same with more views: `images.Views([large] * 2 + [small] * 6)`.

Look at: the shapes of the "views", the loss of each "epoch", and the "matches", the share of images whose second view
is nearest to their first one among all images of a batch. The script also checks that the views are the same with two
workers as without any.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from feedline import DataLoader, images
from feedline.datasets import ImageFolder

SIZE = 32
VIEW = images.Compose(
    [
        images.RandomResizedCrop(SIZE, scale=(0.4, 1.0)),
        images.HorizontalFlip(),
        images.RandomApply([images.ColorJitter(0.2, 0.2, 0.2, 0.05)], p=0.8),
        images.RandomGrayscale(p=0.1),
        images.Normalize(),
    ]
)


def draw_photos(folder: Path, count: int) -> None:
    """Write smooth images of random colours."""
    (folder / "all").mkdir()
    for number in range(count):
        rng = np.random.default_rng(number)
        coarse = Image.fromarray(rng.integers(0, 256, (3, 4, 3), np.uint8))
        coarse.resize((96, 72), Image.Resampling.BICUBIC).save(folder / "all" / f"{number:04d}.jpg", quality=92)


def make_model() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 32))


def similarities(model: nn.Module, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return how similar each first view is to each second one."""
    one, other = nn.functional.normalize(model(torch.cat([first, second])), dim=1).chunk(2)
    return one @ other.T / 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        draw_photos(Path(name), 256)
        dataset = ImageFolder(name, fields="image", transform=images.Views([VIEW, VIEW]), cache=False)

        def make_loader(workers: int) -> DataLoader[Any, Any]:
            return DataLoader(dataset, 32, shuffle=True, num_workers=workers, seed=0)

        for views, alone in zip(make_loader(2), make_loader(0), strict=True):
            assert all(torch.equal(view, same) for view, same in zip(views, alone, strict=True))
        print(f"views: {[tuple(view.shape) for view in views]}")

        model, loader = make_model(), make_loader(2)
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        for epoch in range(options.epochs):
            losses, matches = [], []
            for first, second in loader:
                scores = similarities(model, first, second)
                pairs = torch.arange(len(scores))
                loss = nn.functional.cross_entropy(scores, pairs)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                matches.append((scores.argmax(1) == pairs).float().mean().item())
            print(f"epoch {epoch}: loss {np.mean(losses):.2f}, matches {np.mean(matches):.0%}")
    assert np.mean(matches) > 0.5


if __name__ == "__main__":
    main()
