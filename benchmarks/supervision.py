"""Question: what does looking after workers and samples cost while nothing goes wrong?

Knob: what the loader is prepared for. `nothing`: no worker is replaced (restarts=0), what a sample raises is raised.
`deaths`: the default, dead workers are replaced and their memory is watched. `skip`: samples that fail are left out.
`retry`: a policy by the kind of exception with a budget. `limits`: a time-out and a limit on memory as well.

Held still: samples that are next to nothing (a worst case: everything the loader does shows), batches of 64, no faults.

How to read it: `of nothing` is samples per second as a share of the first row of the same round: 1.00 costs nothing.
Torch's loader, which replaces nobody, stands beside the default.

    python -m benchmarks.supervision
    python -m benchmarks.supervision --workers 2 --rounds 9 --json supervision.jsonl
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks import harness, rows, workloads
from feedline.faults import Policy, Retry

MODES: dict[str, dict[str, Any]] = {  # Any: the loader's arguments
    "nothing": {"restarts": 0},
    "deaths": {},
    "skip": {"on_error": "skip"},
    "retry": {"on_error": Policy({OSError: Retry(3), ValueError: "skip"}, max_failures=100)},
    "limits": {"timeout": 60, "restarts": 8, "max_memory_per_worker": 8 << 30},
}
COLUMNS = (
    rows.RATE,
    rows.Column("of_nothing", "of nothing", digits=3, with_range=True),
    rows.Column("consumer_cpu_us", "consumer\nCPU us", digits=1),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = rows.flags(__doc__, seconds=1.0, warmup=32, engine=[])
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2])
    parser.add_argument("--samples", type=int, default=10_000_000)
    arguments = parser.parse_args(argv)
    outcomes = rows.measure_entries(entries(arguments), arguments)
    for workers in arguments.workers:
        own = [o for o in outcomes if o.case["workers"] == workers and o.side.library == harness.FEEDLINE]
        for outcome in own:
            for figures, bare in zip(outcome.rounds, own[0].rounds, strict=True):
                figures["of_nothing"] = (figures["samples_per_s"] or 0.0) / (bare["samples_per_s"] or 1.0)
    rows.publish("supervision", outcomes, arguments, columns=COLUMNS)
    return 0


def entries(arguments: argparse.Namespace) -> list[harness.Entry]:
    return [
        harness.Entry(
            case={"workers": workers, "prepared for": mode},
            side=side,
            open=partial(
                side.open,
                workloads.Nothing(arguments.samples),
                batch_size=64,
                **harness.worker_arguments(workers),
                **(options if side.library == harness.FEEDLINE else {}),
            ),
            consume=workloads.touch,
            batch_size=64,
        )
        for workers in arguments.workers
        for mode, options in MODES.items()
        if workers or mode != "limits"  # without workers there is nobody to limit
        for side in harness.sides(workers, ["process"])
        if side.library == harness.FEEDLINE or mode == "deaths"
    ]


if __name__ == "__main__":
    sys.exit(main())
