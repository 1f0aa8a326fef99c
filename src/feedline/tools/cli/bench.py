"""`feedline bench`: measure feedline and torch's loader alternately, on quick workloads or a user's dataset."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from feedline.datasets.derived.objects import check_name
from feedline.errors import InternalError
from feedline.system.shown import printable
from feedline.tools.cli import options
from feedline.tools.cli.doctor import check_linux
from feedline.tools.measure import chart, harness, jpegs, rows
from feedline.tools.measure.sweep import Sweep, Swept
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
    parser.add_argument("--rounds", type=options.at_least(1), default=5, help="rounds per loader and case (5)")
    parser.add_argument("--seconds", type=options.positive, help="seconds timed in each round (0.5)")
    parser.set_defaults(max_other_cores=0.1, warmup=8)
    own = parser.add_argument_group("with your own dataset or loader (--seconds then limits the total time: 60)")
    options.add_batch_size(own)
    own.add_argument(
        "--workers",
        type=options.at_least(0),
        nargs="+",
        metavar="N",
        help="numbers of workers (0 1 2 4 8 and so on, as many as the machine can run)",
    )
    own.add_argument(
        "--engine",
        choices=("process", "thread"),
        nargs="+",
        default=["process", "thread"],
        help="engines of feedline (process thread); 0 workers always run inline",
    )
    options.add_plot(own)


def run(arguments: argparse.Namespace) -> None:
    """Measure a set, and write a table, or JSON lines, to standard output."""
    if arguments.what not in ("quick", "images"):
        check_name(arguments.what)
        measure_own(arguments)
        return
    arguments.seconds = arguments.seconds or ROUND_S
    with TemporaryDirectory(prefix="feedline-bench-") as folder:
        jpegs.write_jpegs(JPEG_COUNT, Path(folder) / "images")
        paths = sorted((Path(folder) / "images").iterdir())
        if arguments.what == "images":
            arguments = argparse.Namespace(
                **{**vars(arguments), "workers": [WORKER_COUNT], "engine": ["process"], "batch_size": 64}
            )
            entries, name = list(jpegs.entries(paths, JPEG_LENGTH, arguments)), "feedline bench images"
        else:
            entries, name = quick_set(paths, arguments), "feedline bench"
        rows.publish(name, rows.measure(entries, arguments), arguments, columns=COLUMNS, details=False)


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
    options = argparse.Namespace(**{**vars(arguments), "workers": [workers], "engine": ["auto"], "batch_size": size})
    return rows.entries(options, {"data": name}, rows.both(dataset, dataset, shuffle=True))


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


# -- the user's own dataset --------------------------------------------------------------------------------------------


def measure_own(arguments: argparse.Namespace) -> None:
    """Measure torch's loader and feedline's on the user's dataset, and publish the results."""
    rounds = harness.Settings(arguments.rounds, arguments.max_other_cores)
    sweep = Sweep(
        arguments.what,
        arguments.seconds or OWN_S,
        rounds,
        [harness.TORCH, *arguments.engine],
        arguments.workers,
        arguments.batch_size,
    )
    swept = measure(sweep)
    name, outcomes = f"feedline bench {arguments.what}", swept.whole_rounds()
    rows.publish(name, outcomes, arguments, columns=(rows.SAMPLES, rows.COSTS[0]))
    report_rest(swept, sweep.seconds)
    plot(arguments.plot, name, outcomes)


def measure(sweep: Sweep) -> Swept:
    """Run a sweep under a progress bar; also for `feedline tune`."""
    check_linux(sweep.source)
    with rows.progress(None) as on_stage:
        return sweep.run(on_stage)


def report_rest(swept: Swept, seconds: float) -> None:
    """Write to standard error what was not measured, and why."""
    text = swept.skipped()
    if missing := swept.missing():
        why = f"Give it more than {seconds:g} s with --seconds" if swept.ended is None else swept.ended.rstrip(".")
        text += f"Not measured: {', '.join(map(str, missing))}. {why}.\n"
    sys.stderr.write(printable(text))


def plot(path: Path | None, name: str, outcomes: Sequence[harness.Outcome]) -> None:
    """Draw rates and memory against numbers of workers; those with more prefetching are other lines."""
    if path is None:
        return
    rates: dict[str, dict[int, harness.Spread]] = {}
    peaks: dict[str, dict[int, harness.Spread]] = {}
    for found in outcomes:
        workers, prefetch = int(found.case["workers"]), found.case["prefetch"]
        line = found.side.name + (f", prefetch {prefetch}" if prefetch not in ("-", 2) else "")
        line += ", pinned" if found.case.get("pinned") == "yes" else ""
        if (spread := found.spread("samples_per_s")) is not None:
            rates.setdefault(line, {})[workers] = spread
        if (peak := harness.Spread.of([found.peak_pss_mb])) is not None:
            peaks.setdefault(line, {})[workers] = peak
    panels = [chart.Panel("Throughput", "samples/s", rates), chart.Panel("Memory of all processes", "MB", peaks)]
    path.write_text(chart.draw(name, [panel for panel in panels if panel.lines]), encoding="utf-8")
