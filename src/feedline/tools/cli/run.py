"""`feedline run`: a program that is not changed, with feedline's loader in the place of torch's.

Processes that the program forks have it, too. One that it spawns begins anew: multiprocessing sends it what to get
ready with, and reading that installs feedline as soon as torch is imported there, before the program's own modules are.
"""

from __future__ import annotations

import argparse
import multiprocessing.spawn
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from feedline.loader.install import install
from feedline.tools.cli.script import Script, install_with_torch


def run(arguments: argparse.Namespace) -> None:
    """Run the program; it ends as it would have ended by itself."""
    script = Script.of(arguments)
    with install(), _spawned_alike():
        script.run()


@contextmanager
def _spawned_alike() -> Iterator[None]:
    """Have feedline installed in every process that this one spawns, or has a fork server start."""
    spawn: Any = multiprocessing.spawn  # a module, of which a function is replaced for a while
    prepared = spawn.get_preparation_data
    # What is sent to a new process, by name: it leaves names alone that it does not know.
    spawn.get_preparation_data = lambda name: {**prepared(name), "feedline": _Installs()}
    try:
        yield
    finally:
        spawn.get_preparation_data = prepared


class _Installs:
    """Installs feedline where it is unpickled."""

    def __reduce__(self) -> Any:
        return install_with_torch, ()
