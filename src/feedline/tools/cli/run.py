"""`feedline run`: run an unchanged program with feedline's loader in place of torch's.

A program runs inside this process as `python program.py` or `python -m package.program` would run it. Processes that it
forks use feedline's loader, too. A spawned process starts afresh: multiprocessing sends it preparation data, which it
unpickles before it imports the program's own modules. Unpickling that data installs feedline there as soon as torch is
imported; importing this file does not import torch.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import multiprocessing.spawn
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from feedline.errors import BadOption
from feedline.system.optional import when_imported

_OURS = (os.path.dirname(__file__) + os.sep, "<frozen runpy>", runpy.__file__)
"""Files whose frames are not part of the program."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    add_program(parser)


def add_program(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a program: all that is left of the command line."""
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="train.py ARGUMENTS",
        help="a program and its arguments, as after `python`",
    )
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module")


def run(arguments: argparse.Namespace) -> None:
    """Run the program; it ends as it would have ended by itself."""
    script = Script(arguments)
    with installed():
        script.run()


class Script:
    """A program and its arguments.

    Raises:
        BadOption: no program was given, or it does not exist here.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.is_module = options.module is not None
        words: list[str] = options.module if self.is_module else options.program
        if words and words[0] == "--":  # it marks the end of feedline's own options
            words = words[1:]
        if not words:
            raise BadOption(
                f"No program was given. Write feedline {options.command} train.py --its arguments, or feedline "
                f"{options.command} -m package.train."
            )
        self.name, *self.arguments = words
        if not self.is_module and not Path(self.name).is_file():
            raise BadOption(f"There is no file {self.name} here ({os.getcwd()}). To run a module, use -m {self.name}.")

    def run(self) -> None:
        """Run the program. An uncaught exception is printed as Python prints it, without feedline's frames.

        Raises:
            SystemExit: the program exited, or ended with an exception.
        """
        before = sys.argv, list(sys.path)
        try:
            sys.argv = [self.name, *self.arguments]
            if self.is_module:
                sys.path.insert(0, os.getcwd())
                self._find()
                runpy.run_module(self.name, run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, str(Path(self.name).resolve().parent))
                runpy.run_path(self.name, run_name="__main__")
        except (SystemExit, KeyboardInterrupt, BadOption):
            raise
        except BaseException as exc:
            exc.with_traceback(_without_ours(exc))
            traceback.print_exception(exc)
            raise SystemExit(1) from None
        finally:
            sys.argv, sys.path[:] = before

    def _find(self) -> None:
        try:
            found = importlib.util.find_spec(self.name)
        except (ImportError, ValueError):  # raised for the package that should contain it
            found = None
        if found is None:
            raise BadOption(f"There is no module {self.name} here ({os.getcwd()}), nor among the installed ones.")
        if found.submodule_search_locations is not None and importlib.util.find_spec(f"{self.name}.__main__") is None:
            raise BadOption(
                f"{self.name} is a package without a module __main__, so it cannot be run. Name one of its modules: "
                f"-m {self.name}.train."
            )


@contextmanager
def installed() -> Iterator[None]:
    """Install feedline here and in every process that this one spawns, or starts through a fork server."""
    spawn: Any = multiprocessing.spawn  # a module, one function of which is replaced temporarily
    prepared = spawn.get_preparation_data
    # The data that is sent to a new process, by name. The process ignores names that it does not know.
    spawn.get_preparation_data = lambda name: {**prepared(name), "feedline": _Installs()}
    try:
        with importlib.import_module("feedline.loader.install").install():
            yield
    finally:
        spawn.get_preparation_data = prepared


class _Installs:
    """Installs feedline where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return install_with_torch, ()


def install_with_torch() -> None:
    """Install feedline as soon as the program imports torch; costs nothing if it does not."""
    when_imported("torch", lambda _: importlib.import_module("feedline.loader.install").install())


def _without_ours(exc: BaseException) -> TracebackType | None:
    """Return the frames from the program's first one on. Without one, return all, or none of a SyntaxError."""
    first = exc.__traceback__
    while first is not None and first.tb_frame.f_code.co_filename.startswith(_OURS):
        first = first.tb_next
    return first or (None if isinstance(exc, SyntaxError) else exc.__traceback__)
