"""The suite of `feedline.testing` passes for the scheduler that the examples show."""

from __future__ import annotations

import runpy
from pathlib import Path

from feedline.abc import Scheduler
from feedline.testing import SchedulerContract

EXAMPLE = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples" / "own_scheduler.py"))


class TestAffinity(SchedulerContract):
    def make_scheduler(self) -> Scheduler:
        scheduler: Scheduler = EXAMPLE["Affinity"]()
        return scheduler
