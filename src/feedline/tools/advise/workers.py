"""Workers: how many there are, how often they start, and what each of them copies."""

from __future__ import annotations

from collections.abc import Iterator

from feedline.insight.stats import shown
from feedline.insight.worker_model import Load
from feedline.system.shown import counted
from feedline.system.sizes import bytes_text
from feedline.tools.advise.finding import Finding
from feedline.tools.measure.measured import LoaderSetup, Measured

_STARTING = 0.05
"""Share of an epoch spent on starting its workers."""
_STARTING_S = 0.01
_COMPUTING = 0.7
"""If samples compute for a larger share of their time, more workers than cores gain nothing."""
_BATCH_S = 5e-3
"""A shorter batch may be fast enough without workers: the time of a training step is not known here."""
_LARGE_BYTES = 32 << 20
_LARGE_SHARE = 0.5
"""Serious if the copies in all workers exceed this share of the available memory. All of these are guesses."""


def find(measured: Measured) -> list[Finding]:
    """Return the findings about workers; all but those about copies need a loader."""
    loader = measured.loader
    return [*_copies(measured), *([] if loader is None else [*_restarted(measured, loader), *_count(measured, loader)])]


def _copies(measured: Measured) -> Iterator[Finding]:
    headroom, workers = measured.headroom, measured.workers
    if measured.engine in ("thread", "inline") or not workers:
        return
    for held in measured.state.held:
        if held.bytes < _LARGE_BYTES:
            continue
        all_bytes = held.bytes * workers * headroom.local_ranks
        name, fix, code, instead = held.path.removeprefix("dataset."), "Share one copy between all workers.", None, ""
        if held.shared_bytes is None:
            fix = "Keep these values in arrays, or in a memory-mapped file."
        else:
            instead = f"; shared, it takes {bytes_text(held.shared_bytes)} once"
            if name.replace(".", "").isidentifier():
                code = f"# at the end of __init__:\nself.{name} = feedline.share(self.{name})"
        yield Finding(
            "copied-objects",
            f"Each worker copies the {held.items:,} objects of {held.path}.",
            fix,
            code,
            is_serious=headroom.memory_bytes is not None and all_bytes > _LARGE_SHARE * headroom.memory_bytes,
            evidence=f"They are Python objects of {bytes_text(held.bytes)}. Reading an object writes its reference "
            f"count, so each worker ends up with a copy: {bytes_text(all_bytes)} in {workers} workers{instead}",
        )


def _restarted(measured: Measured, loader: LoaderSetup) -> Iterator[Finding]:
    start_s, length = loader.start_s, measured.making.length
    if start_s is None or length is None:
        return
    workers = max(min(loader.workers, measured.headroom.cores), 1)
    epoch_s = length * (measured.samples.mean_s + measured.batch_share_s) / workers
    if start_s < (limit_s := max(_STARTING_S, _STARTING * epoch_s)):
        return
    yield Finding(
        "workers-restarted",
        f"Each epoch spends {start_s / (start_s + epoch_s):.0%} of its time on starting workers.",
        "Keep the workers from epoch to epoch.",
        f"DataLoader(dataset, num_workers={loader.workers}, persistent_workers=True)",
        evidence=f"Starting {counted(loader.workers, 'worker')} takes {shown(start_s)}, and making the samples of an "
        f"epoch about {shown(epoch_s)}",
        margin=start_s / limit_s,
    )


def _count(measured: Measured, loader: LoaderSetup) -> Iterator[Finding]:
    """Compare the number of workers that compute with the number of cores."""
    samples, headroom = measured.samples, measured.headroom
    cores = max(1, headroom.cores // headroom.local_ranks)
    if samples.cpu_share < _COMPUTING or loader.batch_size is None:
        return
    whose = f"{counted(cores, 'core')} (affinity, control group and ranks counted)"
    margin = (1 - _COMPUTING) / max(1 - samples.cpu_share, 0.01)
    batch_s = samples.usual_s * loader.batch_size  # other programs disturb a mean of quick samples
    most = Load(batch_s, 0.0, samples.cpu_share * batch_s, cores).most
    if loader.workers > most + 1:
        yield Finding(
            "too-many-workers",
            f"{loader.workers} workers compute on {counted(cores, 'core')}.",
            f"Use {most}, or one less where the training loop itself computes.",
            f"DataLoader(dataset, num_workers={most})",
            evidence=f"A sample computes for {samples.cpu_share:.0%} of its time, and there are {whose}: more workers "
            "compete with each other and with the training loop for the cores, and waste memory",
            margin=margin,
        )
    is_few = 2 * loader.workers < most if loader.workers else most > 1  # one core is for the training loop
    if is_few and batch_s >= _BATCH_S:
        rate = max(loader.workers, 1) / samples.usual_s
        yield Finding(
            "too-few-workers",
            f"{counted(loader.workers, 'worker') if loader.workers else 'No workers'} for {cores} cores: most are "
            "idle.",
            "Use more workers if training waits for batches.",
            f"DataLoader(dataset, num_workers={most})",
            evidence=f"Making a batch takes {shown(batch_s)}, {samples.cpu_share:.0%} of it computing, which "
            f"allows {rate:,.0f} samples a second; there are {whose}. `feedline tune` measures what more workers gain",
            margin=min(margin, batch_s / _BATCH_S),
        )
