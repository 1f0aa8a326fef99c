"""Traces for Perfetto."""

from __future__ import annotations

import json

import pytest

from feedline.observe.batch_rows import columns_of, row
from feedline.observe.trace import trace_of

ONE = {"began": 1000, "fetch": 4000, "transform": 1000, "collate": 500, "finished": 6000, "came": 7000}


def test_every_stage_lies_inside_of_its_batch_on_the_line_of_its_worker() -> None:
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


def test_without_workers_all_is_on_one_line() -> None:
    rows = [row(worker=-1, asked=1000, got=8000, **ONE)]
    spans = [event for event in trace_of(columns_of(rows))["traceEvents"] if event["ph"] == "X"]
    assert len({event["tid"] for event in spans}) == 1


def test_a_trace_is_json_also_of_nothing() -> None:
    assert json.loads(json.dumps(trace_of(columns_of([]))))["traceEvents"]
