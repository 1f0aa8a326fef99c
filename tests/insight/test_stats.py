"""What `loader.stats()` returns."""

from __future__ import annotations

import json
import re

import numpy as np

from feedline.insight.histogram import Spread
from feedline.insight.stats import Period, SlowSample, Stats, WorkerMemory

SPREAD = Spread(100, 0.02, 0.01, 0.03, 0.2)
PERIOD = Period(
    batches=100,
    samples=3200,
    seconds=10.0,
    stall=3.5 / 9.5,
    start_s=0.5,
    waits={"start": 0.5, "fetch": 3.0, "deliver": 0.5},
    stages={"wait": SPREAD, "fetch": SPREAD, 'my "stage"': Spread(100, 0.001, 0.001, 0.001, 0.2)},
    body=SPREAD,
    worker_utilisation=[0.9, 0.8],
    prefetch_occupancy=1.5,
)
STATS = Stats(
    epoch=PERIOD,
    last_epoch=None,
    total=PERIOD,
    counters={"engine": "process", "workers": 2, "batches": 100, "failures": 0, "faults": {"skip": 3}},
    settings={"cores": 4},
    slowest_samples=(SlowSample(np.int64(7), 0.5, 1), SlowSample(("a", 3), 0.25, -1)),
    memory=(WorkerMemory(0, 300 << 20, 5 << 20),),
)


def test_the_verdict_covers_the_last_epoch_if_this_one_has_just_begun() -> None:
    assert STATS.verdict.startswith("data-bound: training waited 37 % of the time, mostly for fetch")
    begun = Stats(epoch=Period(2, 64, 0.1), last_epoch=PERIOD, total=PERIOD, counters={"workers": 2})
    assert begun.verdict.startswith("data-bound")


def test_as_dict_can_be_written_as_json() -> None:
    report = json.loads(json.dumps(STATS.as_dict()))
    assert report["epoch"]["stages"]["fetch"]["p99"] == 0.2
    assert report["epoch"]["samples_per_s"] == 320.0
    assert report["slowest_samples"][0] == {"index": 7, "seconds": 0.5, "worker": 1}
    assert report["slowest_samples"][1]["index"] == "('a', 3)"
    assert report["verdict"] == STATS.verdict


def test_flat_contains_only_numbers_by_name() -> None:
    flat = STATS.flat("loader/")
    assert flat["loader/epoch/waits/fetch"] == 3.0
    assert flat["loader/total/worker_utilisation/1"] == 0.8
    assert flat["loader/counters/faults/skip"] == 3
    assert all(type(value) in (int, float) for value in flat.values())
    assert STATS.flat("")["epoch/stall"] == 3.5 / 9.5


def test_the_table_shows_the_figures() -> None:
    text = str(STATS)
    assert text.startswith("process, 2 workers\n")
    assert " ".join(text.partition("\n\n")[0].split()).endswith(STATS.verdict)
    assert re.search(r"samples/s +320 +320", text)
    assert re.search(r"fetch +3.0 s +31.6 %", text)
    assert re.search(r"fetch +10 ms +30 ms +200 ms +20 ms", text)
    assert "slowest samples: " in text
    assert "0: 300 (+5)" in text
    assert "faults 3" in text
    assert "last epoch" not in text, "there was no last epoch"
    assert max(map(len, text.splitlines())) <= 100
    assert not [line for line in text.splitlines() if line != line.rstrip()]
