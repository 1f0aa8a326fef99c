"""Question: how many samples per second come out of WebDataset shards, against the webdataset package itself?

Knob: what a sample is (`array`: a float32 array of 3x32x32 as .npy, and a label; `jpeg`: an image of 256x256 as .jpg,
decoded to uint8, and a label), and the way: the webdataset package in torch's loader, cut into batches by the loader or
by the package (`.batched`, as its documentation advises), litdata's own format and loader if it is installed,
`TarDataset` as a stream, and with random access.

Held still: the shards, which the package wrote; two workers, batches of 64, the same decoding by name. Streams shuffle
shards and have a buffer of 1,000; random access is shuffled by the loader.

How to read it: `x torch` is the ratio to the webdataset package with batches cut by torch's loader. With `jpeg` most of
the time is Pillow's, which is the same for all. Files are read from the page cache, which the first, untimed pass
fills.

    python -m benchmarks.w8_tar
    python -m benchmarks.w8_tar --sample jpeg --engine thread
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import io
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import flags, workloads
from feedline.tools.measure import harness, rows

FIELDS = {"array": ("npy", "cls"), "jpeg": ("jpg", "cls")}
BUFFER = 1000


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__, engine=["process"], seconds=2.0, warmup=6, workers=[2], shards=16, samples=8192, batch_size=64
    )
    flags.choose(parser, "--sample", list(FIELDS))
    parser.add_argument("--peers", nargs="*", choices=["litdata"], default=["litdata"], help="beside webdataset")
    flags.add_data(parser)
    arguments = parser.parse_args(argv)
    with warnings.catch_warnings():  # of the images that the webdataset package hands to torch
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        outcomes = rows.measure(entries(arguments), arguments)
    rows.publish("w8_tar", outcomes, arguments, columns=(rows.SAMPLES, *rows.COSTS))
    return 0


def entries(arguments: argparse.Namespace) -> list[harness.Entry]:
    made = []
    for kind in arguments.sample:
        count = arguments.samples if kind == "array" else arguments.samples // 2
        shards = write_shards(kind, arguments.shards, count, arguments.data)
        for workers in arguments.workers:
            made += _entries_of(kind, workers, shards, count, arguments)
    return made


def _entries_of(
    kind: str, workers: int, shards: list[str], count: int, arguments: argparse.Namespace
) -> list[harness.Entry]:
    size = arguments.batch_size
    # Each worker of a stream ends with a batch of its own, perhaps a short one: the last ones are not counted.
    length = count // size
    ways: list[tuple[harness.Side, Callable[[], Any]]] = [
        (harness.Side(harness.TORCH, "webdataset"), partial(theirs, kind, shards, workers, size, batched=False)),
        (harness.Side("webdataset", "batched"), partial(theirs, kind, shards, workers, size, batched=True)),
    ]
    if "litdata" in arguments.peers and importlib.util.find_spec("litdata") is not None:
        ways.append((harness.Side("litdata"), partial(litdatas, kind, shards, workers, size)))
    for engine in ["inline"] if workers == 0 else arguments.engine:
        ways += [
            (
                harness.Side(harness.FEEDLINE, f"{engine}, stream"),
                partial(streamed, kind, shards, workers, size, engine),
            ),
            (harness.Side(harness.FEEDLINE, f"{engine}, random"), partial(random, kind, shards, workers, size, engine)),
        ]
    return [
        rows.steady({"sample": kind, "workers": workers}, side, make, arguments, batch_size=size, length=length)
        for side, make in ways
    ]


def theirs(kind: str, shards: list[str], workers: int, size: int, *, batched: bool) -> Any:
    """Return torch's loader over the webdataset package."""
    import torch.utils.data
    import webdataset

    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards), seed=1, empty_check=False).shuffle(BUFFER)
    dataset = (dataset.decode("rgb8") if kind == "jpeg" else dataset.decode()).to_tuple(*FIELDS[kind])
    options = harness.worker_arguments(workers)
    if batched:
        collate = torch.utils.data.default_collate
        return torch.utils.data.DataLoader(dataset.batched(size, collation_fn=collate), batch_size=None, **options)
    return torch.utils.data.DataLoader(dataset, batch_size=size, **options)


