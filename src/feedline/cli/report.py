"""`feedline report`: a recording as a page to look at, and its verdict on standard output."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from feedline.errors import BadOption
from feedline.observe.recording import Recording
from feedline.report import page_of
from feedline.tune.diagnosis import diagnose_recording
from feedline.values.shown import printable


def run(arguments: argparse.Namespace) -> None:
    """Write the page beside the recording, or where `-o` says."""
    recording = Recording.load(arguments.file)
    out: Path = arguments.out or arguments.file.with_name(arguments.file.name.partition(".")[0] + ".html")
    page = page_of(recording, [str(finding) for finding in diagnose_recording(recording)])
    try:
        out.write_text(page, "utf-8")
    except OSError as exc:
        raise BadOption(
            f"The page could not be written to {out}: {exc.strerror or exc}. Give another file with -o."
        ) from exc
    sys.stdout.write(printable(f"{recording.stats().verdict}\n{out}\n"))
