"""`feedline tune`: search the settings of a loader for a dataset, and print the best as code."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from functools import partial

from feedline.bench import chart, grid, harness, rows
from feedline.cli.doctor import check_linux
from feedline.tune.probing.process import Tell
from feedline.tune.search import DEPTH, Choice, Limits, Rate, Setting, search
from feedline.tune.target import Target, make_some, open_target
from feedline.values.shown import printable

_LONGEST_S = 1.0
_SHARE = 1 / 30
"""Of the whole time, that one setting is measured; and for that long batches are made before, without workers."""


@dataclass
class _Kept:
    """What the process that measures has told."""

    limits: Limits | None = None
    batch_bytes: int = 0
    code: str = ""
    is_loader: bool = False
    batch_size: int = 0
    tried: dict[Setting, Rate] = field(default_factory=dict)
    failures: dict[Setting, grid.Failure] = field(default_factory=dict)
    ended: str | None = None
    ended_in: str = ""

    @property
    def is_useful(self) -> bool:
        return bool(self.tried)


def run(arguments: argparse.Namespace) -> None:
    """Search settings, and write them to standard output as a table and code, or as JSON."""
    check_linux(arguments.what)
    from feedline.tune.probe import watch  # which cannot be imported elsewhere

    step_s = arguments.step_ms / 1e3
    body = partial(_measure, arguments.what, arguments.batch_size, step_s, arguments.seconds)
    with rows.progress(None) as on_stage:
        kept = watch(body, _Kept(), seconds=arguments.seconds, on_stage=on_stage)
    assert kept.limits is not None  # told before anything was tried
    choice = search(kept.tried.get, kept.limits, step_s=step_s)
    if choice is None:
        raise grid.nothing_measured(kept.failures, arguments.seconds)
    if arguments.json:
        sys.stdout.write(json.dumps(_as_dict(kept, choice)) + "\n")
    else:
        _show(arguments.what, kept, choice, has_step=step_s > 0)
    for setting, failure in kept.failures.items():
        sys.stderr.write(printable(f"Left out, with {setting}: {failure.text}\n"))
    if kept.ended is not None:
        sys.stderr.write(printable(f"{kept.ended}. The rest was not tried.\n"))
    if arguments.plot is not None:
        arguments.plot.write_text(_drawn(arguments.what, kept, choice, step_s), encoding="utf-8")


def _measure(source: str, batch_size: int | None, step_s: float, seconds: float, send: Tell) -> None:
    """Measure what the search asks for; in a process of its own."""
    from feedline.tune.measured import room_now

    until_s, counted_s = time.monotonic() + seconds, min(_LONGEST_S, seconds * _SHARE)
    send("stage", "import")
    target: Target = open_target(source, batch_size)
    for name in ("code", "is_loader", "batch_size"):
        send("part", name, getattr(target, name))
    send("stage", "samples")
    made, room = make_some(target, seconds=counted_s), room_now()
    send("part", "batch_bytes", made.batch_bytes)
    limits = Limits.of(room.cores, room.memory_bytes, made.batch_bytes, made.cpu_share)
    send("part", "limits", limits)
    work = grid.Work(target.dataset, target.options, target.batch_size, step_s)
    tried: dict[Setting, Rate] = {}
    failures: dict[Setting, grid.Failure] = {}
    longest_s = 0.0

    def measure(setting: Setting) -> Rate | None:
        nonlocal longest_s
        began_s = time.monotonic()
        if began_s + longest_s > until_s:
            return None
        send("stage", str(setting))
        depth = None if setting.depth == DEPTH else setting.depth
        options = harness.worker_arguments(setting.workers, prefetch=depth)
        try:
            side = harness.Side(harness.FEEDLINE, setting.engine)
            figures = work.steady(side, options, counted_s, grid.waited).measure()
        except (Exception, SystemExit) as exc:  # of the user's, or feedline's word about it
            failures[setting] = grid.Failure.of(exc)
            send("part", "failures", failures)
            return None
        longest_s = max(longest_s, time.monotonic() - began_s)
        stall = (figures["making_s"] or 0.0) / (figures["seconds"] or 1.0)
        tried[setting] = Rate(figures["samples_per_s"] or 0.0, min(1.0, stall), figures["other_cores"] or 0.0)
        send("part", "tried", tried)
        return tried[setting]

    with harness.expected_warnings():
        search(measure, limits, step_s=step_s)


def _code(kept: _Kept, choice: Choice) -> list[str]:
    lines = ["from feedline import DataLoader", "", f"loader = {choice.setting.code(kept.code)}"]
    return [*lines, "# and the other arguments of your loader, as they are"] if kept.is_loader else lines


# Any: values that JSON keeps.
def _as_dict(kept: _Kept, choice: Choice) -> dict[str, object]:
    return {
        "setting": asdict(choice.setting),
        "code": "\n".join(_code(kept, choice)),
        "reasons": choice.reasons,
        "batch_size": kept.batch_size,
        "batch_bytes": kept.batch_bytes,
        "tried": [{**asdict(setting), **asdict(rate)} for setting, rate in choice.tried.items()],
    }


def _show(source: str, kept: _Kept, choice: Choice, *, has_step: bool) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(source), title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("engine")
    for head in ("workers", "prefetch", "samples/s", *(["training waits"] if has_step else []), "MB ahead", ""):
        table.add_column(head, justify="right")
    for setting, rate in sorted(choice.tried.items(), key=lambda pair: (pair[0].engine, pair[0].workers)):
        is_chosen = setting == choice.setting
        table.add_row(
            setting.engine,
            str(setting.workers),
            str(setting.depth) if setting.workers else "-",
            f"{rate.samples_per_s:,.0f}",
            *([f"{rate.stall:.1%}"] if has_step else []),
            f"{_ahead_mb(kept, setting):,.1f}",
            "chosen" if is_chosen else "",
            style="bold" if is_chosen else "",
        )
    console = Console()
    console.print(table)
    for line in ["", *choice.reasons, "", *_code(kept, choice)]:
        console.print(Text(printable(line)), soft_wrap=True)


def _ahead_mb(kept: _Kept, setting: Setting) -> float:
    return setting.workers * setting.depth * kept.batch_bytes / 1e6


def _drawn(source: str, kept: _Kept, choice: Choice, step_s: float) -> str:
    """Draw rates against workers, and the memory of batches made ahead against the prefetch factor."""
    chosen = choice.setting
    best: dict[tuple[str, int], float] = {}  # with whatever prefetch factor
    for setting, rate in sorted(choice.tried.items(), key=lambda pair: pair[0].workers):
        place = f"feedline/{setting.engine}", setting.workers
        best[place] = max(rate.samples_per_s, best.get(place, 0.0))
    lines = [
        chart.Line(name, [chart.Point(count, y, y, y) for (own, count), y in best.items() if own == name])
        for name in dict.fromkeys(name for name, _ in best)
    ]
    level = (kept.batch_size / step_s, f"all that steps of {step_s * 1e3:g} ms take") if step_s else None
    panels = [
        chart.Panel("Throughput", "workers", "samples/s", lines, level, (f"feedline/{chosen.engine}", chosen.workers))
    ]
    if chosen.workers:
        ahead = [(depth, _ahead_mb(kept, Setting(chosen.engine, chosen.workers, depth))) for depth in (1, 2, 4, 8)]
        points = [chart.Point(depth, size, size, size) for depth, size in ahead]
        name = f"feedline/{chosen.engine}"
        panels.append(
            chart.Panel(
                "Batches made ahead", "prefetch factor", "MB", [chart.Line(name, points)],
                marked=(name, chosen.depth),
            )
        )  # fmt: skip
    return chart.draw(f"feedline tune {source}", panels)
