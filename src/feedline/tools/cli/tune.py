"""`feedline tune`: find the best settings of a loader for a dataset or a program, and print them as code."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from feedline.errors import BadOption
from feedline.insight.stats import aligned
from feedline.system.shown import printable
from feedline.tools.cli import options
from feedline.tools.cli.doctor import check_linux
from feedline.tools.measure import chart, rows, sweep
from feedline.tools.measure.search import Choice, Setting, search

if TYPE_CHECKING:
    from feedline.tools.cli.tune_runs import Kept

OUT_OF_TIME = 6
"""Exit code of a search that could not measure all that it needed, as for a dataset that hangs (`main.FAILED`)."""
_SECONDS = 60.0
_PROGRAM_SECONDS = 180.0
"""Default time limits, for a dataset and for a program."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.epilog = (
        f"Exit codes: {options.FAILED} 6 also if the time was up before the search was complete: then nothing is "
        "recommended. With --script: 5 the program fails; 8 it iterates over no loader."
    )
    parser.add_argument(
        "what",
        nargs="?",
        metavar="WHAT",
        help=f"{options.DATASET}; with --script, only loaders of such datasets are tuned; or shards in a store, such "
        "as s3://bucket/train/*.tar",
    )
    parser.add_argument(
        "--step-ms",
        type=options.positive,
        default=0.0,
        metavar="MS",
        help="how long your training step takes for a batch: finds the fewest workers that keep up with it (without "
        "it: the most samples per second)",
    )
    parser.add_argument("--seconds", type=options.positive, help="time limit in seconds (60, or 180 with --script)")
    options.add_batch_size(parser)
    options.add_plot(parser)
    parser.add_argument("--json", action="store_true", help="write JSON to standard output instead of a table")
    stored = parser.add_argument_group("shards in a store")
    stored.add_argument("--cache", metavar="BYTES", help="size of the disk cache of each machine: 300GB (none)")
    stored.add_argument("--sample-bytes", metavar="BYTES", help="average size of a sample: 100KB")
    stored.add_argument("--machines", type=options.at_least(1), metavar="N", help="machines that train (1)")
    parser.add_argument(
        "--script",
        nargs=argparse.REMAINDER,
        metavar="train.py ARGUMENTS",
        help="run this program unchanged for some seconds with each setting on its loaders, and find the best for its "
        "training step; must come last, followed by the program's arguments (-m MODULE for a module)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Search settings, and write the best ones to standard output as a table and code, or as JSON.

    If the time was too short to find them, write only what was measured, and return `OUT_OF_TIME`.
    """
    program, source = arguments.script, arguments.what
    if "://" in (source or "") and not program:
        from feedline.tools.cli import tune_store

        tune_store.run(arguments)
        return 0
    if not (program or source):
        raise BadOption(
            "There is nothing to tune. Name a dataset or loader as module:object, or a program: --script train.py."
        )
    if source and not program and source.endswith(".py") and Path(source).is_file():
        raise BadOption(
            f"{source} names no object. To tune the loaders of a program, write --script {source}, followed by its "
            f"arguments. To tune one dataset or loader, add its name: {source}:dataset."
        )
    stored = [name for name in ("cache", "sample_bytes", "machines") if getattr(arguments, name)]
    if stored:
        raise BadOption(
            f"--{stored[0].replace('_', '-')} applies only to shards in a store. Name the shards, such as "
            "s3://bucket/train/*.tar, and leave out --script."
        )
    if program and (arguments.step_ms or arguments.batch_size):
        raise BadOption("Leave out --step-ms and --batch-size: --script measures those of the program.")
    title = source or " ".join(program)
    check_linux(title)
    from feedline.tools.cli import tune_runs  # importable only on Linux

    seconds = arguments.seconds or (_PROGRAM_SECONDS if program else _SECONDS)
    with rows.progress(None) as on_stage:
        if program:
            kept = tune_runs.measure_program(program, source, seconds=seconds, on_stage=on_stage)
        else:
            step_s = arguments.step_ms / 1e3
            kept = tune_runs.measure_dataset(
                source, arguments.batch_size, step_s=step_s, seconds=seconds, on_stage=on_stage
            )
    assert kept.limits is not None  # sent before anything is tried
    choice = search(kept.rate_of, kept.limits, step_s=kept.step_s)
    if choice is None or not choice.tried:
        raise sweep.nothing_measured(kept.failures, seconds)
    if arguments.json:
        sys.stdout.write(json.dumps(_as_dict(kept, choice)) + "\n")
    else:
        _show(title, kept, choice)
    sys.stderr.write(printable(sweep.skipped(kept.failures)))
    if kept.ended is not None:
        sys.stderr.write(printable(f"{kept.ended.rstrip('.')}. The rest was not tried.\n"))
    if arguments.plot is not None:
        chart.write(arguments.plot, f"feedline tune {title}", _panels(kept, choice))
    return 0 if choice.missing is None else OUT_OF_TIME


def _code(kept: Kept, choice: Choice) -> list[str]:
    if choice.setting is None:
        return []
    lines = ["from feedline import DataLoader", "", f"loader = {choice.setting.code(kept.code)}"]
    return [*lines, "# and the other arguments of your loader, unchanged"] if kept.is_loader else lines


# object: JSON-compatible values.
def _as_dict(kept: Kept, choice: Choice) -> dict[str, object]:
    return {
        "setting": None if choice.setting is None else asdict(choice.setting),
        "code": "\n".join(_code(kept, choice)) or None,
        "missing": None if choice.missing is None else str(choice.missing),
        "reasons": choice.reasons,
        "batch_size": kept.batch_size,
        "batch_bytes": kept.batch_bytes,
        "tried": [{**asdict(setting), **asdict(rate)} for setting, rate in choice.tried.items()],
    }


def _show(source: str, kept: Kept, choice: Choice) -> None:
    waits = ["training waits"] if kept.step_s > 0 else []
    table = [["engine", "workers", "prefetch", "samples/s", *waits, "MB ahead", ""]]
    for setting, rate in sorted(choice.tried.items(), key=lambda pair: (pair[0].engine, pair[0].workers)):
        table.append(
            [
                setting.engine,
                str(setting.workers),
                str(setting.depth) if setting.workers else "-",
                f"{rate.samples_per_s:,.0f}",
                *[f"{rate.stall:.1%}" for _ in waits],
                f"{_ahead_mb(kept, setting):,.1f}",
                "chosen" if setting == choice.setting else "",
            ]
        )
    lines = [source, aligned(table), "", *choice.reasons, "", *_code(kept, choice)]
    sys.stdout.write(printable("\n".join(lines).rstrip() + "\n"))


def _ahead_mb(kept: Kept, setting: Setting) -> float:
    return setting.workers * setting.depth * kept.batch_bytes / 1e6


def _panels(kept: Kept, choice: Choice) -> list[chart.Panel]:
    """Draw rates against workers, and the memory of prefetched batches against the prefetch factor."""
    chosen = choice.setting
    marked = None if chosen is None else (f"feedline/{chosen.engine}", chosen.workers)
    best: dict[tuple[str, int], float] = {}  # over all prefetch factors
    for setting, rate in sorted(choice.tried.items(), key=lambda pair: pair[0].workers):
        place = f"feedline/{setting.engine}", setting.workers
        best[place] = max(rate.samples_per_s, best.get(place, 0.0))
    lines = chart.lines_of([(name, chart.Point(count, y, y, y)) for (name, count), y in best.items()])
    step_s = kept.step_s
    level = (kept.batch_size / step_s, f"limit of steps of {step_s * 1e3:.3g} ms") if step_s else None
    panels = [chart.Panel("Throughput", "workers", "samples/s", lines, level, marked)]
    if chosen is not None and chosen.workers:
        ahead = [(depth, _ahead_mb(kept, Setting(chosen.engine, chosen.workers, depth))) for depth in (1, 2, 4, 8)]
        points = [chart.Point(depth, size, size, size) for depth, size in ahead]
        name = f"feedline/{chosen.engine}"
        panels.append(
            chart.Panel(
                "Batches made ahead", "prefetch factor", "MB", [chart.Line(name, points)],
                marked=(name, chosen.depth),
            )
        )  # fmt: skip
    return panels
