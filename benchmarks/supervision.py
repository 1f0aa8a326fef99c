"""Question: what does looking after workers and samples cost while nothing goes wrong?

Knob: what the loader is prepared for. `nothing`: no worker is replaced (restarts=0), and exceptions of samples are
raised. `deaths`: the default, dead workers are replaced and their memory is watched. `skip`: samples that fail are left
out. `retry`: a policy by the kind of exception, with a budget. `limits`: also a timeout and a limit on memory.

Held still: samples that cost almost nothing (a worst case, which shows the loader's own work), batches of 64, no
faults.

How to read it: `of nothing` is samples per second as a share of the first row of the same round: 1.00 costs nothing.
Torch's loader, which replaces no worker, is measured beside the default.

    python -m benchmarks.supervision
    python -m benchmarks.supervision --workers 2 --rounds 9 --json supervision.jsonl
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import flags, workloads
from feedline.faults import Policy, Retry
from feedline.tools.measure import harness, rows

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
    rows.CONSUMER,
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__, engine=["process"], seconds=1.0, warmup=32, workers=[0, 2], samples=10_000_000, batch_size=64
    )
    arguments = parser.parse_args(argv)
    dataset = workloads.Nothing(arguments.samples)
    entries = [
        entry
        for mode, options in MODES.items()
        for entry in rows.loaders(arguments, {"prepared for": mode}, rows.same(dataset), ours=options)
        if entry.side.library == harness.FEEDLINE or mode == "deaths"
        if entry.case["workers"] or mode != "limits"  # without workers there is nothing to limit
    ]
    outcomes = rows.measure(entries, arguments)
    for workers in arguments.workers:
        own = [o for o in outcomes if o.case["workers"] == workers and o.side.library == harness.FEEDLINE]
        for outcome in own:
            harness.add_share(outcome, own[0], "samples_per_s", "of_nothing")
    rows.publish("supervision", outcomes, arguments, columns=COLUMNS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
