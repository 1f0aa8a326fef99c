"""Question: how many images per second does an ordinary image dataset give, with its own decoder unchanged?

Knob: the decoder the dataset uses (Pillow or OpenCV) and feedline's engine.

Held still: 2,000 synthetic JPEGs of 500x375, about 100 KB each with a noise-like texture; each is read, decoded,
cropped at random to 224x224, flipped and normalised to float32 CHW. The crop depends on the index alone, so both
loaders do the same work. Batches of 64, shuffled, two workers; OpenCV runs single-threaded within a worker.

How to read it: both loaders decode with the same library, so the difference is the loader's. The ceiling is the number
of cores times the rate without workers; `CPU s per 1,000` shows what is spent beside decoding. The files are read from
the page cache: the first, untimed pass brings them there.

    python -m benchmarks.w3_images
    python -m benchmarks.w3_images --decoder opencv --engine thread --workers 0 2
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import harness, rows, workloads

COLUMNS = (rows.Column("samples_per_s", "images/s", with_range=True), *rows.COSTS)


def main(argv: Sequence[str] | None = None) -> int:
    parser = rows.flags(__doc__, seconds=3.0, warmup=6, engine=["process", "thread"])
    parser.add_argument("--decoder", nargs="+", choices=["opencv", "pillow"], default=["pillow", "opencv"])
    parser.add_argument("--workers", nargs="+", type=int, default=[2])
    parser.add_argument("--images", type=int, default=2000, help="files (2,000)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument(
        "--data", type=Path, help="folder for the files; they are kept in the temporary folder if unset"
    )
    parser.add_argument(
        "--start-method", choices=rows.START_METHODS, help="how workers start; Python's default if unset"
    )
    arguments = parser.parse_args(argv)
    rows.publish("w3_images", rows.measure_entries(entries(arguments), arguments), arguments, columns=COLUMNS)
    return 0


def entries(arguments: argparse.Namespace) -> list[harness.Entry]:
    paths = workloads.jpeg_files(arguments.images, arguments.data)
    # Long enough that no round meets the end of the epoch.
    length = max(arguments.images, arguments.batch_size * 1000)
    made = {name: workloads.JpegFiles(paths, decoder=name, length=length) for name in arguments.decoder}
    return [
        harness.Entry(
            case={"decoder": decoder, "workers": workers},
            side=side,
            open=partial(
                side.open,
                dataset,
                batch_size=arguments.batch_size,
                shuffle=True,
                **harness.worker_arguments(workers, start_method=arguments.start_method),
            ),
            consume=workloads.touch,
            batch_size=arguments.batch_size,
        )
        for decoder, dataset in made.items()
        for workers in arguments.workers
        for side in harness.sides(workers, arguments.engine)
    ]


if __name__ == "__main__":
    sys.exit(main())
