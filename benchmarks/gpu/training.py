"""Question: what share of a GPU's synthetic rate does a training script reach?

Knob: what feeds the network (feedline's images decoded by the GPU or by the workers, the usual dataset with Pillow and
torchvision's transforms or with OpenCV; feedline's loader or torch's), the number of workers,
whether the script creates the loader or the model first (`--order`), the length of an epoch (`--epoch`, with or without
`--anew`), the augmentation (`--recipe`), the network (`none` only loads), whether a step is started kernel by kernel,
by `torch.compile` (`--compiled`) or as a CUDA graph (`--graph`), and on which stream (`--first`).

Held still: synthetic JPEGs of 500x375, about 100 KB each, in the page cache; random-resized crop to 224, flip,
normalise; batches of 256; bfloat16, channels last, SGD.

How to read it: each `share` is the rate of one repetition over the median synthetic rate of the same process: the
network trains on one batch that is on the GPU already, before and after each repetition. The first repetition contains
the start: decoders, compiled kernels, pinned memory. `wait` is the share of time inside `next()`, `CPU` the seconds of
all processes for 1,000 images. The last line says how long the first batch took, and the peak memory: the summed PSS of
all processes, and what torch allocated on the GPU, the network's part included.

    python -m benchmarks.gpu.training --network resnet18 --workers 4 --graph
    python -m benchmarks.gpu.training --network resnet50 --workers 8 --library torch --decode opencv
    python -m benchmarks.gpu.training --network resnet50 --workers 2 --epoch 16
    python -m benchmarks.gpu.training --network none --workers 8 --recipe randaugment
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, RandomSampler, Subset

from benchmarks import flags, workloads
from feedline import DataLoader, images
from feedline.datasets import ImageFolder
from feedline.tools.measure import jpegs, load
from feedline.tools.measure.harness import close

RECIPES: dict[str, tuple[list[Any], list[Any]]] = {
    "plain": ([], []),
    "jitter": ([images.ColorJitter(0.4, 0.4, 0.4, 0.1)], []),
    "trivial": ([images.TrivialAugmentWide()], []),
    "randaugment": ([images.RandAugment()], [images.RandomErasing(0.1)]),
}
ENDLESS = 10_000_000


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.described(__doc__)
    add = parser.add_argument
    add("--network", default="resnet18", help="a network of torchvision, or none")
    add("--compiled", nargs="?", const="default", metavar="MODE", help="train what torch.compile makes of it")
    add("--graph", action="store_true", help="start each training step as one CUDA graph")
    add("--first", action="store_true", help="train on a stream of high priority")
    add("--order", choices=("model", "loader"), default="model", help="what the script creates first")
    add("--library", choices=("feedline", "torch"), default="feedline", help="whose loader")
    about = "auto, cpu, gpu: feedline's images; pillow, opencv: the usual dataset"
    add("--decode", choices=("auto", "cpu", "gpu", "pillow", "opencv"), default="auto", help=about)
    add("--recipe", choices=tuple(RECIPES), default="plain", help="of feedline's images")
    add("--workers", type=int, default=4)
    add("--epoch", type=int, default=0, help="batches per epoch; 0 for one endless epoch")
    add("--anew", action="store_true", help="start new workers in every epoch")
    add("--steps", type=int, default=150, help="training steps per repetition")
    add("--repeats", type=int, default=3)
    add("--device", default="cuda", help="cpu only tries the script")
    add("--batch-size", type=int, default=256)
    add("--images", type=int, default=4608)
    flags.add_data(parser)
    arguments = parser.parse_args(argv)
    if arguments.library == "torch" and arguments.decode not in ("pillow", "opencv"):
        parser.error("torch's loader needs --decode pillow or opencv")
    count = arguments.images
    data = workloads.stored(arguments.data, f"pictures-{count}", partial(write, count))
    priority = torch.cuda.stream(torch.cuda.Stream(priority=-1)) if arguments.first else contextlib.nullcontext()
    with priority:
        if arguments.order == "loader":
            loader = loader_of(arguments, data)
            train = trainer_of(arguments)
        else:
            train = trainer_of(arguments)
            loader = loader_of(arguments, data)
        measure(arguments, train, loader)
    close(loader)
    return 0


def write(count: int, folder: Path) -> None:
    """Write the images as a folder of one class."""
    folder.mkdir()
    jpegs.write_jpegs(count, folder / "0")


# Any, from here on: torch's networks, batches and loaders.
class ByHand(Dataset[Any]):
    """Pictures as people load them: Pillow and torchvision's transforms to float32, or OpenCV to uint8."""

    def __init__(self, folder: Path, decoder: str) -> None:
        self.paths = sorted(str(path) for path in folder.rglob("*.jpg"))
        self.decoder = decoder

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self.paths[index]
        if self.decoder == "opencv":
            pixels = jpegs.cropped_opencv(path, random.Random())
            flipped = pixels[:, ::-1] if random.random() < 0.5 else pixels
            return torch.from_numpy(np.ascontiguousarray(flipped)), 0
        from PIL import Image

        with Image.open(path) as image:
            return self.transform(image.convert("RGB")), 0

    @cached_property
    def transform(self) -> Any:  # torchvision has no stubs
        from torchvision import transforms

        return transforms.Compose(
            [
                transforms.RandomResizedCrop(jpegs.CROP),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(images.IMAGENET_MEAN, images.IMAGENET_STD),
            ]
        )


