"""`feedline bench`: measure feedline and torch's loader alternately, on quick workloads or a user's dataset."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from feedline.datasets.derived.objects import check_name
from feedline.errors import InternalError
from feedline.system.limits import usable_cores
from feedline.system.shown import printable
from feedline.tools.cli import options
from feedline.tools.cli.doctor import check_linux
from feedline.tools.measure import chart, harness, jpegs, rows, sweep
from feedline.tools.measure.isolated import Send
from feedline.tools.measure.target import make_some, open_target
from feedline.tools.measure.workloads import ReadySamples, TinyMap

JPEG_COUNT = 300
JPEG_LENGTH = 64_000  # the files are repeated, so that no round reaches the end of the epoch
WORKER_COUNT = 2
ROUND_S = 0.5
OWN_S = 60.0
COLUMNS = (
    rows.Column("samples_per_s", "samples/s", better="higher"),
    rows.Column("first_batch_ms", "first\nms"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.epilog = f"Exit codes with a dataset: {options.FAILED}"
    parser.add_argument(
        "what",
        nargs="?",
        default="quick",
        metavar="WHAT",
        help="quick: overhead, transport, decoding; images: JPEG files to float32, and torch's loader with common "
        f"decoders; or {options.DATASET}",
    )
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write JSON lines to FILE, or to standard output, instead of a table",
    )
    add_rounds(parser)
    parser.set_defaults(seconds=None)
    own = parser.add_argument_group("with your own dataset or loader (--seconds then limits the total time: 60)")
    options.add_batch_size(own)
    own.add_argument(
        "--workers",
        type=options.at_least(0),
        nargs="+",
        metavar="N",
        help="numbers of workers (0 1 2 4, up to the number of cores)",
    )
    own.add_argument(
        "--prefetch", type=options.at_least(1), nargs="+", metavar="N", help="prefetch factors (the default one)"
    )
    own.add_argument(
        "--engine",
        choices=("process", "thread"),
        nargs="+",
        default=["process", "thread"],
        help="engines of feedline (process thread); 0 workers always run inline",
    )
    options.add_plot(own)


def add_rounds(parser: argparse.ArgumentParser, *, how_many: str = "5") -> None:
    """Add the options about rounds, and set the other settings of a benchmark."""
    parser.add_argument(
        "--rounds", type=options.at_least(1), default=5, help=f"rounds per loader and case ({how_many})"
    )
    parser.add_argument("--seconds", type=options.positive, default=0.5, help="seconds timed in each round (0.5)")
    parser.set_defaults(repeats=0, max_other_cores=0.1, warmup=8)


def run(arguments: argparse.Namespace) -> None:
    """Measure a set and write a table, or JSON lines, to standard output."""
    is_own = arguments.what not in ("quick", "images")
    if is_own:
        check_name(arguments.what)
    arguments.seconds = arguments.seconds or (OWN_S if is_own else ROUND_S)
    if is_own:
        measure_own(arguments)
        return
    with TemporaryDirectory(prefix="feedline-bench-") as folder:
        images = Path(folder) / "images"
        jpegs.write_jpegs(JPEG_COUNT, images)
        measure = measure_images if arguments.what == "images" else compare
        measure(sorted(images.iterdir()), arguments)


def measure_images(paths: list[Path], arguments: argparse.Namespace) -> None:
    """Measure `feedline.images` and torch's loader with common decoders, and publish the results."""
    settings = argparse.Namespace(
        **{**vars(arguments), "workers": [WORKER_COUNT], "engine": ["process"], "batch_size": 64}
    )
    entries = list(jpegs.entries(paths, JPEG_LENGTH, settings))
    rows.publish("feedline bench images", rows.measure(entries, settings), settings, columns=COLUMNS, details=False)


@dataclass
class _Kept:
    """Results received from the process that measures the user's dataset."""

    measured: sweep.Measured = field(default_factory=sweep.Measured)
    ended: str | None = None
    ended_in: str = ""

    @property
    def is_useful(self) -> bool:
        return bool(self.measured.complete())


def measure_own(arguments: argparse.Namespace) -> None:
    """Measure the user's dataset in a process of its own, and publish the results."""
    check_linux(arguments.what)
    from feedline.tools.measure.isolated import watch  # importable only on Linux

    if arguments.workers is None:
        cores = usable_cores()
        arguments.workers = [0, *(count for count in (1, 2, 4, 8, 16, 32, 64) if count <= max(cores, 4))]
    wanted = sweep.Grid(arguments.workers, arguments.engine, arguments.prefetch or ())
    with rows.progress(None) as on_stage:
        kept = watch(partial(_measure, arguments, wanted), _Kept(), seconds=arguments.seconds, on_stage=on_stage)
    outcomes, failures = kept.measured.complete(), kept.measured.failures
    if not outcomes:
        raise sweep.nothing_measured(failures, arguments.seconds)
    name = f"feedline bench {arguments.what}"
    rows.publish(name, outcomes, arguments, columns=(rows.SAMPLES, rows.COSTS[0]))
    sys.stderr.write(printable(sweep.skipped(failures)))
    if missed := [harness.title_of(one.case, one.side) for one in kept.measured.outcomes if not one.rounds]:
        within = f"within {arguments.seconds:g} s" if kept.ended is None else f"({kept.ended})"
        sys.stderr.write(printable(f"Not measured {within}: {', '.join(missed)}. Give it more time with --seconds.\n"))
    if arguments.plot is not None:
        chart.write(arguments.plot, name, _panels(outcomes))


