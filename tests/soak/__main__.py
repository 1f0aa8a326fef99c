"""The command line of the soak."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.soak import report
from tests.soak.settings import CONFIGURATIONS, Settings
from tests.soak.trial import Trial

_LINE_EVERY_S = 60.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description="Trains for hours with faults, kills the programs and resumes them, and says whether memory, "
        "descriptors and threads stayed flat and every sample came once per epoch in the seeded order.",
    )
    parser.add_argument("--hours", type=float, default=2.0, help="how long, 0.05 to try it (2)")
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="folder for the result (build/soak)")
    parser.add_argument("--seed", type=int, help="from which faults and kills are drawn; another one every time")
    parser.add_argument("--resumes", type=int, default=10, help="how often each program is killed and resumed (10)")
    parser.add_argument("--size", type=int, default=1200, help="samples of a dataset (1200)")
    parser.add_argument("--step", type=float, default=0.005, metavar="SECONDS", help="time of a training step (0.005)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a soak; return the exit status."""
    options = _parser().parse_args(argv)
    folder = options.out.resolve()
    if any(Path(folder, name).exists() for name in CONFIGURATIONS):
        sys.stderr.write(f"{options.out} has the results of another soak. Give another folder, or remove it.\n")
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    settings = Settings(
        seed=random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed,
        folder=str(folder),
        hours=options.hours,
        resumes=options.resumes,
        size=options.size,
        step_s=options.step,
    )
    os.environ["FEEDLINE_CACHE"] = str(folder / "cache")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # also ends the programs
    return _soak(settings)


def _soak(settings: Settings) -> int:
    from tests.soak.data import prepare  # imports torch: not before the options are known to be right

    sys.stderr.write(f"seed {settings.seed}, results in {settings.folder}\n")
    prepare(settings)
    trials = [Trial(settings, name) for name in settings.configurations]
    over = threading.Event()
    with ThreadPoolExecutor(len(trials) + 1) as pool:
        shown = pool.submit(_show, trials, settings, over)
        futures = [pool.submit(trial.run) for trial in trials]
        try:
            for future in futures:
                future.exception()
        finally:
            over.set()
            for trial in trials:
                trial.stop()
        shown.result()
    results = [trial.result for trial in trials]
    report.write(settings, results)
    sys.stdout.write(report.as_text(settings, results))
    return 0 if report.as_json(settings, results)["ok"] else 1


def _show(trials: Sequence[Trial], settings: Settings, over: threading.Event) -> None:
    """Print a line about all programs at intervals, and keep the result files up to date."""
    begun = time.monotonic()
    while not over.wait(_LINE_EVERY_S):
        results = [trial.result for trial in trials]
        done = min(1.0, (time.monotonic() - begun) / max(1.0, settings.seconds))
        parts = [f"{one.name} {one.steps:,} steps, {one.kills} kills, {len(one.problems)} problems" for one in results]
        sys.stderr.write(f"{done:4.0%}  {'; '.join(parts)}\n")
        report.write(settings, results)


if __name__ == "__main__":
    sys.exit(main())
