"""`feedline report`: render a recording as a page, and write what it shows in short to standard output."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from feedline.errors import BadOption
from feedline.insight.recording import Recording
from feedline.system.files import make_folder_for
from feedline.system.shown import printable
from feedline.tools.advise.page import contents, page_of, text_of


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.add_argument("file", type=Path, metavar="RUN.json", help="a recording that feedline.record wrote")
    parser.add_argument("-o", "--out", type=Path, metavar="PAGE.html", help="the page (default: beside the recording)")
    parser.add_argument("--trace", type=Path, metavar="TRACE.json", help="also write a trace for ui.perfetto.dev")


def run(arguments: argparse.Namespace) -> None:
    """Write the page beside the recording or to the file given by `-o`, and a trace to the file given by `--trace`."""
    recording = Recording.load(arguments.file)
    name = arguments.file.name.removesuffix(".gz").removesuffix(".json")  # several recordings: run.1.json, run.2.json
    out: Path = arguments.out or arguments.file.with_name(f"{name}.html")
    if arguments.file in (out, arguments.trace):
        raise BadOption(f"{arguments.file} is the recording itself. Give another file, with -o or --trace.")
    if arguments.out is None and not _is_page(out):
        raise BadOption(f"{out} exists already, and is not a page of feedline. Give another file with -o.")
    if out == arguments.trace:
        raise BadOption(f"{out} cannot be both the page and the trace. Give another file, with -o or --trace.")
    shown = contents(recording)
    files = {out: page_of(shown)}
    if arguments.trace is not None:
        files[arguments.trace] = json.dumps(recording.chrome_trace(), default=str)
    for path, text in files.items():
        make_folder_for(path)
        try:
            path.write_text(text, "utf-8")
        except OSError as exc:
            raise BadOption(f"{path} could not be written: {exc.strerror or exc}. Give another file.") from exc
    paths = "\n".join(str(path) for path in files)
    sys.stdout.write(printable(f"{text_of(shown)}\n\n{paths}\n"))


def _is_page(path: Path) -> bool:
    """True if a page of feedline is there, or nothing."""
    if not path.exists():
        return True
    with open(path, "rb") as file:
        return b"<title>feedline" in file.read(1024)
