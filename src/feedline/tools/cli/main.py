"""Hand over to one command, and say what became of it."""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings
from collections.abc import Sequence

from feedline.errors import DatasetFailed, FeedlineError
from feedline.system.optional import require
from feedline.tools.cli.parser import build_parser
from feedline.types.shown import printable

FAILED = {"import": 4, "raises": 5, "hangs": 6, "crashes": 7, "empty": 8}
"""Exit codes, by why a dataset could not be tried. 1 is any other error that feedline explains, 2 a wrong option."""
_TRYING = ("bench", "doctor", "tune")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0, 1 for an error feedline explains, 130 after Ctrl-C.

    `feedline doctor` has one more, `SERIOUS`, and commands that try datasets have those of `FAILED`.
    """
    arguments = build_parser().parse_args(argv)
    formatwarning = warnings.formatwarning
    warnings.formatwarning = lambda *told, **more: printable(formatwarning(*told, **more))
    try:
        return _run(arguments)
    except FeedlineError as error:
        text, status = str(error), 1
        if isinstance(error, DatasetFailed) and arguments.command in _TRYING:
            sys.stderr.write(printable(f"{error.traceback.rstrip()}\n\n".lstrip()))
            status = FAILED[error.reason]
        if hasattr(arguments, "fields"):  # sources call the option as it is called in Python
            text = text.replace("with fields=", "with --fields (fields=)")
        sys.stderr.write(printable(f"feedline: {text}\n"))
        return status
    except KeyboardInterrupt:
        return 130
    finally:
        warnings.formatwarning = formatwarning


_PACKAGES = {
    "demo": ("rich", "PIL", "torch"),
    "bench": ("rich", "PIL", "torch"),
    "lab": ("rich", "starlette", "uvicorn", "torch"),
    "pack": ("rich",),
    "profile": ("torch",),
    "run": ("torch",),
    "tune": ("rich", "torch"),
}
"""What a command needs, the lightest first: whoever lacks Rich learns it before torch was loaded for nothing. Others
ask for what draws their tables by themselves."""


_EXTRAS = {"lab": "lab", "pack": "pack", "profile": "torch", "run": "torch"}


def _run(arguments: argparse.Namespace) -> int:
    """Import the module of a command, now that what it needs is known to be there, and run it; returns the status."""
    name = arguments.command
    for package in _PACKAGES.get(name, ()):
        require(package, extra=_EXTRAS.get(name, "demo"), purpose=f"`feedline {name}`")
    module = name.replace("-", "_")
    return importlib.import_module(f"feedline.tools.cli.{module}").run(arguments) or 0
