"""What "auto" means: whether a loader uses it, and with which workers such a loader starts."""

from __future__ import annotations

import multiprocessing

from feedline.abc.stateful import is_stateful
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.config import AUTO, DEFAULT_DEPTH, Config, is_auto
from feedline.delivery.driver.probe import Probe, probe
from feedline.delivery.driver.tuning import START, Tuning
from feedline.insight.worker_model import Load
from feedline.workers import lifetime
from feedline.workers.fetch.awaiting import is_awaited
from feedline.workers.ray import cluster
from feedline.workers.ray.options import RayOptions

_SOME = 16
"""Assumed batch size if it is not known."""


# object: user input, which other code checks.
def tuning_of(workers: object, prefetch: object) -> Tuning | None:
    """Return the object that finds the number of workers or the depth; None if both are given."""
    tunes_depth = is_auto(prefetch)
    if is_auto(workers):
        depth = prefetch if isinstance(prefetch, int) else DEFAULT_DEPTH
        return Tuning.from_cores(depth=depth, tunes_depth=tunes_depth)
    if not tunes_depth or not isinstance(workers, int) or workers < 1:
        return None
    return Tuning(workers, workers, least=workers, tunes_depth=True)


def begin(tuning: Tuning, settings: Config, spec: WorkerSpec, batch_size: int | None, *, has_indices: bool) -> None:
    """Determine the initial workers of a loader with "auto", before its first iteration.

    Args:
        tuning: receives the result.
        settings: the options of the loader.
        spec: what every worker gets.
        batch_size: samples in a batch; None if it is not known, or samples are not batched.
        has_indices: True for a map-style dataset.
    """
    tuning.is_begun = True
    own_streams = not has_indices and spec.sharding is None
    if tuning.least == tuning.most:
        tuning.tunes_depth = not own_streams  # a stream per worker keeps its initial depth
        return
    if settings.engine == AUTO and settings.engine_name == "process" and multiprocessing.current_process().daemon:
        tuning.fix(
            0, "0 workers: this process is a daemon, such as a multiprocessing worker, and may not start others."
        )
        return
    if own_streams:
        tuning.fix(
            1,
            "1 worker: each worker would read a stream of its own, so their number would change what is delivered. Set "
            "a number, or shard=True.",
        )
        return
    if is_stateful(spec.dataset):
        tuning.fix(START, f"{START} workers: the dataset keeps a state in each of them, so their number is fixed.")
        return
    if settings.engine_name == "ray":
        places = cluster.free_places(settings.ray or RayOptions(), START)
        tuning.most, tuning.cores = max(START, min(tuning.most, places)), float(max(START, places))
        tuning.begin()
    forks = settings.engine_name == "process" and lifetime.start_method(settings.context) == "fork"
    if not has_indices or not forks or is_awaited(spec.dataset):
        tuning.say(f"{tuning.count} workers to begin with.")
        return
    found = probe(spec, batch_size or _SOME, settings.context)
    if found is None:
        tuning.say(f"{tuning.count} workers to begin with: measuring the dataset failed, or took too long.")
    else:
        _choose(tuning, settings, spec, found)


def _choose(tuning: Tuning, settings: Config, spec: WorkerSpec, found: Probe) -> None:
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
    tuning.engine = "thread" if may_choose and found.suits_threads else None
    kind = "threads" if tuning.engine == "thread" else "processes"
    tuning.say(f"{tuning.count} {kind} to begin with: {'; '.join(reasons)}.")
