"""Parse the command line and hand over to one command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from feedline import __version__
from feedline._optional import require
from feedline.errors import FeedlineError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0, 1 for an error feedline explains, 130 after Ctrl-C."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        arguments.command(arguments)
    except FeedlineError as error:
        sys.stderr.write(f"feedline: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def build_parser() -> argparse.ArgumentParser:
    """Describe every command and its options."""
    parser = argparse.ArgumentParser(prog="feedline", description="A data loader that feeds accelerators.")
    parser.add_argument("--version", action="version", version=f"feedline {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="train a small network, then compare with torch's loader (about a minute)")
    demo.add_argument("--images", type=_at_least(40), default=480, help="number of pictures to make (%(default)s)")
    demo.add_argument("--epochs", type=_at_least(1), default=8, help="epochs to train (%(default)s)")
    demo.add_argument("--folder", type=Path, help="keep the pictures here instead of in a temporary folder")
    _add_contest_options(demo)
    demo.set_defaults(command=_demo)

    bench = commands.add_parser("bench", help="compare with torch's loader on this machine (about half a minute)")
    bench.add_argument("--json", action="store_true", help="write JSON lines to standard output instead of a table")
    _add_contest_options(bench)
    bench.set_defaults(command=_bench)

    doctor = commands.add_parser("doctor", help="look at this machine, or at saved faults, and say what to change")
    doctor.add_argument(
        "file",
        type=Path,
        nargs="?",
        metavar="FILE",
        help="a state saved as JSON, or a table that loader.faults.to_csv wrote; without it the machine is looked at",
    )
    doctor.add_argument("--json", action="store_true", help="write JSON to standard output instead of a table")
    doctor.set_defaults(command=_doctor)
    return parser


def _add_contest_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=_at_least(1), default=5, help="rounds per loader and case (%(default)s)")
    parser.add_argument("--seconds", type=_positive, default=0.5, help="seconds timed in each round (%(default)s)")


def _at_least(least: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return value

    return count


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return value


def _demo(arguments: argparse.Namespace) -> None:
    _require_extra("`feedline demo`")
    from feedline.cli import demo

    demo.run(
        images=arguments.images,
        epochs=arguments.epochs,
        folder=arguments.folder,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
    )


def _bench(arguments: argparse.Namespace) -> None:
    _require_extra("`feedline bench`")
    from feedline.cli import bench

    bench.run(rounds=arguments.rounds, seconds=arguments.seconds, as_json=arguments.json)


def _doctor(arguments: argparse.Namespace) -> None:
    from feedline.cli import doctor  # needs no extra, apart from the table, which asks for it itself

    doctor.run(file=arguments.file, as_json=arguments.json)


def _require_extra(purpose: str) -> None:
    # Lightest first: whoever lacks Rich learns it before torch was loaded for nothing.
    for package in ("rich", "PIL", "torch"):
        require(package, extra="demo", purpose=purpose)
