"""Writes the parts of reference pages that follow from the code: `python -m docs.building.tables`.

Options come from signatures and docstrings, commands from argparse. A test compares the pages with the code.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).resolve().parents[1] / "reference"
COUNTERPARTS = {
    "workers": "num_workers",
    "prefetch": "prefetch_factor",
    "timeout_s": "timeout",
    "persistent": "persistent_workers",
    "start_method": "multiprocessing_context",
    "worker_init": "worker_init_fn",
}
"""Options of `Loader` that have another name in `DataLoader`."""


def arguments_of(docstring: str) -> dict[str, str]:
    """Return what a docstring says of each argument, on one line each."""
    match = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", docstring, re.MULTILINE | re.DOTALL)
    assert match is not None
    found = re.findall(r"^    (\w+): (.*?)(?=^    \w|\Z)", match[1], re.MULTILINE | re.DOTALL)
    return {name: " ".join(text.split()) for name, text in found}


def options_of(loader: type) -> dict[str, tuple[str, str]]:
    """Return the options of a loader: the default, and the meaning."""
    texts = arguments_of(inspect.getdoc(loader) or "")
    parameters = list(inspect.signature(loader).parameters.values())
    assert {one.name for one in parameters} == set(texts), "the docstring lists other arguments than the signature"
    options = {}
    for one in parameters:
        default = "required" if one.default is inspect.Parameter.empty else f"`{one.default!r}`".replace("'", '"')
        meaning = re.sub(r" Default: [^ ]+\.$", "", texts[one.name])
        options[one.name] = default, meaning[0].upper() + meaning[1:]
    return options


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    cells = [tuple(one.replace("|", "\\|") for one in row) for row in (head, *rows)]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(cells[0]), *lines[1:]])


def drop_in_options() -> str:
    """Return the table of `DataLoader`."""
    import torch.utils.data

    from feedline import DataLoader

    torchs = inspect.signature(torch.utils.data.DataLoader).parameters
    origin = {"snapshot_every_n_steps": "torchdata", **dict.fromkeys(torchs, "torch")}
    rows = [
        (f"`{name}`", default, origin.get(name, "feedline"), meaning)
        for name, (default, meaning) in options_of(DataLoader).items()
    ]
    return table(("option", "default", "from", "meaning"), rows)


def neutral_options() -> str:
    """Return the table of `Loader`: its page in the reference says what each option means."""
    from feedline import DataLoader, Loader

    others = options_of(DataLoader)
    rows = []
    for name, (default, _) in options_of(Loader).items():
        counterpart = COUNTERPARTS.get(name, name)
        assert counterpart in others
        rows.append((f"`{name}`", default, f"`{counterpart}`"))
    return table(("option", "default", "in `DataLoader`"), rows)


def commands() -> str:
    """Return every command: what it does, how it is called, its options."""
    from feedline.tools.cli.main import build_parser

    os.environ["COLUMNS"] = "100"  # argparse wraps usage lines at the width of the terminal
    parser = build_parser()
    (choices,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    summaries = {one.dest: one.help or "" for one in choices._choices_actions}
    return "\n\n".join(_command(name, one, summaries[name]) for name, one in choices.choices.items())


def _command(name: str, parser: argparse.ArgumentParser, summary: str) -> str:
    usage = re.sub(r"^(usage: |       )", "", parser.format_usage(), flags=re.MULTILINE).rstrip()
    text = parser.description or f"{summary[0].upper()}{summary[1:]}."
    parts = [f"## feedline {name}", text, f"```text\n{usage}\n```"]
    rows = []
    for action in parser._actions:
        if action.help is argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        rows.append((_spelling(parser, action), _help(parser, action)))
    if rows:
        parts.append(table(("argument", "meaning"), rows))
    if parser.epilog:
        parts.append(parser.epilog)
    return "\n\n".join(parts)


def _spelling(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    values = parser._get_formatter()._format_args(action, _metavar(action)) if action.nargs != 0 else ""
    if not action.option_strings:
        return f"`{values}`"
    return ", ".join(f"`{f'{one} {values}'.rstrip()}`" for one in action.option_strings)


def _metavar(action: argparse.Action) -> str:
    if action.choices is not None:
        return "{" + ",".join(str(one) for one in action.choices) + "}"
    return action.dest.upper() if action.option_strings else action.dest


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = parser._get_formatter()._expand_help(action)
    return text[0].upper() + text[1:] + "."


# Any: what a part returns is text; mypy knows no functions by name.
PARTS: dict[str, dict[str, Callable[[], Any]]] = {
    "options.md": {"drop-in": drop_in_options, "neutral": neutral_options},
    "command-line.md": {"commands": commands},
}
"""Generated parts of each page, by name."""


def current(page: str) -> str:
    """Return a page with its generated parts as they should be."""
    text = (REFERENCE / page).read_text("utf-8")
    for name, make in PARTS[page].items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        assert found, f"{page} has no part {name!r}"
        text = f"{before}{begin}\n\n{make()}\n\n{end}{after}"
    return text


def main() -> None:
    """Write all generated parts."""
    for page in PARTS:
        (REFERENCE / page).write_text(current(page), "utf-8")
        sys.stdout.write(f"wrote {page}\n")


if __name__ == "__main__":
    main()
