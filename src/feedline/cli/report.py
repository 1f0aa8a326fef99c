"""`feedline report`: a recording as a page to look at, and its verdict on standard output."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from feedline.errors import BadOption
from feedline.observe.recording import Recording
from feedline.report import page_of
from feedline.tune.diagnosis import diagnose_recording
from feedline.values.shown import printable


def run(arguments: argparse.Namespace) -> None:
    """Write the page beside the recording, or where `-o` says, and a trace where `--trace` says."""
    recording = Recording.load(arguments.file)
    name = arguments.file.name.removesuffix(".gz").removesuffix(".json")  # several recordings: run.1.json, run.2.json
    out: Path = arguments.out or arguments.file.with_name(f"{name}.html")
    if arguments.file in (out, arguments.trace):
        raise BadOption(f"{arguments.file} is the recording itself. Give another file, with -o or --trace.")
    if out == arguments.trace:
        raise BadOption(f"{out} cannot be both the page and the trace. Give another file, with -o or --trace.")
    files = {out: page_of(recording, [str(finding) for finding in diagnose_recording(recording)])}
    if arguments.trace is not None:
        files[arguments.trace] = json.dumps(recording.chrome_trace(), default=str)
    for path, text in files.items():
        try:
            path.write_text(text, "utf-8")
        except OSError as exc:
            raise BadOption(f"{path} could not be written: {exc.strerror or exc}. Give another file.") from exc
    told = "\n".join([recording.stats().verdict, *(str(path) for path in files)])
    sys.stdout.write(printable(f"{told}\n"))
