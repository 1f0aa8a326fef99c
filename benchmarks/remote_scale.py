"""Question: what do a thousand machines that train on 100 TB fetch from a store, and how long do they wait?

The real order of shards and the real rules of the cache (`feedline.tools.tune.traffic`), in virtual time: nothing is
fetched, and the clock jumps. One machine is simulated; all have equal shares.

Knob: whether shards change machines from epoch to epoch (`reshuffled`) or stay (`sticky`), and the cache.

Held still: the samples and their size, the shards, the bandwidth of a machine, and the rate of training.

How to read it: bytes and requests are those of one machine and epoch; `stall` is the share of the epoch that training
waits for shards. An epoch that needs no bytes from the store could only wait for disks, which are not simulated.

    python -m benchmarks.remote_scale
    python -m benchmarks.remote_scale --machines 64 --samples 1e8 --cache 0.3e12
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

from feedline.insight.stats import aligned
from feedline.tools.tune.traffic import Machine, Reading


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog="python -m benchmarks.remote_scale",
    )
    parser.add_argument("--machines", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=8, help="ranks of each machine (8)")
    parser.add_argument("--workers", type=int, default=4, help="workers of each rank (4)")
    parser.add_argument("--samples", type=float, default=1e9)
    parser.add_argument("--sample-bytes", type=float, default=1e5)
    parser.add_argument("--shard-bytes", type=float, default=2e8)
    parser.add_argument("--cache", type=float, default=1e12, help="bytes of each machine's cache (1e12)")
    parser.add_argument("--line", type=float, default=1.25e9, help="bytes per second of each machine (1.25e9: 10 Gbit)")
    parser.add_argument("--rate", type=float, default=2500, help="samples per second of each rank (2500)")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="write a JSON line per epoch")
    arguments = parser.parse_args(argv)
    shards = round(arguments.samples * arguments.sample_bytes / arguments.shard_bytes)
    reading = Reading(
        [int(arguments.shard_bytes)] * shards,
        int(arguments.cache),
        machines=arguments.machines,
        ranks=arguments.ranks,
        workers=arguments.workers,
        bytes_per_s=arguments.line,
        used_per_s=arguments.rate * arguments.ranks * arguments.sample_bytes,
    )
    ways = {
        "no cache": replace(reading, cache_bytes=0),
        "cache, reshuffled": reading,
        "cache, sticky": replace(reading, sticky=True),
    }
    table = [["", "epoch", "read", "fetched", "requests", "stall", "fetched by all"]]
    for name, way in ways.items():
        machine = Machine(way)
        for number in range(arguments.epochs):
            epoch = machine.epoch()
            if arguments.json:
                sys.stdout.write(json.dumps({"way": name, "epoch": number, **asdict(epoch)}) + "\n")
            table.append(
                [
                    name,
                    str(number),
                    f"{epoch.read_bytes / 1e9:,.1f} GB",
                    f"{epoch.fetched_bytes / 1e9:,.1f} GB",
                    f"{epoch.requests:,}",
                    f"{epoch.stalled_s / epoch.seconds:.0%}",
                    f"{epoch.fetched_bytes * arguments.machines / 1e12:,.1f} TB",
                ]
            )
    if not arguments.json:
        sys.stdout.write(aligned(table) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
