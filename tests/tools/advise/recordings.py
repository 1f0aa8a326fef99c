"""Made-up recordings: each task goes to the first free worker, and durations are random."""

import json
import random
from pathlib import Path
from unittest import mock

import numpy as np

from feedline.insight.batch_rows import COLUMNS, Row, delivered_columns, row
from feedline.insight.recording import EpochSpan, Recording
from feedline.tools.advise import what_if
from feedline.tools.advise.page import contents, page_of

MS = 1_000_000
BEGUN = 10**15


def recording_of(
    batches: int, *, workers: int = 4, make_ms: float = 60, step_ms: float = 12, slow: float = 0.01
) -> Recording:
    """Return a recording as of a loader with that many workers, each of which prefetches two batches.

    Args:
        batches: of the only epoch.
        workers: at least one.
        make_ms: about how long a batch takes.
        step_ms: about how long a training step takes.
        slow: the share of batches that take four times as long.
    """
    dice = random.Random(batches)
    free = [BEGUN + 80 * MS + worker * 9 * MS for worker in range(workers)]

    def make(given: int) -> dict[str, int]:
        worker = min(range(workers), key=free.__getitem__)
        began = max(free[worker], given + 20_000)
        fetch = int(make_ms * MS * (0.7 + 0.6 * dice.random()) * (4 if dice.random() < slow else 1))
        collate = fetch // 10
        free[worker] = finished = began + fetch + collate + 30_000
        stages = {"fetch": fetch, "transform": fetch * 2 // 5, "collate": collate, "write": 30_000}
        moments = {"given": given, "began": began, "finished": finished, "came": finished + 90_000}
        return {"worker": worker, **stages, **moments}

    window = 2 * workers
    tasks = [make(BEGUN) for _ in range(min(window, batches))]
    rows: list[Row] = []
    now, known = BEGUN, set[int]()
    for ordinal in range(batches):
        task = tasks[ordinal]
        behind = sum(other["came"] <= now for other in tasks[ordinal + 1 : ordinal + window])
        got = max(now, task["came"]) + 60_000
        first, body = int(task["worker"] not in known), now - rows[-1][COLUMNS.index("got")] if rows else -1
        known.add(task["worker"])
        facts = {"ordinal": ordinal, "samples": 32, "bytes": 32 * 150_528, "behind": behind, "first": first}
        rows.append(row(**facts, asked=now, got=got, body=body, **task))
        if len(tasks) < batches:
            tasks.append(make(got))
        now = got + int(step_ms * MS * (0.9 + 0.2 * dice.random()))
    columns = delivered_columns(rows)
    at = np.linspace(BEGUN, now, 50).tolist()
    return Recording(
        settings={
            **{"engine": "process", "workers": workers, "prefetch": 2, "batch_size": 32, "in_order": True},
            **{"cores": 16, "local_ranks": 2},
        },
        environment={"feedline": "0.0"},
        started=1.79e9,
        epochs=[EpochSpan(0, BEGUN, 30 * MS, 0)],
        rows=columns,
        system={"at": at, "memory": [4e8] * 50, "worker_memory": [9e8 + 1e6 * place for place in range(50)]},
        counters={"workers": workers, "batches": batches},
    )


def everything_of(path: Path) -> str:
    """Do everything that `feedline report` does with a file, with few simulated batches; return the run's figures."""
    recording = Recording.load(path)
    with mock.patch.object(what_if, "GRID_BATCHES", 10):
        page_of(contents(recording))
    json.dumps(recording.chrome_trace(), default=str)
    return str(recording.stats())
