"""The verdict: whether the training loop waits for data, what to do about it, and the evidence.

Pure functions of measurements. The findings of `feedline.doctor` about a run are made from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from feedline.insight.batch_rows import STAGES
from feedline.insight.histogram import Spread
from feedline.insight.period import Period
from feedline.insight.worker_model import HANDOVER_S, Load
from feedline.system.shown import counted, percent

SLIGHT = 0.05
"""Share of the time below which waiting does not matter. A guess."""
FEW = 10
"""The fewest batches for a verdict. A guess."""
_CROWDED = 0.25
"""The cores are overloaded if batches spend more than this share of their time without one. A guess."""
SLEEPING = 0.25
"""Making a batch is mostly sleeping if it computes for less than this share of the time. A guess."""
_OWN = 0.5
"""Other programs use the cores if making batches keeps less than this share of them busy. A guess."""
_MOST_HANDOVER_S = 5 * HANDOVER_S
"""A handover that took longer was delayed by other programs on the cores; that is not its cost. A guess."""
_MANY = 2
"""Workers are too many if they are this many times the number needed. A guess."""
SLOW = "slow-samples"
_CLEARLY = 1.2
"""How many times as fast training must be without workers for the verdict to recommend that: rates are noisy."""


@dataclass(frozen=True)
class Verdict:
    """What the training loop waits for, what to do about it, and why."""

    problem: str
    remedy: str = ""
    """Empty if nothing can be said yet."""
    evidence: str = ""
    name: str = ""
    """The name of the finding about the number of workers, or about samples that are too slow for any; empty if the
    remedy is another."""
    workers: int | None = None
    """How many workers to use, if the remedy is to change their number."""

    def __str__(self) -> str:
        return ". ".join(filter(None, (self.problem, self.remedy, self.evidence)))


def judge(
    period: Period, *, worker_count: int, cores: int = 0, auto: str | None = None, moves: bool = False
) -> Verdict:
    r"""Return what the training loop waits for, what to do about it, and why.

    Args:
        period: the measurements.
        worker_count: the number of workers; 0 if the training loop makes batches itself.
        cores: how many cores this program may use; 0 if unknown.
        auto: with `num_workers="auto"`, "settled" or "searching"; None if the number was given.
        moves: True if idle workers already take over the work of late ones.

    Example:
        >>> from feedline.insight.histogram import Spread
        >>> waits = {"fetch": 4.1}
        >>> body = Spread(count=99, mean=0.059, p50=0.059, p90=0.059, p99=0.059)
        >>> busy = [0.95, 0.95]
        >>> slow = Period(100, 3200, 10.0, 0.41, waits=waits, body=body, worker_utilisation=busy, cpu_s=0.18)
        >>> print(*str(judge(slow, worker_count=2, cores=8)).split(". "), sep="\n")
        data-bound: training waited 41 % of the time, mostly for fetch
        Use 4 workers
        A batch takes 190 ms to make (95 % computing) and 59 ms to train on, with 2 workers on 8 cores.
    """
    if not period.batches:
        return Verdict("nothing to say yet: no batch was delivered")
    start_s, stall = period.starting_s, period.stall
    if period.batches < FEW:
        early = f"too early to say: {counted(period.batches, 'batch', 'batches')} in {_time(period.seconds)}"
        return Verdict(early, evidence=f"The first came after {_time(period.start_s)}.")
    if start_s > 0.5 * period.seconds:
        keep = "Keep the workers from epoch to epoch (persistent_workers=True), or make" if worker_count else "Make"
        return Verdict(
            f"start-bound: starting took {percent(start_s / period.seconds)} of the time",
            f"{keep} the dataset quicker to open",
            f"Afterwards training waited {percent(stall)} of the time.",
        )
    load = load_of(period, cores)
    evidence = _evidence(period, load, worker_count, cores)
    if stall < SLIGHT:
        ready = f"compute-bound: data was ready {percent(1 - stall, digits=1)} of the time"
        fewest = min(load.fewest(), worker_count)
        is_less = fewest < worker_count and auto is None
        name = "too-many-workers" if is_less and worker_count >= _MANY * fewest and worker_count - fewest > 1 else ""
        return Verdict(ready, _enough(fewest, worker_count, is_less=is_less), evidence, name, fewest if name else None)
    waits = {name: waited for name, waited in period.waits.items() if name != "start"}
    cause = max(waits, key=waits.__getitem__)
    problem = f"data-bound: training waited {percent(stall)} of the time, mostly for {waited_for(period, cause)}"
    _, remedy, more = CAUSES.get(cause, ("", "", ""))
    if cause in ("queue", "order"):
        more += _details(period, cause)
    if cause == "order" and not moves:
        remedy = f"Let idle workers take over late work (seed=), {remedy[0].lower()}{remedy[1:]}"
    if cause == "order" and load.needed > worker_count:
        remedy = ""  # with too few workers, some batch is always late
    rate = period.batches / max(period.seconds - start_s, 1e-9)
    slower = _slower_than_none(period, load, worker_count, rate)
    if slower and cause not in ("slot", "device", "deliver"):
        return Verdict(problem, "Set num_workers=0", f"{more}{slower}{evidence}", "too-many-workers", 0)
    if remedy:
        return Verdict(problem, remedy, more + evidence)
    advice = _workers(period, load, worker_count, cores, auto)
    return replace(advice, problem=problem, evidence=f"{more}{advice.evidence}{evidence}")


CAUSES = {
    "queue": ("a free worker", "", ""),
    "slot": (
        "free slots",
        "Drop batches sooner, or raise memory_budget",
        "The program holds batches that fill the memory for them. ",
    ),
    "order": (
        "a late batch",
        "Deliver batches as they come (in_order=False), or use more workers or a larger prefetch_factor",
        "Later batches were ready. ",
    ),
    "transfer": (
        "batches in transit",
        "Use larger batches, or leave a core to the training process",
        "Workers had finished them, but the training process had not received them yet. ",
    ),
    "device": (
        "the device",
        "Use a cheaper device_transform, fewer bytes per batch, or pin_memory=True for a GPU",
        "Batches reach the device too late. More workers would not help. ",
    ),
    "deliver": (
        "the training process itself",
        "Make batches cheaper to unpack, or indices cheaper to draw",
        "It unpacks and prepares batches, and draws indices. More workers would not help. ",
    ),
}
"""For each cause: what training waits for, the remedy (empty where more workers may help), and additional evidence."""


def waited_for(period: Period, cause: str) -> str:
    """Return what training waits for, in words."""
    return CAUSES[cause][0] if cause in CAUSES else _stage(period, cause)


_CHEAPER = "Make samples cheaper (`feedline doctor module:dataset` shows what takes long)"


# Any: the settings of a loader, as in `Stats`.
def cores_of(settings: Mapping[str, Any]) -> int:
    """Return how many cores a loader's rank has; 0 if unknown.

    Example:
        >>> cores_of({"cores": 16, "local_ranks": 8}), cores_of({})
        (2, 0)
    """
    cores = int(settings.get("cores") or 0)
    return max(1, cores // int(settings.get("local_ranks") or 1)) if cores else 0


# object: the settings of a loader, as in `Stats`.
def moves_of(settings: Mapping[str, object]) -> bool:
    """True if idle workers take over the work of late ones.

    Also True if the settings do not say.

    Example:
        >>> moves_of({"moves": False}), moves_of({})
        (False, True)
    """
    return bool(settings.get("moves", True))


def load_of(period: Period, cores: int = 0) -> Load:
    """Return what a batch costs the worker that makes it and the training loop, as far as that was measured.

    Where CPU time was not measured, making a batch is assumed to be all computing.

    Args:
        period: the measurements.
        cores: how many cores this program may use; 0 if unknown.
    """
    # The training process's own work on a batch does not depend on the number of workers.
    own_s = sum(period.waits.get(cause, 0.0) for cause in ("deliver", "device")) / max(period.batches, 1)
    transfer = period.stages.get("transfer", Spread())
    return Load(
        make_s=period.make_s,
        step_s=period.body.mean + own_s,
        cpu_s=period.make_s if period.cpu_s is None else period.cpu_s,
        cores=cores or math.inf,
        handover_s=min(transfer.p50, _MOST_HANDOVER_S) if transfer.count >= FEW else HANDOVER_S,
    )


def is_crowded(period: Period) -> bool:
    """True if workers (or the loop) lacked a core so often that more workers would only wait for one too.

    Where making batches is mostly sleeping, more workers help however few cores there are.
    """
    computes = period.computing is None or period.computing > SLEEPING
    return computes and _without_core(period) > _CROWDED


def _without_core(period: Period) -> float:
    return period.queued_s / max(period.queued_s + period.make_s, 1e-9)


def _enough(fewest: int, worker_count: int, *, is_less: bool) -> str:
    """Return whether fewer workers would do for a training loop that does not wait."""
    if not worker_count:
        return "No workers are needed"
    if is_less:
        return f"{counted(fewest, 'worker')} would do" if fewest else "No workers are needed (num_workers=0)"
    return f"{counted(worker_count, 'worker is', 'workers are')} about right"


def _slower_than_none(period: Period, load: Load, worker_count: int, rate: float) -> str:
    """Return why training is slower with these workers than it would be without any; empty if it is not."""
    if not worker_count:
        return ""
    if load.is_cheap and load.rate(0) > rate:
        return f"Handing a batch over costs about {_time(2 * load.handover_s)}, more than making it. "
    # Other programs may have used the cores; a loop that makes batches itself would have waited for a core too.
    alone = replace(load, make_s=load.make_s + period.queued_s).rate(0)
    if alone > _CLEARLY * rate:
        return f"Training got {rate:,.0f} batches/s from workers, and would get about {alone:,.0f} without. "
    return ""


def _workers(period: Period, load: Load, worker_count: int, cores: int, auto: str | None) -> Verdict:
    """Return how many workers would help, or the remedy if no number would; and the reason."""
    if auto == "searching":
        return Verdict("", 'Wait: num_workers="auto" is still searching for the best number of workers')
    fewest, is_full = load.fewest(), is_crowded(period)
    if load.is_cheap and not worker_count:
        why = f"Workers would not help: handing a batch over costs about {_time(2 * load.handover_s)}. "
        return Verdict("", _CHEAPER, why, SLOW)
    who = "Workers were" if worker_count else "The loop was"
    crowd = f"{who} ready to run but had no core {percent(_without_core(period))} of the time. " if is_full else ""
    if is_full and period.batches_per_s * load.cpu_s < _OWN * (cores or 1):
        return Verdict("", "Not sure: run it again on a quiet machine", f"{crowd}Other programs used the cores. ")
    if is_full or (cores and worker_count >= load.most and load.needed > load.most):
        return Verdict("", f"{_CHEAPER}, or add cores", crowd or f"Samples need more CPU than {_cores(cores)}. ", SLOW)
    if auto is not None:
        why = f'num_workers="auto" has found no number of workers faster than {worker_count}. '
        return Verdict("", _CHEAPER, why, SLOW)
    if fewest <= worker_count:
        if load.needed > worker_count:
            return Verdict("", _CHEAPER, "More workers would not help. ", SLOW)
        why = "There are enough workers on average, but batches come in bursts. "
        return Verdict("", "Raise prefetch_factor", why)
    remedy, why = f"Use {counted(fewest, 'worker')}", ""
    if load.step_s < 0.01 * load.make_s:
        why = "The loop spends almost no time on a batch, so some waiting will remain. "
    elif fewest < load.needed:
        remedy, why = f"{remedy}, and make samples cheaper", f"Samples need more CPU than {_cores(cores)}. "
    return Verdict("", remedy, why, "too-few-workers", fewest)


def _cores(cores: int) -> str:
    return "your one core has" if cores == 1 else f"your {cores} cores have"


def _evidence(period: Period, load: Load, worker_count: int, cores: int) -> str:
    """Return how long a batch takes to make and to train on, with how many workers and cores."""
    who = f"with {counted(worker_count, 'worker')}" if worker_count else "without workers"
    where = f" on {counted(cores, 'core')}" if cores else ""
    return f"A batch takes {making_text(period)} and {_time(period.body.mean)} to train on, {who}{where}."


def making_text(period: Period) -> str:
    """Return how long a batch takes to make, as in the table of stages: with all that its worker waits for.

    Example:
        >>> made = Period(10, 10, 20.0, worker_utilisation=[0.95], alone_s=0.165, queued_s=1.735, cpu_s=0.15)
        >>> making_text(made)
        '1.9 s to make (8 % computing, 91 % without a core)'
    """
    busy_s, without_core = period.busy_s, _without_core(period)
    parts = [] if period.cpu_s is None or not busy_s else [f"{percent(min(1.0, period.cpu_s / busy_s))} computing"]
    parts += [f"{percent(without_core)} without a core"] if without_core > SLIGHT else []
    return f"{_time(busy_s)} to make" + (f" ({', '.join(parts)})" if parts else "")


def _stage(period: Period, cause: str) -> str:
    """Return the stage that workers are in; for fetch, the user's own stage if that takes most of it."""
    stages = {name: spread.mean * spread.count for name, spread in period.stages.items()}
    named = {name: spent for name, spent in stages.items() if name not in STAGES}
    if cause == "fetch" and named:
        slowest = max(named, key=named.__getitem__)
        if named[slowest] > 0.5 * stages.get("fetch", 0.0):
            return slowest
    return cause


def _details(period: Period, cause: str) -> str:
    """Return what workers were doing when none was free, or how much longer slow batches take."""
    if cause == "queue":
        spreads = {name: period.stages.get(name, Spread()) for name in ("fetch", "transform", "collate", "write")}
        most = max(spreads, key=lambda name: spreads[name].mean * spreads[name].count)
        return f"Workers were mostly busy with {_stage(period, most)}. "
    fetch = period.stages.get("fetch", Spread())
    if fetch.p50 > 0 and fetch.p99 > 4 * fetch.p50:
        return f"A slow fetch takes {fetch.p99 / fetch.p50:.0f} times as long as a typical one; see slowest_samples. "
    return ""


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds * 1e3:.2g} ms" if seconds < 0.01 else f"{seconds * 1e3:.0f} ms"
