"""Traces for Perfetto."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.insight.batch_rows import columns_of, row
from feedline.insight.trace import trace_of

ONE = {"began": 1000, "fetch": 4000, "transform": 1000, "collate": 500, "finished": 6000, "came": 7000}


def test_stages_are_inside_their_batch_on_the_track_of_its_worker() -> None:
    rows = [row(worker=1, ordinal=5, asked=3000, got=8000, body=2000, **ONE)]
    trace = trace_of(columns_of(rows))
    spans = {event["name"]: event for event in trace["traceEvents"] if event["ph"] == "X"}
    assert set(spans) == {"body", "wait", "batch 5", "fetch", "collate", "write"}
    batch = spans["batch 5"]
    for name in ("fetch", "collate", "write"):
        assert spans[name]["tid"] == batch["tid"]
        assert batch["ts"] <= spans[name]["ts"]
        assert spans[name]["ts"] + spans[name]["dur"] <= batch["ts"] + batch["dur"]
    assert spans["body"]["ts"] + spans["body"]["dur"] == spans["wait"]["ts"]
    assert sum(spans["wait"]["args"]["waited_us"].values()) == pytest.approx(spans["wait"]["dur"])
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert names[batch["tid"]] == "worker 1"
    assert names[spans["wait"]["tid"]] == "training loop"


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 10_000), min_size=8, max_size=8), max_size=5))
def test_spans_are_always_nested_or_disjoint(moments: list[list[int]]) -> None:
    names = ("asked", "got", "began", "fetch", "collate", "finished", "came", "device")
    rows = [row(worker=place, **dict(zip(names, values, strict=True))) for place, values in enumerate(moments)]
    lanes: dict[int, list[tuple[float, float]]] = {}
    for event in trace_of(columns_of(rows))["traceEvents"]:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            lanes.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for worker, spans in lanes.items():
        for first, second in itertools.combinations(sorted(spans, key=lambda span: (span[0], -span[1])), 2):
            assert worker == 1 or second[0] >= first[1] - 1e-6 or second[1] <= first[1] + 1e-6
