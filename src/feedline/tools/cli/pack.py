"""`feedline pack`: write a dataset in a format that reads fast, with a progress bar."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text

from feedline.tools.packing import Packed, Stage, pack
from feedline.tools.packing.output import WorkFolder
from feedline.types.shown import counted, printable
from feedline.types.sizes import bytes_text
from feedline.types.terminal import plain_console, plain_progress

_REASONS_SHOWN = 10


def run(arguments: argparse.Namespace) -> None:
    """Pack, and write a summary and the line that reads the output to standard output.

    Raises BadOption: an option cannot work; SourceError: there is no such source; PackError: packing failed.
    """
    try:
        packed = _packed(arguments)
    except KeyboardInterrupt:
        sys.stderr.write(printable(f"feedline: {interruption_of(Path(arguments.out))}\n"))
        raise
    sys.stdout.write(printable(summary_of(packed, is_checked=not arguments.no_verify)))


def _packed(arguments: argparse.Namespace) -> Packed:
    with Bar(quiet=arguments.quiet) as bar:
        return pack(
            arguments.source,
            arguments.out,
            format=arguments.format,
            workers=arguments.workers,
            fields=arguments.fields,
            encode=arguments.encode,
            resize=arguments.resize,
            quality=arguments.quality,
            ragged=arguments.ragged or (),
            samples_per_shard=arguments.samples_per_shard,
            shard_bytes=arguments.shard_size,
            compression=arguments.compression,
            on_error=arguments.on_error,
            overwrite=arguments.overwrite,
            restart=arguments.restart,
            verify=not arguments.no_verify,
            report=bar.show,
        )


def interruption_of(out: Path) -> str:
    """Return the message for an interrupted run: whether the next run can resume it."""
    if WorkFolder.is_left(out):
        return "Interrupted. Run the same command again to resume after the last complete shard."
    return "Interrupted before a shard was complete. Run the same command again to start over."


def summary_of(packed: Packed, *, is_checked: bool) -> str:
    """Return the result as text for people."""
    made = packed.count - packed.resumed
    rate = f", {made / packed.seconds:,.0f} samples/s" if packed.seconds > 0 else ""
    lines = [
        f"{packed.path}: {packed.count:,} samples, {bytes_text(packed.size)} of {packed.format}",
        f"{made:,} samples in {packed.seconds:.1f} s{rate}"
        + (f"; {packed.resumed:,} were packed by the interrupted run" if packed.resumed else "")
        + ("; all were read back" if is_checked else "; not read back"),
    ]
    if packed.skipped:
        shown = packed.reasons[:_REASONS_SHOWN]
        lines.append(f"{packed.skipped:,} sample{'s were' if packed.skipped > 1 else ' was'} left out:")
        lines += [f"  {reason}" for reason in shown]
        if packed.skipped > len(shown):
            lines.append(f"  ... and {packed.skipped - len(shown):,} more")
    if packed.left_out:
        lines.append(f"{counted(packed.left_out, 'other file')} in the folder did not look like a sample: not packed")
    return "\n".join([*lines, "", "Read it with:", f"  {packed.line}", ""])


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f} samples/s")


class Bar:
    """A progress bar per stage, on standard error; a context manager."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
        console = console or plain_console(stderr=True)
        self._progress = plain_progress(*columns, console=console, refresh_per_second=4, transient=True, disable=quiet)
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, stage: Stage) -> None:
        """Show the progress; called by `pack`."""
        if stage.name not in self._tasks:
            # Start at the samples of an earlier run, which do not count towards the speed of this one.
            self._tasks[stage.name] = self._progress.add_task(stage.name, total=stage.total, completed=stage.done)
        self._progress.update(self._tasks[stage.name], completed=stage.done)
