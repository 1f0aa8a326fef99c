"""`feedline run`: run an unchanged program with feedline's loader in place of torch's."""

from __future__ import annotations

import argparse

from feedline.tools.cli.script import Script, add_program, installed


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    add_program(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the program; it ends as it would have ended by itself."""
    script = Script.of(arguments)
    with installed():
        script.run()
