"""`feedline run`: run an unchanged program with feedline's loader in place of torch's.

Processes that the program forks use feedline's loader, too. A spawned process starts afresh: multiprocessing sends it
preparation data, which it unpickles before it imports the program's own modules. Unpickling
that data installs feedline there as soon as torch is imported.
"""

from __future__ import annotations

import argparse
import multiprocessing.spawn
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from feedline.loader.install import install
from feedline.tools.cli.script import Script, add_program, install_with_torch


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    add_program(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the program; it ends as it would have ended by itself."""
    script = Script.of(arguments)
    with install(), _spawned_alike():
        script.run()


@contextmanager
def _spawned_alike() -> Iterator[None]:
    """Install feedline in every process that this one spawns, or starts through a fork server."""
    spawn: Any = multiprocessing.spawn  # a module, one function of which is replaced temporarily
    prepared = spawn.get_preparation_data
    # The data that is sent to a new process, by name. The process ignores names that it does not know.
    spawn.get_preparation_data = lambda name: {**prepared(name), "feedline": _Installs()}
    try:
        yield
    finally:
        spawn.get_preparation_data = prepared


class _Installs:
    """Installs feedline where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return install_with_torch, ()
