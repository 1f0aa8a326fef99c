"""Every command and its options, described for argparse."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Protocol

from feedline import __version__
from feedline.tools.cli import values
from feedline.tools.cli.pack_options import add_pack_options

_DATASET = (
    "a dataset or loader in Python, module:object or path/to/file.py:object, or a function without arguments that "
    "returns one"
)
_FAILED_TEXT = (
    "4 the dataset cannot be imported or created; 5 every sample raises; 6 it hangs; 7 it crashes or takes too much "
    "memory; 8 it is empty; 1 any other error."
)


class _Commands(Protocol):
    """The result of `add_subparsers`, whose class in argparse is not public."""

    # Any: arguments of ArgumentParser.
    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser: ...


def build_parser() -> argparse.ArgumentParser:
    """Describe every command and its options."""
    parser = argparse.ArgumentParser(prog="feedline", description="A data loader that feeds accelerators.")
    parser.add_argument("--version", action="version", version=f"feedline {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")

    demo = commands.add_parser(
        "demo", help="train a small network with torch's loader and with feedline, and compare them (about a minute)"
    )
    demo.add_argument(
        "--images", type=values.at_least(64), default=320, help="images to draw and train on (%(default)s)"
    )
    demo.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("feedline-demo.html"),
        metavar="PAGE.html",
        help="the report (%(default)s)",
    )
    _add_round_options(demo, how_many="5, fewer on a slow machine")

    _add_bench(commands)
    _add_tune(commands)
    _add_doctor(commands)
    run = commands.add_parser("run", help="run a program with feedline's loader in place of torch's")
    _add_program(run)
    _add_profile(commands)
    report = commands.add_parser("report", help="render a recording as one HTML page")
    report.add_argument("file", type=Path, metavar="RUN.json", help="a recording that feedline.record wrote")
    report.add_argument("-o", "--out", type=Path, metavar="PAGE.html", help="the page (default: beside the recording)")
    report.add_argument("--trace", type=Path, metavar="TRACE.json", help="also write a trace for ui.perfetto.dev")
    _add_what_if(commands)
    _add_lab(commands)
    add_pack_options(commands.add_parser("pack", help="write a dataset in a format that reads fast"))
    _add_inspect(commands)
    return parser


def _add_program(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="train.py ARGUMENTS",
        help="a program and its arguments, as after `python`",
    )
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module")


def _add_profile(commands: _Commands) -> None:
    profile = commands.add_parser(
        "profile",
        help="run a program with feedline's loader, and report what its training waited for",
        epilog="The exit code is the program's if it fails (1 after an exception, 130 after Ctrl-C); 4 if it "
        "iterated over no loader; 1 for an error that feedline reports; otherwise 0.",
    )
    profile.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="DIR/NAME",
        help="write NAME.json.gz (the recording) and NAME.html (its page); default: the program's name and -profile",
    )
    profile.add_argument(
        "--compare", action="store_true", help="run it with torch's loader first, and show both side by side"
    )
    # Options that --compare passes when it calls this command.
    profile.add_argument("--loader", choices=("feedline", "torch"), default="feedline", help=argparse.SUPPRESS)
    profile.add_argument("--figures", type=Path, help=argparse.SUPPRESS)
    _add_program(profile)


def _add_bench(commands: _Commands) -> None:
    bench = commands.add_parser(
        "bench",
        help="compare with torch's loader on this machine (about half a minute), or on your dataset (a minute)",
        epilog=f"Exit codes with a dataset: {_FAILED_TEXT}",
    )
    bench.add_argument(
        "what",
        nargs="?",
        type=values.benchmark,
        default="quick",
        metavar="WHAT",
        help="quick: overhead, transport, decoding; images: JPEG files to float32, and torch's loader with common "
        f"decoders; or {_DATASET}",
    )
    bench.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write JSON lines to FILE, or to standard output, instead of a table",
    )
    _add_round_options(bench)
    bench.set_defaults(seconds=None)
    own = bench.add_argument_group("with your own dataset or loader (--seconds then limits the total time: 60)")
    _add_batch_size(own)
    own.add_argument(
        "--workers",
        type=values.at_least(0),
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
    _add_plot(own)


def _add_tune(commands: _Commands) -> None:
    tune = commands.add_parser(
        "tune",
        help="find the best number of workers, engine and prefetch for a dataset, and print them as code",
        epilog=f"Exit codes: {_FAILED_TEXT} 6 also if the time was up before all settings were measured, or if other "
        "programs kept the machine busy: then nothing is recommended.",
    )
    tune.add_argument("what", metavar="WHAT", help=_DATASET)
    tune.add_argument(
        "--step-ms",
        type=values.step_ms,
        default=0.0,
        metavar="MS",
        help="how long your training step takes for a batch: finds the fewest workers that keep up with it (0: the "
        "most samples per second)",
    )
    tune.add_argument("--seconds", type=values.positive, help="time limit in seconds (60)")
    _add_batch_size(tune)
    _add_plot(tune)
    tune.add_argument("--json", action="store_true", help="write JSON to standard output instead of a table")


def _add_batch_size(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--batch-size",
        type=values.at_least(1),
        metavar="N",
        help="samples in a batch (the loader's, or 32 for a dataset)",
    )


def _add_plot(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--plot", type=values.picture, metavar="FILE.svg", help="also draw the result")


def _add_doctor(commands: _Commands) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="examine this machine, a dataset, a recording or saved faults, and recommend changes",
        epilog=f"Exit codes: 0 nothing serious was found; 3 something serious was; {_FAILED_TEXT}",
    )
    doctor.add_argument(
        "what",
        nargs="?",
        metavar="WHAT",
        help=f"{_DATASET}; or a file: a recording, or a state saved as JSON. Without it, this machine is examined",
    )
    doctor.add_argument(
        "--seconds", type=values.positive, default=20.0, help="time limit in seconds for trying a dataset (%(default)s)"
    )
    doctor.add_argument("--json", action="store_true", help="write JSON to standard output instead of a table")


def _add_what_if(commands: _Commands) -> None:
    what_if = commands.add_parser(
        "what-if",
        help="predict how a recorded run would perform with other settings",
        description="Predicts how a recorded run would perform with other settings, or with faster or slower stages. "
        "Without any change, it tries several numbers of workers and of batches that they prefetch.",
    )
    what_if.add_argument("file", type=Path, metavar="RUN.json", help="a recording that feedline.record wrote")
    what_if.add_argument("--workers", type=values.at_least(0), metavar="N", help="workers; 0 for none")
    what_if.add_argument("--prefetch", type=values.at_least(1), metavar="N", help="batches that each worker prefetches")
    order = what_if.add_mutually_exclusive_group()
    order.add_argument("--ordered", dest="in_order", action="store_const", const=True, help="batches in order")
    order.add_argument("--unordered", dest="in_order", action="store_const", const=False, help="batches as they come")
    what_if.add_argument("--step", type=values.step_change, metavar="2x|50ms", help="time of a training step")
    for stage in ("fetch", "transform", "collate", "decode"):
        named = ", if the dataset names it" if stage == "decode" else ""
        what_if.add_argument(f"--{stage}", type=values.factor, metavar="0.5x", help=f"time of the stage {stage}{named}")
    what_if.add_argument(
        "--stage",
        type=values.stage_change,
        action="append",
        default=[],
        metavar="NAME=0.5x",
        help="time of another stage that the dataset names (feedline.stage)",
    )
    what_if.add_argument(
        "--computing",
        type=values.share,
        metavar="SHARE",
        help="share of a batch's time in which its worker computes, from 0 to 1 (as recorded); for the rest it waits, "
        "and needs no core; matters if there are more workers than cores",
    )
    what_if.add_argument("--json", action="store_true", help="write JSON to standard output instead of a table")


def _add_lab(commands: _Commands) -> None:
    lab = commands.add_parser("lab", help="open a local page that shows a loader at work")
    lab.add_argument(
        "what", nargs="?", metavar="module:dataset", help="your dataset or loader, which the page shows first"
    )
    lab.add_argument("--port", type=values.port, default=0, help="port on 127.0.0.1 (a free one)")
    lab.add_argument("--no-browser", action="store_true", help="only print the address")
    lab.add_argument(
        "--export", type=Path, metavar="LAB.html", help="write one file with recorded runs instead (takes some minutes)"
    )


def _add_inspect(commands: _Commands) -> None:
    inspect = commands.add_parser("inspect", help="show what is in a store or folder of samples")
    inspect.add_argument(
        "path",
        metavar="PATH",
        help="HDF5, LMDB, tar, Parquet, Arrow, .npy, .npz, SQLite, CSV, a folder of these or of files, or "
        "the address of a folder that `feedline pack` wrote",
    )
    inspect.add_argument("--fields", type=values.names, metavar="A,B", help="fields to read (all)")
    inspect.add_argument(
        "--verify", action="store_true", help="read all samples, and compare their number and all checksums"
    )
    inspect.add_argument("--json", action="store_true", help="write JSON to standard output instead of tables")


def _add_round_options(parser: argparse.ArgumentParser, *, how_many: str = "%(default)s") -> None:
    parser.add_argument("--rounds", type=values.at_least(1), default=5, help=f"rounds per loader and case ({how_many})")
    parser.add_argument("--seconds", type=values.positive, default=0.5, help="seconds timed in each round (0.5)")
    parser.set_defaults(repeats=0, max_other_cores=0.1, warmup=8)  # the other settings of a benchmark
