"""Samples that wait: for storage, for a lock, for each other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from feedline.insight.stats import shown
from feedline.tools.advise import slow_source
from feedline.tools.advise.finding import Finding, gain_of
from feedline.tools.measure.measured import Measured

_COSTLY_S = 2e-4
"""Training does not wait for samples whose median time is below this."""
_WAITING = 0.5
"""A sample that computes for a smaller share of its time mostly waits."""
_LOCKED = 0.4
"""If samples hold a lock for this share of their time, two threads make at most 1.4 times what one makes."""
_MUCH_GAIN = 1.5
"""A smaller gain does not justify a change of workers."""
_OTHER_GAIN = 1.25
"""If another fix gains this much, apply it first: it changes the samples."""
_MANY_WORKERS = 8
_FEW = 100
_SPREAD = 10
_SLOW = 5
_SLOW_S = 1e-3
_SLOW_SHARE = 0.1
"""Share of the total time by which the slowest samples exceed the others. All of these are guesses."""


def find(measured: Measured) -> list[Finding]:
    """Return the findings about the time that a sample takes."""
    first = [*slow_source.find(measured), *_stragglers(measured)]
    is_other = any((one.gain or 1.0) >= _OTHER_GAIN or one.name in ("stragglers", "slow-source") for one in first)
    if measured.samples.usual_s < _COSTLY_S or is_other:
        return first
    return first + (list(_serialised(measured)) or list(_waiting(measured)))


def _waiting(measured: Measured) -> Iterator[Finding]:
    """Suggest more workers, whose waits overlap: as many threads as were tried, or 8 processes."""
    samples, rates = measured.samples, measured.threads.rates
    if samples.cpu_share >= _WAITING or measured.making.is_async:
        return
    workers = 1 if measured.loader is None else max(measured.loader.workers, 1)
    if len(rates) > 1:
        count, engine = max(rates), "thread"
        many = rates[count] / rates[1]
        tried = f"{count} threads made {many:.1f} times the samples of one"
    else:  # threads cannot be used
        count, engine = _MANY_WORKERS, "process"
        many = min(count, measured.headroom.cores / max(samples.cpu_share, 0.01))
        tried = "The rest of the time it sleeps"
    if many < _MUCH_GAIN * workers:
        return
    now_s = measured.pipeline_s / workers
    yield Finding(
        "waiting",
        f"A sample sleeps for {1 - samples.cpu_share:.0%} of its time.",
        "Use more workers than cores, or read ahead with an async def __getitem__ or feedline.datasets.",
        f'DataLoader(dataset, engine="{engine}", num_workers={count})',
        gain=gain_of(now_s, now_s - samples.usual_s / many - measured.batch_share_s),
        evidence=f"It takes {shown(samples.usual_s)} and computes for "
        f"{shown(samples.usual_s * samples.cpu_share)} of that. {tried}",
        margin=min(_WAITING / max(samples.cpu_share, 0.01), many / (_MUCH_GAIN * workers)),
    )


def _serialised(measured: Measured) -> Iterator[Finding]:
    """Report a lock for which threads wait: one of the dataset, or the interpreter's."""
    samples, two, path = measured.samples, measured.threads.speedup, measured.state.lock
    if two is None or (share := min(1.0, max(0.0, 2 / two - 1))) < _LOCKED or measured.engine in ("process", "inline"):
        return
    fix, other = "guard less with it, and give each thread its own handle in a threading.local()", ""
    if samples.cpu_share >= _WAITING:
        path, other = "the interpreter's lock (GIL)", f"; or they wait for {path}" if path else ""
        fix = "do the work in a library that releases the lock, such as NumPy or torch"
    elif not path:
        return  # they wait for each other elsewhere, as in a connection
    yield Finding(
        "serialised",
        f"Samples hold {path} for {share:.0%} of their time.",
        f"Use worker processes, each of which has its own lock; or {fix}.",
        f'DataLoader(dataset, engine="process", num_workers={max(measured.workers, 1)})',
        is_serious=measured.engine == "thread",
        evidence=f"Only one thread at a time can hold it, and two made {two:.2f} times the samples of one{other}. A "
        f"sample takes {shown(samples.usual_s)}. `feedline tune` measures what processes gain",
    )


def _stragglers(measured: Measured) -> Iterator[Finding]:
    samples = measured.samples
    times = np.array(samples.seconds[2:])  # the first ones include warm-up
    if len(times) < _FEW:
        return
    usual, late = np.quantile(times, (0.5, 0.99)).tolist()
    slow = times[times > _SLOW * usual]
    excess = float((slow - usual).sum())
    confirmed = [index for index, seconds in samples.repeated if seconds > _SLOW / 2 * usual]
    limit_s = max(_SPREAD * usual, _SLOW_S)
    if late < limit_s or excess < _SLOW_SHARE * times.sum() or len(confirmed) < 2:
        return
    fix, code = bridging_stragglers(moves=measured.loader is not None and measured.loader.moves)
    yield Finding(
        "stragglers",
        f"{len(slow)} of {len(times)} samples take more than {_SLOW} times as long as most.",
        f"See what these samples have in common, such as their size. {fix}",
        code,
        evidence=f"Most take {shown(usual)}, one in a hundred {shown(late)} or more. Slow again when "
        f"repeated: {', '.join(confirmed[:5])}. If they took as long as the others, all samples together would take "
        f"{1 - excess / times.sum():.0%} of the time",
        margin=min(late / limit_s, excess / (_SLOW_SHARE * float(times.sum()))),
    )


def bridging_stragglers(*, moves: bool) -> tuple[str, str]:
    """Return what a loader can do about slow samples, as a sentence and as code.

    Args:
        moves: True if its idle workers already take over the work of late ones.
    """
    if moves:
        return "Until then, deliver batches as they come.", "DataLoader(dataset, in_order=False)"
    return (
        "Until then, give the loader a seed=, so that idle workers take over the work of late ones, or deliver batches "
        "as they come.",
        "DataLoader(dataset, seed=0)  # or in_order=False",
    )
