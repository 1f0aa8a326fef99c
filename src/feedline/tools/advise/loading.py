"""A loader with unsuitable settings: workers, prefetching, system limits, the order."""

from __future__ import annotations

from collections.abc import Iterator

from feedline.insight.stats import shown
from feedline.insight.worker_model import Load
from feedline.system.sizes import bytes_text
from feedline.tools.advise.finding import Finding, gain_of
from feedline.tools.measure.measured import Headroom, LoaderSetup, Measured

_STARTING = 0.05
"""Share of an epoch spent on starting its workers."""
_STARTING_S = 0.01
_COMPUTING = 0.7
"""If samples compute for a larger share of their time, more workers than cores gain nothing."""
_BATCH_S = 5e-3
"""A shorter batch may be fast enough without workers: the time of a training step is not known here. With the formula's
0.5 ms instead, a test dataset whose batches take 2.2 ms ("shuffling") also got this finding."""
_MUCH = 0.5
"""Share of the available memory, or of /dev/shm."""
_SHUFFLING_S = 1.0
_SHUFFLING_BYTES = 256 << 20
"""All of these are guesses."""
LOADER_FILES = 5  # measured on Linux: a selector, the arena, a pipe for stacks
WORKER_FILES = 5  # a socket pair, two of multiprocessing's, one of the process


def find(measured: Measured) -> list[Finding]:
    """Return the findings about the loader, if one was given."""
    loader = measured.loader
    if loader is None:
        return []
    return [
        *_failing(measured, loader),
        *_restarted(measured, loader),
        *_workers(measured, loader),
        *_memory(measured, loader),
        *open_files(measured.headroom, loader),
        *_shuffling(measured, loader),
    ]


def _failing(measured: Measured, loader: LoaderSetup) -> Iterator[Finding]:
    if loader.failure and not _is_explained(measured, loader):
        yield Finding(
            "failing-loader",
            "Single samples can be made, but a batch of the loader raised an exception.",
            "Fix the code that raises it: the collate function, or the dataset as workers receive it.",
            is_serious=True,
            evidence=loader.failure.rstrip(),
        )


def _is_explained(measured: Measured, loader: LoaderSetup) -> bool:
    """True if another finding explains why batches fail."""
    state, threads, batch = measured.state, measured.threads, measured.batch
    if measured.samples is not None and measured.samples.failed:
        return True
    if loader.engine == "thread":
        return bool(state.thread_handles) or (threads is not None and bool(threads.failure))
    return bool(state.handles) or (batch is not None and batch.not_picklable is not None)


def _restarted(measured: Measured, loader: LoaderSetup) -> Iterator[Finding]:
    start_s, epoch_s = loader.start_s, measured.epoch_s
    if start_s is None or epoch_s is None or start_s < (limit_s := max(_STARTING_S, _STARTING * epoch_s)):
        return
    yield Finding(
        "workers-restarted",
        f"Each epoch spends {start_s / (start_s + epoch_s):.0%} of its time on starting workers.",
        "Keep the workers from epoch to epoch.",
        f"DataLoader(dataset, num_workers={loader.workers}, persistent_workers=True)",
        gain=gain_of(start_s + epoch_s, start_s),
        evidence=f"Starting {loader.workers} workers takes {shown(start_s)}, and making the samples of an epoch "
        f"about {shown(epoch_s)}",
        margin=start_s / limit_s,
    )


def _workers(measured: Measured, loader: LoaderSetup) -> Iterator[Finding]:
    samples, headroom = measured.samples, measured.headroom
    cores = headroom.rank_cores
    if samples is None or samples.cpu_share < _COMPUTING or loader.batch_size is None:
        return
    whose = f"{cores} core{'' if cores == 1 else 's'} (affinity, control group and ranks counted)"
    margin = (1 - _COMPUTING) / max(1 - samples.cpu_share, 0.01)
    batch_s = samples.mean_s * loader.batch_size
    load = Load(batch_s, 0.0, samples.cpu_share * batch_s, cores)
    most = load.most
    if loader.workers > most + 1:
        yield Finding(
            "too-many-workers",
            f"{loader.workers} workers compute on {cores} core{'' if cores == 1 else 's'}.",
            f"Use {most}, or one less where the training loop itself computes.",
            f"DataLoader(dataset, num_workers={most})",
            evidence=f"A sample computes for {samples.cpu_share:.0%} of its time, and there are {whose}: more workers "
            "compete with each other and with the training loop for the cores, and waste memory",
            margin=margin,
        )
    is_few = 2 * loader.workers < most if loader.workers else most > 1  # one core is for the training loop
    if is_few and batch_s >= _BATCH_S:
        rate = max(loader.workers, 1) / samples.mean_s
        yield Finding(
            "too-few-workers",
            f"{loader.workers or 'No'} worker{'' if loader.workers == 1 else 's'} for {cores} cores: most are idle.",
            "Use more workers if training waits for batches.",
            f"DataLoader(dataset, num_workers={most})",
            evidence=f"Making a batch takes {shown(batch_s)}, {samples.cpu_share:.0%} of it computing, which "
            f"allows {rate:,.0f} samples a second; there are {whose}. `feedline tune` measures what more workers gain",
            margin=min(margin, batch_s / _BATCH_S),
        )


