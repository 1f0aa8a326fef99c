"""`feedline run`: a program that is not changed, with feedline's loader in the place of torch's."""

from __future__ import annotations

import argparse

from feedline.cli.script import Script
from feedline.loader.install import install


def run(arguments: argparse.Namespace) -> None:
    """Run the program; it ends as it would have ended by itself."""
    script = Script.of(arguments)
    with install():
        script.run()
