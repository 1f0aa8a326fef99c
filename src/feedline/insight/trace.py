"""Batch rows as a trace for Perfetto and chrome://tracing: who did what when, and what training waited for."""

from __future__ import annotations

from collections.abc import Iterator

from feedline.insight.attribution import Columns, causes_of
from feedline.types import JsonObject

_LOOP = 1
"""The training loop's thread id in the trace; workers have the ids after it."""


def trace_of(columns: Columns, *, in_order: bool = True) -> JsonObject:
    """Return a trace in Chrome's format, to be written as JSON. Its times are microseconds.

    Example:
        >>> from feedline.insight.batch_rows import columns_of, row
        >>> rows = [row(worker=0, began=1000, fetch=4000, finished=6000, came=7000, asked=3000, got=8000)]
        >>> [event["name"] for event in trace_of(columns_of(rows))["traceEvents"] if event["ph"] == "X"]
        ['wait', 'batch 0', 'fetch', 'write']
    """
    events = list(_names(sorted(set(columns["worker"].tolist()))))
    causes = causes_of(columns, in_order=in_order)
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    for place, values in enumerate(rows):
        one = dict(zip(columns, values, strict=True))
        waited = {cause: int(parts[place]) / 1e3 for cause, parts in causes.items() if parts[place]}
        events.extend(_of_batch(one, waited))
        events.extend(_of_way(one, place))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _names(workers: list[int]) -> Iterator[dict[str, object]]:
    yield {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "feedline"}}
    yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": _LOOP, "args": {"name": "training loop"}}
    for worker in workers:
        if worker >= 0:
            name = {"name": f"worker {worker}"}
            yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": _LOOP + 1 + worker, "args": name}


def _of_batch(one: dict[str, int], waited: dict[str, float]) -> Iterator[dict[str, object]]:
    details = {name: one[name] for name in ("epoch", "ordinal", "worker", "samples", "bytes")}
    wait = one["got"] - one["asked"]
    if one["body"] >= 0:
        yield _span("body", _LOOP, one["asked"] - one["body"], one["body"], {})
    if wait > 0:
        yield _span("wait", _LOOP, one["asked"], wait, {**details, "waited_us": waited})
    yield _count(one["asked"], one["behind"] + (one["finished"] <= one["asked"]))
    if not one["finished"]:
        return
    thread = _LOOP + 1 + one["worker"]  # the training loop's own for batches that it makes itself
    began, finished = one["began"], max(one["finished"], one["began"])
    yield _span(f"batch {one['ordinal']}", thread, began, finished - began, details)
    fetched = min(began + one["fetch"], finished)
    collated = min(fetched + one["collate"], finished)
    for name, begun, ended in (
        ("fetch", began, fetched),
        ("collate", fetched, collated),
        ("write", collated, finished),
    ):
        if ended > begun:
            has_transform = name == "fetch" and one["transform"]
            yield _span(
                name, thread, begun, ended - begun, {"transform_us": one["transform"] / 1e3} if has_transform else {}
            )


def _of_way(one: dict[str, int], number: int) -> Iterator[dict[str, object]]:
    """Yield the arrow from the worker to the training loop, and the span on the device."""
    if one["worker"] >= 0 and one["finished"] > one["began"] and one["got"] > one["asked"]:
        event = {"name": "batch", "cat": "batch", "pid": 1, "id": number}
        # Viewers attach an arrow to the spans that its ends lie in, so both ends are moved inside their spans.
        sent, met = one["finished"] - 1, min(max(one["asked"], one["came"], one["finished"]), one["got"] - 1)
        yield {**event, "ph": "s", "tid": _LOOP + 1 + one["worker"], "ts": sent / 1e3}
        yield {**event, "ph": "f", "bp": "e", "tid": _LOOP, "ts": met / 1e3}
    if one["device"] > 0:  # asynchronous events, because several batches overlap there and spans would have to nest
        event = {"name": f"device, batch {one['ordinal']}", "cat": "device", "pid": 1, "tid": 0, "id": number}
        yield {**event, "ph": "b", "ts": one["came"] / 1e3}
        yield {**event, "ph": "e", "ts": (one["came"] + one["device"]) / 1e3}


def _span(name: str, thread: int, begun: int, duration: int, details: JsonObject) -> dict[str, object]:
    return {"ph": "X", "name": name, "pid": 1, "tid": thread, "ts": begun / 1e3, "dur": duration / 1e3, "args": details}


def _count(at: int, ready: int) -> dict[str, object]:
    return {"ph": "C", "name": "batches ready", "pid": 1, "tid": 0, "ts": at / 1e3, "args": {"ready": ready}}
