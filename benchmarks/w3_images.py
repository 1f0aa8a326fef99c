"""Question: how many images per second does an ordinary image dataset give, with its own decoder unchanged?

Knob: the decoder that the dataset uses (Pillow, OpenCV or simplejpeg) and feedline's engine. With `--decoder feedline`
feedline's loader reads through `feedline.images`, and torch's loader the dataset with each of these decoders, or those
that `--against` names; `--peers` adds Grain and SPDL, which call the same dataset as torch's loader. `--recipe
randaugment` adds RandAugment before normalising and RandomErasing(0.1) after it: feedline's loader reads through
`feedline.images`, torch's loader and the peers a dataset with torchvision's transforms (v2) on Pillow images. `--recipe
dino` makes eight views of each image, two of 224x224 and six of 96x96, with random colours, blur and solarizing. Both
sides decode an image once for all of its views.

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
    python -m benchmarks.w3_images --recipe randaugment
    python -m benchmarks.w3_images --recipe dino --batch-size 16
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import flags, image_peers, image_recipes, peers, workloads
from feedline.tools.measure import harness, jpegs, rows

COLUMNS = (rows.Column("samples_per_s", "images/s", with_range=True, better="higher"), *rows.COSTS)


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__, engine=["process", "thread"], seconds=3.0, warmup=6, workers=[2], images=2000, batch_size=64
    )
    flags.choose(parser, "--decoder", (*jpegs.DECODERS, "feedline"), ("pillow", "opencv"))
    flags.choose(parser, "--against", jpegs.DECODERS)
    about = "transforms beside crop, flip and normalise, of feedline.images and torchvision"
    parser.add_argument("--recipe", choices=image_recipes.RECIPES, help=about)
    about = "libraries beside torch, with --decoder feedline or --recipe"
    parser.add_argument("--peers", nargs="+", choices=["grain", "spdl"], default=[], help=about)
    flags.add_data(parser)
    arguments = parser.parse_args(argv)
    paths = workloads.jpeg_files(arguments.images, arguments.data)
    # Long enough that no round meets the end of the epoch.
    length = max(arguments.images, arguments.batch_size * 1000)
    chosen = peers.installed(arguments.peers, {})
    cases = of_recipe(arguments, paths, length) if arguments.recipe else of_decoders(arguments, paths, length)
    entries: list[harness.Entry] = []
    for name, (theirs, ours) in cases.items():
        ways = rows.both(theirs, ours, shuffle=True)
        if theirs is not ours:
            ways |= image_peers.ways(chosen, theirs)
        entries += rows.entries(arguments, {"decoder": name}, ways)
    rows.publish("w3_images", rows.measure(entries, arguments), arguments, columns=COLUMNS)
    return 0


# Any: datasets of torch's kind, and feedline's.
Cases = dict[str, tuple[Any, Any]]
"""What torch's loader and feedline's read, by what decodes."""


def of_recipe(arguments: argparse.Namespace, paths: list[Path], length: int) -> Cases:
    theirs = image_recipes.RecipeFiles(paths, arguments.recipe, length)
    image_recipes.check(theirs)
    ours = image_recipes.image_recipe(paths, arguments.recipe, length)
    return {"feedline : torchvision, pillow": (theirs, ours)}


def of_decoders(arguments: argparse.Namespace, paths: list[Path], length: int) -> Cases:
    found = Cases()
    for decoder in arguments.decoder:
        if decoder != "feedline":
            dataset = jpegs.JpegFiles(paths, decoder, length)
            found[decoder] = dataset, dataset
            continue
        ours = jpegs.image_pipeline(paths, length)
        for other in arguments.against:
            found[f"feedline : {other}"] = jpegs.JpegFiles(paths, other, length), ours
    return found


if __name__ == "__main__":
    sys.exit(main())
