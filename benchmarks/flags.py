"""The flags that benchmarks have in common."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

ENGINES = ("auto", "process", "thread")
START_METHODS = ("fork", "forkserver", "spawn")


def parser(
    doc: str | None,
    *,
    engine: Sequence[str] = (),
    seconds: float | None = None,
    warmup: int = 8,
    rounds: int = 5,
    **defaults: int | list[int],
) -> argparse.ArgumentParser:
    """Make a parser with the flags every benchmark has; `doc` is the script's own docstring.

    Args:
        doc: shown by `--help`.
        engine: which of feedline's engines are compared if none is named; without any there is no such choice.
        seconds: of `--seconds`; without it there is no steady state to measure, and no such flag.
        warmup: of `--warmup`.
        rounds: of `--rounds`.
        defaults: flags for one number, or with a list for several: `workers=[0, 2]`, `batch_size=64`.
    """
    made = described(doc)
    add = made.add_argument
    add("--rounds", type=int, default=rounds, help="timed rounds over all configurations (%(default)s)")
    add("--max-other-cores", type=float, default=0.1, help="load of other programs that disturbs, in cores (0.1)")
    add("--json", nargs="?", const="-", metavar="FILE", help="write rows as JSON lines to FILE, or to standard output")
    if engine:
        add("--engine", nargs="+", choices=ENGINES, default=list(engine), help="feedline's engine or engines")
    if seconds is not None:
        add("--seconds", type=float, default=seconds, help="counted seconds per round (%(default)s)")
        about = "batches left out at both ends of an epoch, or twice the prefetched ones if more (%(default)s)"
        add("--warmup", type=int, default=warmup, help=about)
    for name, value in defaults.items():
        several = "+" if isinstance(value, list) else None
        add(f"--{name.replace('_', '-')}", nargs=several, type=_whole, default=value, help="(%(default)s)")
    return made


def described(doc: str | None) -> argparse.ArgumentParser:
    """Make a parser without flags, whose `--help` shows the script's own docstring."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def choose(parser: argparse.ArgumentParser, name: str, choices: Sequence[str], default: Sequence[str] = ()) -> None:
    """Add a flag that takes one or more of `choices`; all of them without a default."""
    parser.add_argument(name, nargs="+", choices=list(choices), default=list(default or choices))


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add `--data`, the folder of files that the benchmark writes."""
    parser.add_argument("--data", type=Path, help="folder for the files; kept in the temporary folder if unset")


def add_start_method(parser: argparse.ArgumentParser) -> None:
    """Add `--start-method` of both loaders' workers."""
    about = "how workers start; Python's default if unset"
    parser.add_argument("--start-method", choices=START_METHODS, help=about)


def _whole(text: str) -> int:
    """Read a number as people write large ones: 1e6."""
    return int(float(text))
