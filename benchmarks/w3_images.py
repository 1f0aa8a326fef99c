"""Question: how many images per second does an ordinary image dataset give, with its own decoder unchanged?

Knob: the decoder that the dataset uses (Pillow, OpenCV or simplejpeg) and feedline's engine. With `--decoder feedline`
feedline's loader reads through `feedline.images`, and torch's loader the dataset with each of these decoders, or those
that `--against` names; `--peers` adds Grain and SPDL, which call the same dataset with simplejpeg. `--recipe
randaugment` adds RandAugment before normalising and RandomErasing(0.1) after it: feedline's loader reads through
`feedline.images`, torch's loader and the peers a dataset with torchvision's transforms (v2), on Pillow images or, with
`--against decode_jpeg`, on tensors. `--recipe dino` makes eight views of each image, two of 224x224 and six of 96x96,
with random colours, blur and solarizing. Both sides decode an image once for all of its views.

Held still: 2,000 synthetic JPEGs of 500x375, about 100 KB each with a noise-like texture; each is read, decoded,
cropped at random to 224x224, flipped and normalised to float32 CHW. The crop depends on the index alone, so both
loaders do the same work. Batches of 64, shuffled, two workers; OpenCV runs single-threaded within a worker.

How to read it: both loaders decode with the same library, so the difference is the loader's; a row such as "feedline :
pillow" is all of feedline against what people use with torch's loader. When it shrinks an image, Pillow antialiases,
feedline does nearly the same (see `feedline/images/rendering.py`), and OpenCV does not. The ceiling is the number of
cores times the rate without workers; `CPU s per 1,000` shows what is spent besides decoding. The files are read from
the page cache, which the first, untimed pass fills.

    python -m benchmarks.w3_images
    python -m benchmarks.w3_images --decoder opencv --engine thread --workers 0 2
    python -m benchmarks.w3_images --decoder feedline --engine process
    python -m benchmarks.w3_images --decoder feedline --against simplejpeg --peers grain spdl
    python -m benchmarks.w3_images --recipe randaugment --against pillow decode_jpeg
    python -m benchmarks.w3_images --recipe dino --batch-size 16
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import flags, image_peers, image_recipes, workloads
from feedline.tools.measure import harness, jpegs, rows

COLUMNS = (rows.Column("samples_per_s", "images/s", with_range=True, better="higher"), *rows.COSTS)


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__, engine=["process", "thread"], seconds=3.0, warmup=6, workers=[2], images=2000, batch_size=64
    )
    flags.choose(parser, "--decoder", (*jpegs.DECODERS, "feedline"), ("pillow", "opencv"))
    about = "what feedline.images is compared with; decode_jpeg only with --recipe"
    parser.add_argument("--against", nargs="+", choices=[*jpegs.DECODERS, "decode_jpeg"], help=about)
    about = "transforms beside crop, flip and normalise, of feedline.images and torchvision"
    parser.add_argument("--recipe", choices=image_recipes.RECIPES, help=about)
    about = "libraries beside torch, with --decoder feedline (they decode with simplejpeg) or --recipe"
    parser.add_argument("--peers", nargs="+", choices=["grain", "spdl"], default=[], help=about)
    flags.add_data(parser)
    flags.add_start_method(parser)
    arguments = parser.parse_args(argv)
    paths = workloads.jpeg_files(arguments.images, arguments.data)
    # Long enough that no round meets the end of the epoch.
    length = max(arguments.images, arguments.batch_size * 1000)
    if arguments.recipe:
        entries = list(_of_recipe(arguments, paths, length))
    else:
        entries = list(_of_decoders(arguments, paths, length))
    rows.publish("w3_images", rows.measure(entries, arguments), arguments, columns=COLUMNS)
    return 0


def _of_recipe(arguments: argparse.Namespace, paths: list[Path], length: int) -> Iterator[harness.Entry]:
    against = arguments.against or ["pillow"]
    yield from image_recipes.entries(paths, length, arguments, against)
    for name in arguments.peers:
        for decoder in against:
            dataset = image_recipes.RecipeFiles(paths, arguments.recipe, decoder, length)
            yield from image_peers.entries(name, dataset, f"feedline : torchvision, {decoder}", arguments)


def _of_decoders(arguments: argparse.Namespace, paths: list[Path], length: int) -> Iterator[harness.Entry]:
    for decoder in arguments.decoder:
        if decoder != "feedline":
            dataset = jpegs.JpegFiles(paths, decoder, length)
            yield from rows.loaders(arguments, {"decoder": decoder}, rows.same(dataset), shuffle=True)
            continue
        yield from jpegs.entries(paths, length, arguments, arguments.against or jpegs.DECODERS)
        for name in arguments.peers:
            dataset = jpegs.JpegFiles(paths, "simplejpeg", length)
            yield from image_peers.entries(name, dataset, "feedline : simplejpeg", arguments)


if __name__ == "__main__":
    sys.exit(main())
