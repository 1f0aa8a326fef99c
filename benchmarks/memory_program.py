"""One loader's memory over half an epoch, measured from inside: `w7_memory` runs this in a fresh interpreter.

Prints one JSON object with MB of summed PSS over parent and workers: `dataset` (before the loader), `started` (after
the first batches, above that), `growth` (from there to the end), `peak`; and `seconds` between the last two readings.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from benchmarks import harness, machine, workloads


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True)
    parser.add_argument("--engine")
    parser.add_argument("--holds", choices=["arrays", "strings", "shared"], required=True)
    parser.add_argument("--size", type=int, required=True, help="megabytes of arrays, or number of strings")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--share", type=float, required=True, help="of an epoch")
    parser.add_argument("--start-method", required=True)
    arguments = parser.parse_args()
    with harness.expected_warnings():
        sys.stdout.write(json.dumps(measure(harness.Side(arguments.library, arguments.engine), arguments)))
    return 0


def measure(side: harness.Side, arguments: argparse.Namespace) -> harness.Figures:
    made = {"arrays": workloads.HeldArrays, "strings": workloads.HeldStrings, "shared": workloads.SharedStrings}
    dataset = made[arguments.holds](arguments.size)
    machine.trim()
    alone = pss_mb()
    loader = side.open(
        dataset,
        batch_size=arguments.batch_size,
        shuffle=True,
        num_workers=arguments.workers,
        multiprocessing_context=arguments.start_method,
    )
    # A few batches from every worker: each has started, and the loader's own memory has reached its working size.
    first = min(len(loader) // 4, 8 * arguments.workers)
    last = max(first + 1, int(len(loader) * arguments.share))
    started = peak = read_at = 0.0
    iterator = iter(loader)  # kept by name: workers that nobody holds any more would end before the last reading
    try:
        for number, batch in enumerate(iterator, start=1):
            workloads.touch(batch)
            if number == first:
                started = peak = pss_mb()
                began = read_at = time.perf_counter()
            elif number == last:
                break
            elif number > first and time.perf_counter() - read_at > 0.5:
                peak = max(peak, pss_mb())
                read_at = time.perf_counter()
        seconds = time.perf_counter() - began
        ended = pss_mb()
    finally:
        del iterator
        harness.close(loader)
    return {
        "dataset": alone,
        "started": started - alone,
        "growth": ended - started,
        "peak": max(peak, ended),
        "seconds": seconds,
    }


def pss_mb() -> float:
    found = machine.pss_bytes()
    if found is None:
        raise RuntimeError("this system does not tell the summed PSS of processes; run this benchmark on Linux")
    return found / 1e6


if __name__ == "__main__":
    sys.exit(main())
