"""Findings about a run, from its verdict and its statistics. No dataset is probed and nothing is measured again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from feedline.insight.histogram import Spread
from feedline.insight.period import Period
from feedline.insight.recording import Recording
from feedline.insight.stats import Stats, shown, verdict_of
from feedline.insight.verdict import CAUSES, FEW, SLEEPING, SLIGHT, SLOW, Verdict, cores_of, load_of, moves_of
from feedline.insight.worker_model import LEAST_GAIN
from feedline.loader.base import LoaderBase
from feedline.system.shown import counted
from feedline.system.sizes import bytes_text
from feedline.tools.advise.finding import Finding, Findings, gain_of
from feedline.tools.advise.slow_samples import bridging_stragglers

_OTHER_GAIN = 1.25
"""If saving a part of the work gains this much, another number of workers is not suggested."""
_PART, _PART_S = 0.3, 1e-3
"""Share of a worker's time spent on collating and sending batches, and the least time per batch."""
_COPIED_PER_S = 1e9 / 3
"""Bytes per second written by a collate function that only copies; a third of what was measured."""
_LATE = 4
"""Fetching one batch in a hundred takes this many times the median."""
_COPIED_SHARE = 0.1
"""Share of the batches that did not stay in their slots."""
_GROWTH_BYTES = 64 << 20
"""For all workers together. All of these are guesses."""
_OF_CAUSES = {
    "device": ("late-copies", "DataLoader(dataset, pin_memory=True)"),
    "deliver": ("slow-delivery", "DataLoader(dataset, sampler=feedline.samplers.RandomSampler(dataset))"),
}
"""Names and code of the findings that more workers would not change."""


def of_loader(loader: LoaderBase) -> Findings:
    """Return the findings about a loader, from its measurements so far."""
    stats = loader.stats()
    grown = sum(max(0, one.growth_bytes) for one in stats.memory)
    return find(stats, 1000 * grown / max(stats.total.samples, 1))


def of_recording(recording: Recording) -> Findings:
    """Return the findings about a recorded run; it may come from another machine."""
    system, got = recording.system, recording.rows["got"]
    pairs = zip(system.get("at", ()), system.get("worker_memory", ()), strict=False)  # some machines lack the second
    made = np.concatenate([[0], np.cumsum(recording.rows["samples"])])
    memory = [(float(made[np.searchsorted(got, at)]), size) for at, size in pairs if size and at is not None]
    return find(recording.stats(), steady_growth(memory))


_STEADY_BYTES = 2 << 20
"""Less growth while samples are made is noise."""