def litdatas(kind: str, shards: list[str], workers: int, size: int) -> Any:
    """Return litdata's loader over the same samples in its own format, which is written from the shards if need be."""
    import litdata
    from litdata.streaming.writer import BinaryWriter

    folder = Path(shards[0]).parent / "litdata"
    if not (folder / "index.json").exists():
        from feedline.datasets import TarDataset

        folder.mkdir(exist_ok=True)
        samples = list(TarDataset(shards, fields=FIELDS[kind], decode=kind != "jpeg").stream())
        writer = BinaryWriter(str(folder), chunk_size=-(-len(samples) // len(shards)))
        for number, (value, label) in enumerate(samples):
            writer[number] = value, int(label)
        writer.done()
        writer.merge(1)
    transform = decode_jpeg if kind == "jpeg" else None
    dataset = litdata.StreamingDataset(str(folder), shuffle=True, seed=1, transform=transform)
    return litdata.StreamingDataLoader(dataset, batch_size=size, **harness.worker_arguments(workers))


# Any: a sample of bytes and a label; an array and a label.
def decode_jpeg(sample: Any) -> Any:
    """Decode as the other sides do."""
    data, label = sample
    return _decoder()(data), label


@functools.cache
def _decoder() -> Callable[[bytes], Any]:
    from feedline.images.pillow import picture_decoder

    return picture_decoder("rgb8")


def streamed(kind: str, shards: list[str], workers: int, size: int, engine: str) -> Any:
    """Return feedline's loader over the shards as a stream."""
    from feedline.datasets import TarDataset

    decode = "rgb8" if kind == "jpeg" else True
    dataset: Any = TarDataset(shards, fields=FIELDS[kind], decode=decode).stream(shuffle=True, buffer=BUFFER, seed=1)
    side = harness.Side(harness.FEEDLINE, engine)
    return side.open(dataset, batch_size=size, **harness.worker_arguments(workers))


def random(kind: str, shards: list[str], workers: int, size: int, engine: str, *, index: Path | None = None) -> Any:
    """Return feedline's loader over the shards with random access; their index is made before the clock starts."""
    from feedline.datasets import TarDataset

    decode = "rgb8" if kind == "jpeg" else True
    kept = index or Path(shards[0]).parent / "index"
    dataset: Any = TarDataset(shards, fields=FIELDS[kind], decode=decode, cache=kept)
    side, options = harness.Side(harness.FEEDLINE, engine), harness.worker_arguments(workers)
    return side.open(dataset, batch_size=size, shuffle=True, seed=1, **options)


def write_shards(kind: str, shard_count: int, count: int, data: Path | None) -> list[str]:
    """Write the shards with the webdataset package, unless they are there."""
    home = workloads.stored(data, f"tar-{kind}-{shard_count}-{count}", partial(_write, kind, shard_count, count))
    return [str(path) for path in sorted(home.glob("*.tar"))]


def _write(kind: str, shard_count: int, count: int, home: Path) -> None:
    import webdataset

    home.mkdir()
    generator = np.random.default_rng(0)
    for place in range(shard_count):
        with webdataset.TarWriter(str(home / f"{place:05d}.tar")) as writer:
            for number in range(place, count, shard_count):
                writer.write({"__key__": f"{number:08d}", "cls": number % 1000, **_sample(kind, generator)})


def _sample(kind: str, generator: np.random.Generator) -> dict[str, Any]:
    if kind == "array":
        return {"npy": generator.random((3, 32, 32), np.float32)}
    from PIL import Image

    coarse = Image.fromarray(generator.integers(0, 256, (32, 32, 3), np.uint8))
    file = io.BytesIO()
    coarse.resize((256, 256), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return {"jpg": file.getvalue()}


if __name__ == "__main__":
    sys.exit(main())