def _measure(arguments: argparse.Namespace, wanted: sweep.Grid, send: Send) -> None:
    """Measure a grid, and send the results after each measurement; runs in a process of its own."""
    began_s = time.monotonic()
    send("stage", "import")
    target = open_target(arguments.what, arguments.batch_size)
    send("stage", "samples")
    make_some(target, seconds=0.0)
    if torch.cuda.is_available():
        wanted = replace(wanted, pins=(False, True))
    work = sweep.Work(target.dataset, target.options, target.batch_size)
    settings = harness.Settings(arguments.rounds, arguments.repeats, arguments.max_other_cores)
    left_s = arguments.seconds - (time.monotonic() - began_s)
    sweep.measure(wanted, work, settings, left_s, step=partial(send, "stage"), keep=partial(send, "part", "measured"))


def _panels(outcomes: list[harness.Outcome]) -> list[chart.Panel]:
    """Draw rates against workers: one chart for each prefetch factor, pinned and not; and a chart of the memory."""
    kinds = dict.fromkeys(_kind(outcome) for outcome in outcomes if outcome.case["workers"]) or {(): None}
    panels = []
    for kind in kinds:
        own = [found for found in outcomes if _kind(found) == kind or not found.case["workers"]]
        points = [
            (found.side.name, chart.Point(int(found.case["workers"]), spread.median, spread.low, spread.high))
            for found in own
            if (spread := found.spread("samples_per_s")) is not None
        ]
        title = ", ".join(f"{name} {value}" for name, value in kind) or "Throughput"
        panels.append(chart.Panel(title, "workers", "samples/s", chart.lines_of(points)))
    return [*panels, *_memory(outcomes)]


def _memory(outcomes: list[harness.Outcome]) -> list[chart.Panel]:
    """Draw memory against the prefetch factor, for the most workers; against workers if there is only one factor."""
    most = max(int(found.case["workers"]) for found in outcomes)
    own = [found for found in outcomes if found.case["workers"] == most and most]
    by, what = "prefetch", f"prefetch factor, with {most} workers"
    if len({found.case.get(by) for found in own}) < 2:
        by, what, own = "workers", "workers", outcomes
    peaks: dict[tuple[str, int], float] = {}
    for found in own:
        place = found.side.name, int(found.case[by])
        peaks[place] = max(peaks.get(place, 0.0), found.peak_pss_mb or 0.0)
    points = [(name, chart.Point(x, size, size, size)) for (name, x), size in peaks.items() if size]
    return [chart.Panel("Memory of all processes", what, "MB", chart.lines_of(points))] if points else []


def _kind(outcome: harness.Outcome) -> tuple[tuple[str, str | int], ...]:
    return tuple((name, value) for name, value in outcome.case.items() if name != "workers")


def compare(paths: list[Path], arguments: argparse.Namespace) -> None:
    """Measure both loaders on the quick set and publish the results."""
    outcomes = rows.measure(quick_set(paths, arguments), arguments)
    rows.publish("feedline bench", outcomes, arguments, columns=COLUMNS, details=False)


def quick_set(paths: list[Path], arguments: argparse.Namespace) -> list[harness.Entry]:
    """Return the quick set: pure overhead, pure transport, and decoding."""
    tiny, files = TinyMap(400_000), jpegs.JpegFiles(paths, "pillow", JPEG_LENGTH)
    return [
        *both_loaders("tiny", tiny, 64, 0, arguments),
        *both_loaders("tiny", tiny, 64, WORKER_COUNT, arguments),
        *both_loaders("38 MB", ReadySamples(1_000_000), 64, WORKER_COUNT, arguments),
        *both_loaders("JPEG", files, 32, WORKER_COUNT, arguments),
    ]


# object: a dataset that has a length.
def both_loaders(
    name: str, dataset: object, size: int, workers: int, arguments: argparse.Namespace
) -> Iterator[harness.Entry]:
    """Yield both loaders with one dataset, after a check that their batches are equal."""
    check_equal_batches(name, dataset, size)
    settings = argparse.Namespace(**{**vars(arguments), "workers": [workers], "engine": ["auto"]})
    return rows.loaders(settings, {"data": name}, rows.same(dataset), batch_size=size, shuffle=True)


# object: a dataset that has a length.
def check_equal_batches(name: str, dataset: object, size: int) -> None:
    """Compare the first batches of both loaders.

    Raises InternalError: they differ, so speeds cannot be compared.
    """
    batches = []
    for side in harness.sides(0, ()):
        generator = torch.Generator().manual_seed(0)
        batch = next(iter(side.open(dataset, batch_size=size, shuffle=True, generator=generator)))
        batches.append([batch] if isinstance(batch, torch.Tensor) else batch)
    theirs, ours = batches
    if len(theirs) != len(ours) or not all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True)):
        raise InternalError(f"For the data {name!r}, feedline's first batch differs from torch's.")
