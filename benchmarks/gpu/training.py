"""Question: how much of a GPU's training rate is left when images have to be loaded?

Knob: what feeds the network: feedline's images decoded on the GPU or by workers, datasets as people write them (Pillow
and torchvision's transforms, OpenCV and uint8) behind torch's loader or feedline's; the number of workers; folder or
tar shards.

Held still: synthetic JPEGs of 500x375, about 100 KB each, in the page cache; random-resized crop to 224, flip,
normalise; batches of 256; bfloat16, channels last, SGD.

How to read it: `share` is the rate over that of the same network on batches that lie on the GPU already, in the same
round. The first two windows of a measurement are left out. `CPU` and `GPU MB` are what was used beyond the synthetic
run: seconds of all processes for 1,000 images, and the peak of the GPU's memory.

    python -m benchmarks.gpu.training
    python -m benchmarks.gpu.training --network resnet50 --library feedline torch --decode gpu cpu opencv --workers 2 8
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from functools import partial

from benchmarks import flags, workloads
from feedline.tools.measure import rows, training, training_data


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, rounds=2, seconds=4.0, workers=[], batch_size=256, images=4000)
    about = (
        "networks of torchvision; 'resnet50 compiled' by torch.compile, 'resnet50 first' on a stream of high priority"
    )
    parser.add_argument("--network", nargs="+", default=["resnet50"], help=about)
    flags.choose(parser, "--decode", ("gpu", "cpu", "pillow", "opencv"), ["gpu"])
    flags.choose(parser, "--library", ("feedline", "torch"), ["feedline"])
    flags.choose(parser, "--source", ("folder", "tar"), ["folder"])
    parser.add_argument(
        "--script-order",
        choices=training.SCRIPT_ORDERS,
        default=training.SCRIPT_ORDERS[0],
        help="what the program puts on the GPU first",
    )
    flags.add_data(parser)
    parser.set_defaults(repeats=0)
    arguments = parser.parse_args(argv)
    training.check_gpu()
    data = workloads.stored(
        arguments.data, f"images-{arguments.images}", partial(training_data.write_images, count=arguments.images)
    )
    wanted = _rows(arguments)
    training.start_cuda(arguments.script_order, wanted, data)
    measured = rows.measure(
        training.entries(wanted, data, batch_size=arguments.batch_size, seconds=arguments.seconds), arguments
    )
    training.add_shares(measured)
    rows.publish("gpu_training", measured, arguments, columns=training.COLUMNS, peer="none")
    return 0


def _rows(arguments: argparse.Namespace) -> list[training_data.Row]:
    if not arguments.workers:
        return list(training.TABLE)
    return [
        training_data.Row(network, source, decode, library, workers)
        for network, source, decode, library, workers in itertools.product(
            arguments.network, arguments.source, arguments.decode, arguments.library, arguments.workers
        )
        if library == "feedline" or (decode in ("pillow", "opencv") and source == "folder")
    ]


if __name__ == "__main__":
    sys.exit(main())
