"""Run one command, and report how it ended."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Sequence

from feedline.errors import DatasetFailed, FeedlineError
from feedline.system.optional import require
from feedline.system.shown import printable
from feedline.tools.cli.parser import build_parser

FAILED = {"import": 4, "raises": 5, "hangs": 6, "crashes": 7, "empty": 8}
"""Exit codes, by the reason why a dataset could not be tried. 1 is any other explained error, 2 a wrong option."""
_TRYING = ("bench", "doctor", "tune")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0, 1 for an error feedline explains, 130 after Ctrl-C.

    `feedline doctor` may also return `SERIOUS`, and commands that try datasets may return the codes in `FAILED`.
    """
    arguments = build_parser().parse_args(argv)
    formatwarning = warnings.formatwarning
    warnings.formatwarning = lambda *warned, **more: printable(formatwarning(*warned, **more))
    try:
        status = _run(arguments)
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


_PACKAGES = {
    "demo": ("PIL", "torch"),
    "bench": ("PIL", "torch"),
    "lab": ("starlette", "uvicorn", "torch"),
    "profile": ("torch",),
    "run": ("torch",),
    "tune": ("torch",),
}
"""Packages that a command needs, the lightest first: a missing Pillow is reported before torch is loaded."""


_EXTRAS = {"lab": "lab", "profile": "torch", "run": "torch"}


def _run(arguments: argparse.Namespace) -> int:
    """Check for the packages that a command needs, then import its module and run it; return the exit status."""
    name = arguments.command
    for package in _PACKAGES.get(name, ()):
        require(package, extra=_EXTRAS.get(name, "demo"), purpose=f"`feedline {name}`")
    module = name.replace("-", "_")
    return importlib.import_module(f"feedline.tools.cli.{module}").run(arguments) or 0
