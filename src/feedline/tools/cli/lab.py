"""`feedline lab`: a local page that shows a loader at work, or the same page as a file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from urllib.parse import urlencode

from feedline.datasets.derived.objects import check_name
from feedline.errors import BadOption
from feedline.system.files import make_folder_for
from feedline.tools.lab.server import exported, serve
from feedline.tools.lab.views import VIEWS, your_dataset
from feedline.tools.measure import rows


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.add_argument(
        "what", nargs="?", metavar="module:dataset", help="your dataset or loader, which the page shows first"
    )
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (a free one)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument(
        "--export", type=Path, metavar="LAB.html", help="write one file with recorded runs instead (takes some minutes)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Serve the lab until Ctrl-C, or write it to a file."""
    if arguments.export is None:
        if arguments.what:
            check_name(arguments.what)
        shown = f"{your_dataset.VIEW.name}?{urlencode({'source': arguments.what})}" if arguments.what else ""
        serve(VIEWS, port=arguments.port, open_browser=not arguments.no_browser, shown=shown)
        return
    if arguments.what is not None:
        raise BadOption("An exported lab contains only recorded runs of examples. Leave out the dataset or --export.")
    make_folder_for(arguments.export)
    count = sum(len(view.presets) for view in VIEWS)
    with rows.progress(count) as on_run:
        page = exported(VIEWS, on_run)
    arguments.export.write_text(page, "utf-8")
    sys.stdout.write(f"{arguments.export}\n")
