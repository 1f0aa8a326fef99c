"""What "auto" means: whether a loader uses it, and with which workers such a loader starts."""

from __future__ import annotations

import multiprocessing
from typing import Any

from feedline.abc.stateful import is_stateful
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.driver.probe import Probe, probe
from feedline.delivery.driver.settings import AUTO, DEFAULT_DEPTH, Settings, is_auto
from feedline.delivery.driver.tuning import START, Tuning
from feedline.insight.worker_model import Load
from feedline.workers import lifetime
from feedline.workers.fetch.awaiting import is_awaited
from feedline.workers.ray import cluster
from feedline.workers.ray.options import RayOptions

_SCALES = 0.9
"""Which part of what as many cores would make threads must make. Processes come to more than that, and cost memory."""

_SOME = 16
"""Samples of a batch if nobody knows how many."""


# Any: user input, which other code checks.
def tuning_of(workers: Any, prefetch: Any) -> Tuning | None:
    """Return the object that finds the number of workers or the depth; None if there is nothing to find.

    Args:
        workers: their number, or "auto".
        prefetch: batches per worker, or "auto".
    """
    tunes_depth = is_auto(prefetch)
    if is_auto(workers):
        depth = prefetch if isinstance(prefetch, int) else DEFAULT_DEPTH
        return Tuning.from_cores(depth=depth, tunes_depth=tunes_depth)
    if not tunes_depth or not isinstance(workers, int) or workers < 1:
        return None
    return Tuning(workers, workers, least=workers, tunes_depth=True)


def begin(tuning: Tuning, settings: Settings, spec: WorkerSpec, batch_size: int | None, *, has_indices: bool) -> None:
    """Settle with what a loader begins, before its first iteration.

    Args:
        tuning: what is to be settled.
        settings: what the loader was asked to do.
        spec: what workers are told.
        batch_size: samples in a batch; None if that is not known, or there are no batches.
        has_indices: True for a map-style dataset.
    """
    tuning.is_begun = True
    own_streams = not has_indices and spec.split is None
    if tuning.least == tuning.most:
        tuning.tunes_depth = not own_streams  # each of which is asked for as many batches as at the start
        return
    if settings.engine == AUTO and settings.engine_name == "process" and multiprocessing.current_process().daemon:
        tuning.fix(0, "0 workers: this process is one that may not start others, such as a worker of multiprocessing.")
        return
    if own_streams:
        tuning.fix(
            1,
            "1 worker: each would have a stream of its own, so that their number decides what is delivered. Give a "
            "number, or shard=True.",
        )
        return
    if is_stateful(spec.dataset):
        tuning.fix(START, f"{START} workers: the dataset has a state in each of them, so that their number stays.")
        return
    if settings.engine_name == "ray":
        places = cluster.free_places(settings.ray or RayOptions(), START)
        tuning.most, tuning.cores = max(START, min(tuning.most, places)), float(max(START, places))
    forks = settings.engine_name == "process" and lifetime.start_method(settings.context) == "fork"
    if not has_indices or not forks or is_awaited(spec.dataset):
        tuning.say(f"{tuning.count} workers to begin with.")
        return
    found = probe(spec, batch_size or _SOME, settings.context)
    if found is None:
        tuning.say(f"{tuning.count} workers to begin with: a first look at the dataset fails, or takes too long.")
    else:
        _choose(tuning, settings, spec, found)


def _choose(tuning: Tuning, settings: Settings, spec: WorkerSpec, found: Probe) -> None:
    may_choose = settings.engine == AUTO and settings.context is None and settings.worker_bytes is None
    takes = f"a batch takes {found.batch_s * 1e3:.2g} ms"
    load = Load(make_s=found.batch_s, step_s=0.0, cpu_s=found.cpu_s)
    if load.is_cheap and may_choose and spec.init is None and not settings.timeout_s:
        tuning.fix(
            0, f"0 workers: {takes}, and handing it over from a worker costs about {2e3 * load.handover_s:.2g} ms."
        )
        return
    reasons = [takes, f"{found.cpu_share * 100:.0f} % of that is computing"]
    if may_choose and found.threads:
        gain = f"{found.thread_gain:.1f} times as many batches as" if found.thread_gain > 1 else "no more batches than"
        reasons.append(f"{found.threads} threads make {gain} one")
    tuning.engine = "thread" if may_choose and threads_do(found) else None
    kind = "threads" if tuning.engine == "thread" else "processes"
    tuning.say(f"{tuning.count} {kind} to begin with: {'; '.join(reasons)}.")


def threads_do(found: Probe) -> bool:
    """True if threads make about as many batches as processes would: they wait, or leave the GIL nearly all the time.

    Example:
        >>> threads_do(Probe(batch_s=0.11, cpu_share=0.99, threads=8, thread_gain=5.7, is_unsafe=False))
        False
    """
    return not found.is_unsafe and found.threads > 0 and found.thread_gain >= _SCALES * found.threads