def steady_growth(memory: Sequence[tuple[float, float]]) -> float:
    """Return the growth in bytes per 1,000 samples; 0 if memory does not grow steadily.

    Args:
        memory: pairs of the number of samples made so far and the bytes at that moment.
    """
    later = np.array(memory[len(memory) // 4 :], float).reshape(-1, 2)
    if len(later) < 8:
        return 0.0
    made, sizes = np.array([part.mean(axis=0) for part in np.array_split(later, 4)]).T
    grown = later[-1][1] - later[0][1]
    if grown < _STEADY_BYTES or np.diff(sizes).min() < grown / 16 or made[-1] <= made[0]:
        return 0.0
    return float(1000 * (sizes[-1] - sizes[0]) / (made[-1] - made[0]))


def find(stats: Stats, growth: float = 0.0) -> Findings:
    """Return the findings about a run.

    Args:
        stats: its statistics.
        growth: bytes by which the memory of all workers grew per 1,000 samples while it was measured.
    """
    found = [*_failures(stats), *_replaced(stats)]
    if stats.judged.batches < FEW:
        return Findings(found)
    verdict = verdict_of(stats)
    found += [*_restarted(stats), *_growth(stats, growth)]
    parts = [*_memory(stats)]
    if stats.judged.stall >= SLIGHT:
        parts += [*_causes(stats), *_collating(stats), *_stragglers(stats)]
    if not any((finding.gain or 1.0) >= _OTHER_GAIN for finding in parts):
        parts += _workers(stats, verdict)
    return Findings(found + parts)


def _share(stats: Stats, cause: str) -> float:
    """Return the share of the time that training waited for this cause."""
    return stats.judged.waits.get(cause, 0.0) / max(stats.judged.seconds, 1e-9)


def _gain(stats: Stats, *, workers: int | None = None, saved_s: float = 0.0) -> float:
    """Return the speedup with `workers` workers and `saved_s` less work per batch."""
    period, load = stats.judged, load_of(stats.judged, cores_of(stats.settings))
    make_s = max(load.make_s - saved_s, 1e-9)
    own_s = period.waits.get("slot", 0.0) / period.batches
    then = replace(load, make_s=make_s, cpu_s=min(load.cpu_s, make_s), step_s=load.step_s + own_s)
    now_s = (period.seconds - period.starting_s) / period.batches
    return gain_of(now_s, now_s - 1 / then.rate(_count(stats, "workers") if workers is None else workers))


def _count(stats: Stats, name: str) -> int:
    return int(stats.counters.get(name, 0))


# -- what happened to samples and workers ------------------------------------------------------------------------------


def _failures(stats: Stats) -> Iterator[Finding]:
    faults = {action: count for action, count in dict(stats.faults).items() if count}
    raised = _count(stats, "failures")
    if faults or raised:
        seen = [f"{count} samples ({action})" for action, count in faults.items()]
        seen += [f"{raised} batches, which raised an exception"] * (raised > 0)
        yield Finding(
            "failing-samples",
            f"{counted(sum(faults.values()), 'sample')} and {counted(raised, 'batch', 'batches')} failed.",
            "Correct or remove these samples; on_error= decides how the loader handles them.",
            'json.dump(loader.state_dict(), open("state.json", "w"))  # then: feedline doctor state.json',
            is_serious=True,
            evidence=f"These failed: {', '.join(seen)}",
        )


def _replaced(stats: Stats) -> Iterator[Finding]:
    died, recycled = _count(stats, "restarted_workers"), _count(stats, "recycled_workers")
    if died:
        yield Finding(
            "dying-workers",
            f"{counted(died, 'worker')} died or hung and had to be replaced.",
            "Find the cause: most often it is memory, or a library that crashes. loader.faults names the samples.",
            is_serious=True,
        )
    if recycled:
        yield Finding(
            "memory-growth",
            f"{counted(recycled, 'worker')} outgrew max_memory_per_worker and had to be replaced.",
            "Use tracemalloc to find what samples leave behind, or bound the cache.",
        )


def _restarted(stats: Stats) -> Iterator[Finding]:
    settings, workers = stats.settings, _count(stats, "workers")
    if settings.get("persistent") or settings.get("engine") != "process" or stats.last_epoch is None:
        return
    gain = gain_of(1.0, _share(stats, "start"))
    if gain >= LEAST_GAIN:
        yield Finding(
            "workers-restarted",
            f"Each epoch starts {counted(workers, 'new worker')}.",
            "Keep the workers from epoch to epoch.",
            f"DataLoader(dataset, num_workers={workers}, persistent_workers=True)",
            gain=gain,
            evidence=f"Training waited {shown(stats.judged.starting_s)} of {shown(stats.judged.seconds)} for that",
        )


def _growth(stats: Stats, growth: float) -> Iterator[Finding]:
    grown, limit = growth * stats.total.samples / 1000, stats.settings.get("memory_limit")
    if grown >= _GROWTH_BYTES:
        yield Finding(
            "memory-growth",
            f"The workers' memory grows by {bytes_text(growth)} per 1,000 samples.",
            "Bound the cache, hold large lists in feedline.share, or use tracemalloc to find what samples leave "
            "behind. Until then, let the loader replace workers that have grown too large.",
            'DataLoader(dataset, max_memory_per_worker="4GB")',
            is_serious=limit is not None and 2 * grown > limit,
            evidence=f"It grew by {bytes_text(grown)} in all: an unbounded cache, a leak, or Python objects that each "
            "worker copies when it reads them",
        )


# -- what training waits for -------------------------------------------------------------------------------------------


def _memory(stats: Stats) -> Iterator[Finding]:
    batches, waited = max(_count(stats, "batches"), 1), _share(stats, "slot")
    copied, overflowed = _count(stats, "copied_batches"), _count(stats, "overflowed_batches")
    is_overflowing = overflowed > _COPIED_SHARE * batches and stats.settings.get("engine") == "process"
    if waited >= SLIGHT or copied > _COPIED_SHARE * batches or is_overflowing:
        yield Finding(
            "held-batches",
            "The memory for batches runs short.",
            "Keep less of each batch (tensor.clone() of what you need, loss.item()), prefetch less, or allow more.",
            'DataLoader(dataset, memory_budget="8GB")',
            gain=gain_of(1.0, waited) if waited else None,
            evidence=f"The program holds {_count(stats, 'leased_slots')} batches. Training waited {waited:.0%} of the "
            f"time for free memory. Of {batches} batches, {copied} were copied to free theirs, and {overflowed} did "
            "not fit",
        )


def _causes(stats: Stats) -> Iterator[Finding]:
    for cause, (name, code) in _OF_CAUSES.items():
        if (share := _share(stats, cause)) >= SLIGHT:
            what, remedy, why = CAUSES[cause]
            problem = f"Training waits {share:.0%} of the time for {what}."
            yield Finding(name, problem, f"{remedy}.", code, gain=gain_of(1.0, share), evidence=why.rstrip())


def _collating(stats: Stats) -> Iterator[Finding]:
    period = stats.judged
    collate_s, write_s = _spent(period, "collate"), _spent(period, "write")
    copy_s = period.data_bytes / period.batches / _COPIED_PER_S
    spent_s = collate_s + write_s
    gain = _gain(stats, saved_s=spent_s - copy_s)
    if spent_s < max(_PART * period.busy_s, _PART_S, copy_s) or gain < LEAST_GAIN:
        return
    arrays = "Stack arrays in one call (np.stack, torch.stack) instead of value by value."
    yield Finding(
        "slow-collate",
        f"Collating and sending a batch takes {spent_s / period.busy_s:.0%} of a worker's time.",
        arrays if collate_s > write_s else "Return arrays or tensors, which are not pickled.",
        "feedline doctor module:loader",
        gain=gain,
        evidence=f"Of the {shown(period.busy_s)} in which a batch is made, collating takes {shown(collate_s)} and "
        f"sending {shown(write_s)}. The doctor shows which fields take long",
    )


def _spent(period: Period, stage: str) -> float:
    spread = period.stages.get(stage, Spread())
    return spread.mean * spread.count / period.batches


def _stragglers(stats: Stats) -> Iterator[Finding]:
    fetch, share = stats.judged.stages.get("fetch", Spread()), _share(stats, "order")
    gain = min(_gain(stats), gain_of(1.0, share))  # no gain where all workers are busy anyway
    if share < 2 * SLIGHT or fetch.p99 < _LATE * fetch.p50 or gain < LEAST_GAIN:
        return
    slowest = ", ".join(f"{slow.index!r:.40} ({shown(slow.seconds)})" for slow in stats.slowest_samples[:5])
    fix, code = bridging_stragglers(moves=moves_of(stats.settings))
    yield Finding(
        "stragglers",
        f"Training waits {share:.0%} of the time for late batches while others are ready.",
        f"See what the slowest samples have in common. {fix}",
        code,
        gain=gain,
        evidence=f"One batch in a hundred takes {shown(fetch.p99)} to fetch, "
        f"{fetch.p99 / max(fetch.p50, 1e-9):.0f} times as long as most"
        + (f". The slowest samples: {slowest}" if slowest else ""),
    )


def _workers(stats: Stats, verdict: Verdict) -> Iterator[Finding]:
    """Yield what the verdict says about workers, with the code to change their number."""
    if not verdict.name:
        return
    code = "feedline doctor module:dataset" if verdict.name == SLOW else None
    gain = None
    if verdict.workers is not None:
        code = f"DataLoader(dataset, num_workers={verdict.workers})"
        computing = stats.judged.computing
        # What samples that compute gain from more workers depends on memory, locks and other programs.
        if verdict.name == "too-few-workers" and computing is not None and computing <= SLEEPING:
            gain = _gain(stats, workers=verdict.workers)
    problem = f"{verdict.problem[0].upper()}{verdict.problem[1:]}."
    yield Finding(verdict.name, problem, f"{verdict.remedy}.", code, gain=gain, evidence=verdict.evidence)
