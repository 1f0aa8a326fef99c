"""Run one command, and report how it ended."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from feedline import __version__
from feedline.errors import DatasetFailed, FeedlineError
from feedline.system.optional import require
from feedline.system.shown import printable


class Command(NamedTuple):
    """A command: its module in this folder has the functions `add_options` and `run`."""

    purpose: str
    packages: tuple[str, ...] = ()
    """Packages that the module imports, the lightest first: a missing Pillow is reported before torch is loaded."""
    extra: str = "torch"
    """The extra of feedline that installs them."""


COMMANDS = {
    "demo": Command(
        "train a small network with torch's loader and with feedline, and compare them (about half a minute)",
        ("PIL", "torch"),
        "demo",
    ),
    "bench": Command(
        "compare with torch's loader on this machine (about half a minute), or on your dataset (a minute)",
        ("PIL", "torch"),
        "demo",
    ),
    "tune": Command(
        "find the best number of workers, engine and prefetch for a dataset, and print them as code",
        ("torch",),
    ),
    "doctor": Command("examine this machine, a dataset, a recording or saved faults, and recommend changes"),
    "run": Command("run a program with feedline's loader in place of torch's", ("torch",)),
    "profile": Command("run a program with feedline's loader, and report what its training waited for", ("torch",)),
    "report": Command("render a recording as one HTML page"),
    "lab": Command("open a local page that shows a loader at work", ("starlette", "uvicorn", "torch"), "lab"),
    "pack": Command("write a dataset in a format that reads fast"),
    "inspect": Command("show what is in a store or folder of samples"),
}

FAILED = {"import": 4, "raises": 5, "hangs": 6, "crashes": 7, "empty": 8}
"""Exit codes, by the reason why a dataset could not be tried. 1 is any other explained error, 2 a wrong option."""
_TRYING = ("bench", "doctor", "tune")


def build_parser(named: Collection[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """Describe all commands, and the options of those that are named: only their modules are imported."""
    parser = argparse.ArgumentParser(prog="feedline", description="A data loader that feeds accelerators.")
    parser.add_argument("--version", action="version", version=f"feedline {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, command in COMMANDS.items():
        options = commands.add_parser(name, help=command.purpose)
        if name in named:
            for package in command.packages:
                require(package, extra=command.extra, purpose=f"`feedline {name}`")
            _module(name).add_options(options)
    return parser


# Any: a module, whose functions mypy does not know.
def _module(name: str) -> Any:
    return importlib.import_module(f"feedline.tools.cli.{name}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0, 1 for an error feedline explains, 130 after Ctrl-C.

    `feedline doctor` may also return `SERIOUS`, and commands that try datasets may return the codes in `FAILED`.
    """
    words = sys.argv[1:] if argv is None else argv
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # started with this stream closed, as by a service
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    arguments = argparse.Namespace()
    formatwarning = warnings.formatwarning
    warnings.formatwarning = lambda *warned, **more: printable(formatwarning(*warned, **more))
    try:
        build_parser([word for word in words if not word.startswith("-")][:1]).parse_args(words, arguments)
        status: int = _module(arguments.command).run(arguments) or 0
        sys.stdout.flush()  # so that a closed pipe is noticed here
        return status
    except FeedlineError as error:
        text, status = str(error), 1
        if isinstance(error, DatasetFailed) and arguments.command in _TRYING:
            sys.stderr.write(printable(f"{error.traceback.rstrip()}\n\n".lstrip()))
            status = FAILED[error.reason]
        if hasattr(arguments, "fields"):  # sources name the option as in Python
            text = text.replace("with fields=", "with --fields (fields=)")
        sys.stderr.write(printable(f"feedline: {text}\n"))
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would fail to flush at exit
        return 1
    finally:
        warnings.formatwarning = formatwarning
