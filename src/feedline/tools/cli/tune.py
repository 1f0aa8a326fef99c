"""`feedline tune`: the best number of workers, engine and prefetch for a dataset, as a line of Python."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace

from feedline.system.limits import usable_cores
from feedline.system.shown import printable
from feedline.tools.cli import bench, options
from feedline.tools.measure import rows
from feedline.tools.measure.choice import Choice, choose
from feedline.tools.measure.harness import Settings
from feedline.tools.measure.sweep import Sweep, Swept

UNDECIDED = 6
"""Exit code if the time was up or the machine too busy for a recommendation, as for a dataset that hangs."""
ROUNDS = 3
BUSY = 0.1
"""The share of the cores that other programs may use."""
RATE = replace(rows.SAMPLES, better=None)
STALL = rows.Column("stall", "training\nwaits %", scale=100, digits=1)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.epilog = (
        f"Exit codes: {options.FAILED} 6 also if the time was up before all settings were measured, or if other "
        "programs kept the cores busy: then nothing is recommended."
    )
    parser.add_argument("what", metavar="WHAT", help=options.DATASET)
    parser.add_argument(
        "--step-ms",
        type=options.positive,
        default=0.0,
        metavar="MS",
        help="how long your training step takes for a batch: finds the fewest workers that keep up with it (without "
        "it: the most samples per second)",
    )
    parser.add_argument("--seconds", type=options.positive, default=60.0, help="time limit in seconds (60)")
    options.add_batch_size(parser)
    options.add_plot(parser)
    parser.add_argument("--json", action="store_true", help="write JSON to standard output instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Measure feedline's settings, and write the best one as code and a table, or as JSON, to standard output.

    If the time was up before all were measured, or the machine was busy, recommend nothing, and return `UNDECIDED`.
    """
    step_s = arguments.step_ms / 1e3
    rounds = Settings(ROUNDS, max_other_cores=BUSY * usable_cores())
    sweep = Sweep(
        arguments.what,
        arguments.seconds,
        rounds,
        batch_size=arguments.batch_size,
        step_s=step_s,
    )
    swept = bench.measure(sweep)
    choice = recommend(swept, step_s)
    name, outcomes = f"feedline tune {arguments.what}", list(swept.measured().values())
    if arguments.json:
        sys.stdout.write(json.dumps(_as_dict(swept, choice)) + "\n")
    else:
        if choice.setting is not None:
            rest = "  # and your other arguments, unchanged" if swept.is_loader else ""
            sys.stdout.write(printable(f"{choice.setting.code(swept.code)}{rest}\n\n"))
        columns = (RATE, *([STALL] if step_s else []), rows.COSTS[0])
        rows.publish(name, outcomes, argparse.Namespace(json=None), columns=columns)
        sys.stdout.write(printable("\n" + "\n".join(choice.reasons) + "\n"))
    bench.report_rest(swept, sweep.seconds)
    bench.plot(arguments.plot, name, outcomes)
    return UNDECIDED if choice.setting is None else 0


def recommend(swept: Swept, step_s: float) -> Choice:
    """Choose a setting; none if not all of them were measured, as any could have been the best."""
    if missing := swept.missing():
        why = "The time was up" if swept.ended is None else swept.ended.rstrip(".")
        return Choice(None, [f"No recommendation: not all settings were measured, from {missing[0]} on. {why}."])
    return choose(swept.rates(), swept.limit, step_s=step_s)


# object: JSON-compatible values.
def _as_dict(swept: Swept, choice: Choice) -> dict[str, object]:
    return {
        "setting": None if choice.setting is None else asdict(choice.setting),
        "code": None if choice.setting is None else choice.setting.code(swept.code),
        "reasons": choice.reasons,
        "missing": [str(setting) for setting in swept.missing()],
        "batch_size": swept.batch_size,
        "batch_bytes": swept.batch_bytes,
        "tried": [{**asdict(setting), **asdict(rate)} for setting, rate in swept.rates().items()],
    }