def _memory(measured: Measured, loader: LoaderSetup) -> Iterator[Finding]:
    samples, batch = measured.samples, measured.batch
    if samples is not None:
        each = samples.sample_bytes if batch is None else batch.bytes / batch.size
        yield from prefetch_memory(measured.headroom, loader, (loader.batch_size or 1) * each)


def prefetch_memory(headroom: Headroom, loader: LoaderSetup, each: float) -> Iterator[Finding]:
    """Compare the memory of prefetched batches, `each` bytes per batch, with what is available."""
    if loader.engine == "inline":
        return
    whole = loader.workers * loader.depth * each * headroom.local_ranks
    sum_text = f"{loader.workers} workers x {loader.depth} batches x {bytes_text(each)} = {bytes_text(whole)}"
    if headroom.memory_bytes is not None and whole > _MUCH * headroom.memory_bytes:
        yield Finding(
            "prefetch-memory",
            "Prefetched batches may take most of the memory.",
            "Prefetch less, or use fewer workers or smaller batches; memory_budget= of feedline's loader sets a limit.",
            f"DataLoader(dataset, num_workers={loader.workers}, prefetch_factor=2)",
            is_serious=True,
            evidence=f"They take up to {sum_text}, and {bytes_text(headroom.memory_bytes)} of memory is free",
        )
    elif loader.kind == "torch" and headroom.shared_bytes is not None and whole > _MUCH * headroom.shared_bytes:
        yield Finding(
            "shared-memory",
            "Prefetched batches may fill /dev/shm.",
            "Use feedline's loader, which does not need it; or prefetch less, or make it larger (docker run "
            "--shm-size=8g).",
            "from feedline import DataLoader",
            is_serious=True,
            evidence=f"torch's loader keeps up to {sum_text} in it, and its size is "
            f"{bytes_text(headroom.shared_bytes)}",
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


def open_files(headroom: Headroom, loader: LoaderSetup) -> Iterator[Finding]:
    """Compare the number of files that workers open with the limit."""
    needed = LOADER_FILES + WORKER_FILES * loader.workers
    if headroom.open_files is None or loader.engine != "process" or 2 * needed <= headroom.open_files:
        return
    yield Finding(
        "open-files",
        f"{loader.workers} workers use most of the {headroom.open_files} files that may be open.",
        "Raise the limit in the shell, or use fewer workers.",
        f"ulimit -n {max(4096, 4 * needed)}",
        is_serious=needed > headroom.open_files,
        evidence=f"They need about {needed}, the limit (ulimit -n) is {headroom.open_files}, and datasets open files, "
        "too",
    )


def _shuffling(measured: Measured, loader: LoaderSetup) -> Iterator[Finding]:
    seconds, size = loader.shuffle_s, loader.shuffle_bytes
    if seconds is None or (seconds < _SHUFFLING_S and size < _SHUFFLING_BYTES):
        return
    epoch_s = measured.epoch_s
    yield Finding(
        "shuffling",
        "torch's RandomSampler draws the indices of a whole epoch at once.",
        "Use feedline's sampler in feedline's loader: it computes each index when it is needed.",
        "DataLoader(dataset, sampler=feedline.samplers.RandomSampler(dataset))",
        gain=None if epoch_s is None else gain_of(seconds + epoch_s, seconds),
        evidence=f"Each epoch spends {shown(seconds)} on that, and the indices take {bytes_text(size)}",
        margin=max(seconds / _SHUFFLING_S, size / _SHUFFLING_BYTES),
    )