def loader_of(arguments: argparse.Namespace, data: Path) -> Any:
    dataset = dataset_of(arguments, data)
    if arguments.epoch:
        dataset = Subset(dataset, range(arguments.epoch * arguments.batch_size))
    options: dict[str, Any] = {"num_workers": arguments.workers, "drop_last": True}
    if arguments.workers:
        options["persistent_workers"] = not arguments.anew
    if arguments.library == "torch":
        if arguments.epoch:
            options["shuffle"] = True
        else:
            options["sampler"] = RandomSampler(dataset, replacement=True, num_samples=ENDLESS)
        options["pin_memory"] = arguments.device == "cuda"
        return torch.utils.data.DataLoader(dataset, arguments.batch_size, **options)
    return DataLoader(dataset, arguments.batch_size, shuffle=True, seed=0, device=arguments.device, **options)


def dataset_of(arguments: argparse.Namespace, data: Path) -> Any:
    if arguments.decode in ("pillow", "opencv"):
        return ByHand(data, arguments.decode)
    before, after = RECIPES[arguments.recipe]
    crop = [images.RandomResizedCrop(224), images.HorizontalFlip()]
    transform = images.Compose([*crop, *before, images.Normalize(dtype="bfloat16"), *after])
    return ImageFolder(data, decode=arguments.decode, transform=transform)


def trainer_of(arguments: argparse.Namespace) -> Callable[[Any, Any], None]:
    if arguments.network == "none":
        return lambda pixels, labels: None
    from torchvision import models

    model = getattr(models, arguments.network)().to(
        arguments.device, dtype=torch.bfloat16, memory_format=torch.channels_last
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
    network: Any = torch.compile(model, mode=arguments.compiled) if arguments.compiled else model
    torch.backends.cudnn.benchmark = True

    def train(pixels: Any, labels: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        predicted = network(pixels.contiguous(memory_format=torch.channels_last))
        torch.nn.functional.cross_entropy(predicted, labels).backward()
        optimizer.step()

    return train


def measure(arguments: argparse.Namespace, train: Callable[[Any, Any], None], loader: Any) -> None:
    size, steps = arguments.batch_size, arguments.steps
    pixels = torch.randn(size, 3, 224, 224, device=arguments.device, dtype=torch.bfloat16)
    labels = torch.randint(0, 1000, (size,), device=arguments.device)
    begun_s = time.perf_counter()
    batches = normalised(endless(loader, arguments.epoch), arguments.device)
    first = next(batches)
    first_s = time.perf_counter() - begun_s
    if arguments.graph:
        train = captured(train, *first)
    synthetic = partial(timed, partial(repeat, train, pixels, labels, steps))
    synthetic()
    seconds, fed_rounds = [synthetic()], []
    for _ in range(5):
        train(*next(batches))
    for _ in range(arguments.repeats):
        waited = 0.0

        def fed() -> None:
            nonlocal waited
            for _ in range(steps):
                asked_s = time.perf_counter()
                batch = next(batches)
                waited += time.perf_counter() - asked_s
                train(*batch)

        before = load.cpu_seconds(load.process_tree())
        taken = timed(fed)
        used_s = load.cpu_used(before, load.cpu_seconds(load.process_tree()))
        fed_rounds.append((taken, waited, used_s))
        seconds.append(synthetic())
    alone = statistics.median(seconds)
    for taken, waited, used_s in fed_rounds:
        share = "" if arguments.network == "none" else f"  share {alone / taken:.3f}"
        rate, cpu_s = steps * size / taken, used_s / (steps * size) * 1000
        print(f"{rate:8.0f} images/s{share}  wait {waited / taken:.3f}  CPU {cpu_s:.2f}")
    if arguments.network != "none":
        print(f"{steps * size / alone:8.0f} images/s synthetic")
    on_gpu = torch.cuda.max_memory_allocated() / 1e6 if torch.cuda.is_available() else 0.0
    print(f"first batch {first_s:.2f} s, memory {(load.pss_bytes() or 0) / 1e6:,.0f} MB, on the GPU {on_gpu:,.0f} MB")


def captured(train: Callable[[Any, Any], None], pixels: Any, labels: Any) -> Callable[[Any, Any], None]:
    """Return a training step as a CUDA graph. Each batch is copied to where the graph reads it."""
    static = pixels.clone(), labels.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        repeat(train, *static, 5)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # the loader works on other threads
        train(*static)

    def replay(pixels: Any, labels: Any) -> None:
        static[0].copy_(pixels)
        static[1].copy_(labels)
        graph.replay()

    return replay


def endless(loader: Any, epoch: int) -> Iterator[Any]:
    """Yield the batches of epoch after epoch, or of one that does not end."""
    if not epoch and hasattr(loader, "virtual_epochs"):
        yield from next(iter(loader.virtual_epochs(ENDLESS)))
    while True:
        yield from loader


def normalised(batches: Iterator[Any], device: str) -> Iterator[Any]:
    """Copy batches to the device without waiting, and normalise there those that are not normalised yet."""
    mean = torch.tensor(images.IMAGENET_MEAN, device=device).view(1, 3, 1, 1) * 255
    std = torch.tensor(images.IMAGENET_STD, device=device).view(1, 3, 1, 1) * 255
    for pixels, labels in batches:
        pixels, labels = pixels.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        if pixels.dtype is torch.uint8:
            pixels = pixels.permute(0, 3, 1, 2).float().sub_(mean).div_(std)
        yield pixels.to(torch.bfloat16), labels


def repeat(train: Callable[[Any, Any], None], pixels: Any, labels: Any, steps: int) -> None:
    for _ in range(steps):
        train(pixels, labels)


def timed(work: Callable[[], object]) -> float:
    """Return the seconds until the GPU has finished."""
    wait()
    begun_s = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - begun_s


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
