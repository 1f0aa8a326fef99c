"""The command line: commands, their arguments, and exit codes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from feedline.tools.cli import main
from feedline.tools.cli.doctor import SERIOUS


def lines() -> list[str]:
    """Return a line for each command, argument and exit code."""
    parser = main.build_parser()
    (choices,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    found = [f"feedline {line}" for line in _arguments(parser)]
    for name, command in choices.choices.items():
        found += [f"feedline {name}", *(f"feedline {name} {line}" for line in _arguments(command))]
        if command.epilog and "xit code" in command.epilog:
            found.append(f"feedline {name}: {command.epilog}")
    found += ["exit code 0: success", "exit code 1: an error that feedline explains", "exit code 2: a wrong option"]
    found += ["exit code 130: Ctrl-C", f"exit code {SERIOUS}: feedline doctor found something serious"]
    found += [f"exit code {code}: a dataset fails: {reason}" for reason, code in main.FAILED.items()]
    return sorted(found)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)):
            continue
        default = None if action.default == argparse.SUPPRESS else action.default
        spelling = ", ".join(action.option_strings) or f"[{action.dest}]"
        choices = "" if action.choices is None else f" {{{','.join(map(str, action.choices))}}}"
        count = {None: "one value", 0: "no value", "?": "at most one value"}.get(action.nargs, f"values {action.nargs}")
        yield f"{spelling}: {count}{choices}, default {default!r}"
