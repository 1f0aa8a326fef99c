"""One sentence: is the training loop waiting for data, for what, and how many workers would change that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from feedline.observe.histogram import Spread
from feedline.observe.period import Period
from feedline.values.shown import counted, percent

SLIGHT = 0.05
"""Share of the time below which waiting does not matter. A guess."""
FEW = 10
"""Batches after which something can be said. A guess."""
_HEADROOM = 1.05
"""Workers are to have a little less to do than they could: batches do not take equally long."""


def verdict_of(period: Period, *, worker_count: int, cores: int = 0) -> str:
    """Say in one sentence what the training loop waits for.

    Args:
        period: what was measured.
        worker_count: how many workers there are; 0 if the training loop makes batches itself.
        cores: how many cores this program may use; 0 if that is not known.

    Example:
        >>> from feedline.observe.histogram import Spread
        >>> waits = {"fetch": 4.1}
        >>> body = Spread(count=99, mean=0.059, p50=0.059, p90=0.059, p99=0.059)
        >>> slow = Period(100, 3200, 10.0, 0.41, waits=waits, body=body, worker_utilisation=[0.95, 0.95])
        >>> print(verdict_of(slow, worker_count=2))
        data-bound: training waited 41 % of the time, mostly for fetch; 4 workers would remove it
    """
    if not period.batches:
        return "nothing to say yet: no batch was delivered"
    start_s = period.waits.get("start", 0.0)
    if period.batches < FEW:
        return (
            f"too early to say: {counted(period.batches, 'batch', 'batches')} in {_time(period.seconds)}, "
            f"of which {_time(period.start_s)} until the first"
        )
    steady_s = max(period.seconds - start_s, 1e-9)
    stall = min(1.0, (period.wait_s - start_s) / steady_s)
    if start_s > 0.5 * period.seconds:
        keep = "keep the workers from epoch to epoch (persistent_workers=True), or " if worker_count else ""
        return (
            f"start-bound: starting took {percent(start_s / period.seconds)} of the time; {keep}make the dataset "
            f"quicker to open; afterwards training waited {percent(stall)} of the time"
        )
    needed = needed_workers(period)
    if stall < SLIGHT:
        ready = f"compute-bound: data was ready {percent(1 - stall, digits=1)} of the time"
        if not worker_count:
            return f"{ready}; no workers are needed"
        if needed is not None and needed < worker_count:
            return f"{ready}; {counted(needed, 'worker')} would do"
        return f"{ready}, and {counted(worker_count, 'worker is', 'workers are')} about as many as it takes"
    waits = {name: waited for name, waited in period.waits.items() if name != "start"}
    cause = max(waits, key=waits.__getitem__)
    what, remedy = _REMEDIES.get(cause, (f"for {_what(period, cause)}", ""))
    if cause == "order":
        what += _straggling(period)
    if not remedy or (cause == "order" and (needed is None or needed > worker_count)):
        remedy = _workers(needed, worker_count, cores)
    return f"data-bound: training waited {percent(stall)} of the time, mostly {what}; {remedy}"


_REMEDIES = {
    "slot": (
        "for slots: the program holds batches, and the memory for them is used up",
        "drop them sooner, or raise memory_budget",
    ),
    "order": (
        "for a late batch while later ones were ready",
        "in_order=False delivers those first, seed= lets idle workers take over late work, more workers or a larger "
        "prefetch_factor bridge it",
    ),
    "transfer": (
        "for batches on their way from the workers",
        "larger batches help, and cores that the training process does not share with workers",
    ),
    "device": (
        "for the device: batches come to it too late",
        "pin_memory=True and fewer bytes per batch help, more workers do not",
    ),
    "deliver": (
        "for the training process itself, which unpacks and prepares batches or draws indices",
        "more workers would not help",
    ),
}
"""What is said of a cause, and what would help. Where samples are late because workers are few, that comes first."""


# Any: the settings of a loader, as `Stats` has them.
def cores_of(settings: Mapping[str, Any]) -> int:
    """Return how many cores a loader's rank has; 0 if that is not known.

    Example:
        >>> cores_of({"cores": 16, "local_ranks": 8}), cores_of({})
        (2, 0)
    """
    cores = int(settings.get("cores") or 0)
    return max(1, cores // int(settings.get("local_ranks") or 1)) if cores else 0


def needed_workers(period: Period) -> int | None:
    """Return how many workers make batches as fast as the training loop can take them; None if no number does."""
    # What the training process does about a batch itself stays, however many workers there are.
    own_s = sum(period.waits.get(cause, 0.0) for cause in ("deliver", "device")) / period.batches
    step_s = period.body.mean + own_s
    if step_s < 0.01 * period.busy_s:
        return None
    return max(1, math.ceil(period.busy_s * _HEADROOM / max(step_s, 1e-9)))


def _workers(needed: int | None, worker_count: int, cores: int) -> str:
    if needed is None:
        return "the loop does next to nothing with a batch, so no number of workers would remove it"
    if needed <= worker_count:
        return (
            "there are enough workers on average, but batches come in bursts: a larger prefetch_factor evens that out"
        )
    told = f"{counted(needed, 'worker')} would remove it"
    if 0 < cores < needed:
        told += (
            f" if they wait for storage; if they compute, the {counted(cores, 'core')} of this program are "
            "too few, and it has to become cheaper"
        )
    return told


def _what(period: Period, cause: str) -> str:
    """Name the cause, and what workers were at if none was free; for fetch, the stage of the user's own that it is."""
    stages = {name: spread.mean * spread.count for name, spread in period.stages.items()}
    if cause == "queue":
        made = {name: stages.get(name, 0.0) for name in ("fetch", "transform", "collate", "write")}
        return f"queue: no worker was free, most were at {_what(period, max(made, key=made.__getitem__))}"
    named = {name: spent for name, spent in stages.items() if name not in _KNOWN}
    if cause == "fetch" and named:
        slowest = max(named, key=named.__getitem__)
        if named[slowest] > 0.5 * stages.get("fetch", 0.0):
            return slowest
    return cause


_KNOWN = ("wait", "fetch", "transform", "collate", "write", "transfer", "device")


def _straggling(period: Period) -> str:
    fetch = period.stages.get("fetch", Spread())
    if fetch.p50 > 0 and fetch.p99 > 4 * fetch.p50:
        return f" (a slow fetch takes {fetch.p99 / fetch.p50:.0f} times as long as most; see slowest_samples)"
    return ""


def _time(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
