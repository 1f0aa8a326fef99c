"""Question: what share of a GPU's synthetic rate does a plain training script reach, in whichever order it is written?

Knob: whether the script creates the loader or the model first (`--order`), the length of an epoch (`--epoch`, with or
without `--anew`), the augmentation (`--recipe`), the network (`none` only loads), the number of workers, and whether a
step is started kernel by kernel, by `torch.compile` (`--compiled`) or as a CUDA graph (`--graph`).

Held still: synthetic JPEGs of 500x375, about 100 KB each, in the page cache; random-resized crop to 224, flip,
normalise; batches of 256; bfloat16, channels last, SGD.

How to read it: each `share` is the rate of one repetition over the median synthetic rate of the same process. The first
one contains the start: decoders, compiled kernels, pinned memory. `wait` is the share of time inside `next()`.
`benchmarks.gpu.training` measures more, but all of it in one process, where CUDA starts once.

    python -m benchmarks.gpu.script --network resnet18 --workers 4 --order model
    python -m benchmarks.gpu.script --network resnet18 --workers 4 --graph
    python -m benchmarks.gpu.script --network resnet50 --workers 2 --epoch 16
    python -m benchmarks.gpu.script --network none --workers 8 --recipe randaugment
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks import flags, workloads
from feedline import DataLoader, images
from feedline.datasets import ImageFolder
from feedline.tools.measure import training_data

RECIPES: dict[str, tuple[list[Any], list[Any]]] = {
    "plain": ([], []),
    "jitter": ([images.ColorJitter(0.4, 0.4, 0.4, 0.1)], []),
    "trivial": ([images.TrivialAugmentWide()], []),
    "randaugment": ([images.RandAugment()], [images.RandomErasing(0.1)]),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog="python -m benchmarks.gpu.script",
    )
    parser.add_argument("--network", default="resnet18", help="a network of torchvision, or none")
    parser.add_argument(
        "--compiled", nargs="?", const="default", metavar="MODE", help="train what torch.compile makes of it"
    )
    parser.add_argument("--graph", action="store_true", help="start each training step as one CUDA graph")
    parser.add_argument("--order", choices=("model", "loader"), default="model", help="what the script creates first")
    parser.add_argument("--recipe", choices=tuple(RECIPES), default="plain")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epoch", type=int, default=0, help="batches per epoch; 0 for one endless epoch")
    parser.add_argument("--anew", action="store_true", help="start new workers in every epoch")
    parser.add_argument("--steps", type=int, default=150, help="training steps per repetition")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda", help="cpu only tries the script")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--images", type=int, default=4608)
    flags.add_data(parser)
    arguments = parser.parse_args(argv)
    data = workloads.stored(
        arguments.data, f"images-{arguments.images}", partial(training_data.write_images, count=arguments.images)
    )
    if arguments.order == "loader":
        loader = loader_of(arguments, data / "folder")
        train = trainer_of(arguments)
    else:
        train = trainer_of(arguments)
        loader = loader_of(arguments, data / "folder")
    measure(arguments, train, loader)
    loader.close()
    return 0


# Any, throughout: torch's networks, batches and loaders.
def loader_of(arguments: argparse.Namespace, folder: Any) -> Any:
    before, after = RECIPES[arguments.recipe]
    transforms = [images.RandomResizedCrop(224), images.HorizontalFlip(), *before]
    dataset: Any = ImageFolder(
        folder, transform=images.Compose([*transforms, images.Normalize(dtype="bfloat16"), *after])
    )
    if arguments.epoch:
        dataset = torch.utils.data.Subset(dataset, range(arguments.epoch * arguments.batch_size))
    return DataLoader(
        dataset,
        arguments.batch_size,
        shuffle=True,
        num_workers=arguments.workers,
        seed=0,
        device=arguments.device,
        drop_last=True,
        persistent_workers=False if arguments.anew else None,
    )


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
    batches = endless(loader, arguments.epoch)
    if arguments.graph:
        train = captured(train, *next(batches))
    synthetic = partial(timed, partial(repeat, train, pixels, labels, steps))
    synthetic()
    seconds, shares = [synthetic()], []
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

        shares.append((timed(fed), waited))
        seconds.append(synthetic())
    alone = statistics.median(seconds)
    for taken, waited in shares:
        share = "" if arguments.network == "none" else f"  share {alone / taken:.3f}"
        sys.stdout.write(f"{steps * size / taken:8.0f} images/s{share}  wait {waited / taken:.3f}\n")
    if arguments.network != "none":
        sys.stdout.write(f"{steps * size / alone:8.0f} images/s synthetic\n")


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
    if not epoch:
        yield from next(iter(loader.virtual_epochs(10_000_000)))
    while True:
        yield from loader


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
