"""What the figures of a run tell of its loader: no dataset is tried, nothing is measured anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from feedline.observe.histogram import Spread
from feedline.observe.period import Period
from feedline.observe.stats import Stats
from feedline.observe.verdict import FEW, SLIGHT, needed_workers
from feedline.tune.diseases.loading import open_files, prefetch_memory
from feedline.tune.finding import Finding, seconds_text
from feedline.tune.measured import LoaderFacts, Room
from feedline.values.shown import counted
from feedline.values.sizes import bytes_text

_WORTH = 1.05
"""Gains below are not told."""
_OTHER_GAIN = 1.25
"""If a part of the work can be saved and that gains so much, more workers are not the first thing."""
_PART = 0.3
"""Share of a worker's time that putting batches together, or sending them, takes."""
_PART_S = 1e-3
_COPIES = 3
_COPIED_PER_S = 1e9
"""Bytes a second that a collate function which only copies writes: times how much longer it may take."""
_LATE = 4
"""Times the usual fetch of a batch, that one in a hundred takes."""
_TOO_MANY = 2
"""Times the workers that are needed."""
_COPIED_SHARE = 0.1
"""Of the batches, that did not stay in their slots."""
_GROWTH_BYTES = 64 << 20
"""Of all workers. All of these are guesses."""


@dataclass(frozen=True)
class Run:
    """What is known of a run."""

    stats: Stats
    room: Room
    growth: float = 0.0
    """Bytes that the memory of all workers grows by with 1,000 samples, as long as it is watched; 0 if it does not."""

    @property
    def period(self) -> Period:
        return self.stats.judged

    @property
    def loader(self) -> LoaderFacts:
        told = self.stats.settings
        return LoaderFacts(
            "feedline",
            workers=int(self.stats.counters.get("workers", 0)),
            engine=str(told.get("engine", "inline")),
            depth=int(told.get("prefetch", 1)),
            batch_size=told.get("batch_size"),
            is_persistent=bool(told.get("persistent", False)),
            start_method=self.room.start_method,
        )

    @property
    def cores(self) -> int:
        """Cores that this rank has."""
        return max(1, self.room.cores // self.room.local_ranks)

    def share(self, *causes: str) -> float:
        """Return for which share of the time training waited because of these."""
        return sum(self.period.waits.get(cause, 0.0) for cause in causes) / max(self.period.seconds, 1e-9)

    @property
    def start_s(self) -> float:
        return self.period.waits.get("start", 0.0)

    @property
    def stall(self) -> float:
        """The share of the time that training waited, once workers had started."""
        return (self.period.wait_s - self.start_s) / max(self.period.seconds - self.start_s, 1e-9)

    def gain(self, *, workers: int | None = None, saved_s: float = 0.0) -> float:
        """Return how many times as many batches come with so many workers, and so much less work for each batch."""
        period, count = self.period, self.loader.workers if workers is None else workers
        now_s = (period.seconds - self.start_s) / period.batches
        own_s = sum(period.waits.get(cause, 0.0) for cause in ("deliver", "device", "slot")) / period.batches
        step_s, busy_s = period.body.mean + own_s, max(period.busy_s - saved_s, 1e-9)
        then_s = max(step_s, busy_s / count) if count else step_s + busy_s
        return round(now_s / max(then_s, now_s / 100), 2)

    def gain_without(self, cause: str) -> float:
        """Return how many times as many batches come if nobody waits because of this."""
        return round(1 / max(1 - self.share(cause), 0.01), 2)


def find(run: Run) -> list[Finding]:
    """Return what is found."""
    found = [*_faults(run), *_deaths(run)]
    if run.period.batches < FEW:
        return found
    each = run.period.data_bytes / run.period.batches
    found += [
        *_restarted(run),
        *_growth(run),
        *(prefetch_memory(run.room, run.loader, each) if run.room.memory_bytes else ()),
        *open_files(run.room, run.loader),
        *_slots(run),
    ]
    if run.stall < SLIGHT:
        return [*found, *_too_many(run)]
    parts = [*_collating(run, each), *_writing(run), *_stragglers(run), *_held(run), *_device(run), *_delivering(run)]
    if not any((finding.gain or 1.0) >= _OTHER_GAIN for finding in parts):
        parts += _too_few(run)
    return found + parts


def _faults(run: Run) -> Iterator[Finding]:
    faults = {action: count for action, count in dict(run.stats.faults).items() if count}
    raised = int(run.stats.counters.get("failures", 0))
    if faults or raised:
        told = [f"{count} ({action})" for action, count in faults.items()]
        told += [f"in the place of {raised} batches an exception was raised"] * (raised > 0)
        yield Finding(
            "failing-samples",
            f"Samples failed: {', '.join(told)}",
            "Look at them, and correct or remove them; on_error= says what becomes of them.",
            'loader.faults.to_csv("faults.csv")  # then: feedline doctor faults.csv',
            is_serious=True,
        )


def _deaths(run: Run) -> Iterator[Finding]:
    died, recycled = (int(run.stats.counters.get(name, 0)) for name in ("restarted_workers", "recycled_workers"))
    if died:
        yield Finding(
            "dying-workers",
            f"{died} workers died or were stuck, and were replaced",
            "Look for what ends them: most often it is memory, or a library that crashes. The faults name the samples.",
            is_serious=True,
        )
    if recycled:
        yield Finding(
            "memory-growth",
            f"{recycled} workers had taken more than max_memory_per_worker allows, and were replaced",
            "Look for what samples leave behind with tracemalloc, or bound the cache.",
        )


def _restarted(run: Run) -> Iterator[Finding]:
    loader, period = run.loader, run.period
    if loader.is_persistent or loader.engine != "process" or run.stats.last_epoch is None:
        return
    gain = run.gain_without("start")
    if gain >= _WORTH:
        yield Finding(
            "workers-restarted",
            f"Each epoch starts {counted(loader.workers, 'worker')} anew, and training waited "
            f"{seconds_text(run.start_s)} of {seconds_text(period.seconds)} for that",
            "Keep the workers from epoch to epoch.",
            "DataLoader(dataset, persistent_workers=True)",
            gain=gain,
        )


def _growth(run: Run) -> Iterator[Finding]:
    grown = run.growth * run.stats.total.samples / 1000
    if grown < _GROWTH_BYTES:
        return
    yield Finding(
        "memory-growth",
        f"The workers' memory grew by {bytes_text(run.growth)} with 1,000 samples, {bytes_text(grown)} in all: a cache "
        "without a bound, a leak, or Python objects that each worker copies when it reads them",
        "Bound the cache, hold large lists in feedline.share, or look for what samples leave behind with tracemalloc. "
        "Until then have workers replaced that have grown too large.",
        'DataLoader(dataset, max_memory_per_worker="4GB")',
        is_serious=run.room.memory_bytes is not None and 2 * grown > run.room.memory_bytes,
    )


def _slots(run: Run) -> Iterator[Finding]:
    counters, batches = run.stats.counters, max(int(run.stats.counters.get("batches", 0)), 1)
    overflowed = int(counters.get("overflowed_batches", 0))
    if overflowed > _COPIED_SHARE * batches and run.loader.engine == "process":
        yield Finding(
            "small-budget",
            f"{overflowed} of {batches} batches did not fit into the memory that batches may take, or into their slot, "
            "and were sent another way",
            "Allow more memory, or prefetch fewer or smaller batches.",
            'DataLoader(dataset, memory_budget="8GB")',
        )


def _held(run: Run) -> Iterator[Finding]:
    counters, batches = run.stats.counters, max(int(run.stats.counters.get("batches", 0)), 1)
    copied = int(counters.get("copied_batches", 0))
    if run.share("slot") < SLIGHT and copied <= _COPIED_SHARE * batches:
        return
    yield Finding(
        "held-batches",
        f"The program holds {counters.get('leased_slots', 0)} batches: training waited {run.share('slot'):.0%} of the "
        f"time for the memory of one, and {copied} of {batches} were copied to get it back",
        "Keep less of a batch: copies of what you need (tensor.clone()), numbers instead of tensors (loss.item()).",
        'DataLoader(dataset, memory_budget="8GB")  # or more memory',
        gain=run.gain_without("slot"),
    )


def _device(run: Run) -> Iterator[Finding]:
    if run.share("device") >= SLIGHT:
        yield Finding(
            "late-copies",
            f"Training waited {run.share('device'):.0%} of the time for batches that were on their way to the device",
            "Pin the memory, and send fewer bytes: uint8 instead of float32.",
            "DataLoader(dataset, pin_memory=True)",
            gain=run.gain_without("device"),
        )


def _delivering(run: Run) -> Iterator[Finding]:
    if run.share("deliver") >= 2 * SLIGHT:
        yield Finding(
            "slow-delivery",
            f"Training waited {run.share('deliver'):.0%} of the time for the training process itself, which unpacks "
            "batches and draws indices",
            "Return arrays instead of objects, use a sampler of feedline's, and larger batches.",
            "DataLoader(dataset, sampler=feedline.samplers.RandomSampler(dataset))",
            gain=run.gain_without("deliver"),
        )


def _part(run: Run, stage: str) -> float:
    """Return how long a batch is in a stage, if that is a large part of the work; else 0."""
    spread = run.period.stages.get(stage, Spread())
    spent_s = spread.mean * spread.count / run.period.batches
    return spent_s if spent_s >= max(_PART * run.period.busy_s, _PART_S) else 0.0


def _collating(run: Run, each: float) -> Iterator[Finding]:
    collate_s, copy_s = _part(run, "collate"), each / _COPIED_PER_S
    gain = run.gain(saved_s=collate_s - copy_s)
    if collate_s > _COPIES * copy_s and gain >= _WORTH:
        yield Finding(
            "slow-collate",
            f"Putting a batch together takes {seconds_text(collate_s)} of the {seconds_text(run.period.busy_s)} that "
            "it takes to be made",
            "Put arrays together in one call (np.stack, torch.stack) instead of value by value; return fewer and "
            "larger fields.",
            "DataLoader(dataset, collate_fn=feedline.collate.pad())",
            gain=gain,
        )


def _writing(run: Run) -> Iterator[Finding]:
    write_s = _part(run, "write")
    gain = run.gain(saved_s=write_s)
    if write_s and gain >= _WORTH:
        yield Finding(
            "serialisation",
            f"Writing a batch to where the training process sees it takes {seconds_text(write_s)} of the "
            f"{seconds_text(run.period.busy_s)} that it takes to be made: what is not arrays is pickled",
            "Return arrays or tensors: they are written into shared memory as they are.",
            "return np.asarray(values, np.float32)",
            gain=gain,
        )


def _stragglers(run: Run) -> Iterator[Finding]:
    fetch, share = run.period.stages.get("fetch", Spread()), run.share("order")
    gain = min(run.gain(), run.gain_without("order"))  # where all workers are busy anyway, another order gains nothing
    if share < 2 * SLIGHT or fetch.p99 < _LATE * fetch.p50 or gain < _WORTH:
        return
    slowest = ", ".join(f"{slow.index!r:.40} ({seconds_text(slow.seconds)})" for slow in run.stats.slowest_samples[:5])
    yield Finding(
        "stragglers",
        f"Training waited {share:.0%} of the time for a late batch while later ones were ready: one batch in a hundred "
        f"takes {seconds_text(fetch.p99)} to be fetched, {fetch.p99 / max(fetch.p50, 1e-9):.0f} times as long as most"
        + (f". The slowest samples: {slowest}" if slowest else ""),
        "See what these samples have in common. Until then give the loader a seed=, so that idle workers take over the "
        "work of late ones, or deliver batches as they come.",
        "DataLoader(dataset, in_order=False)",
        gain=gain,
    )


def _too_many(run: Run) -> Iterator[Finding]:
    workers, needed, busy = run.loader.workers, needed_workers(run.period), run.period.worker_utilisation
    if needed is not None and workers >= _TOO_MANY * needed and workers - needed > 1:
        yield Finding(
            "too-many-workers",
            f"Data was ready {1 - run.stall:.1%} of the time, and each of {workers} workers made batches for "
            f"{sum(busy) / len(busy):.0%} of it: the others take memory for nothing",
            f"Use {needed}.",
            f"DataLoader(dataset, num_workers={needed})",
        )


def _too_few(run: Run) -> Iterator[Finding]:
    workers, period = run.loader.workers, run.period
    needed = needed_workers(period) or run.cores
    if needed <= workers or run.share("queue", "fetch", "transform", "collate", "write", "order") < SLIGHT:
        return
    evidence = (
        f"A batch takes {seconds_text(period.busy_s)} to be made, and training is at one for "
        f"{seconds_text(period.body.mean)}: {run.stall:.0%} of the time it waited, with {counted(workers, 'worker')}"
    )
    if workers >= run.cores:
        yield Finding(
            "slow-samples",
            f"{evidence} on {run.cores} cores",
            "Make samples cheaper: `feedline doctor module:dataset` tries them and says what takes long. If they wait "
            f"for storage, use {needed} workers.",
            "feedline doctor module:dataset",
            gain=run.gain(workers=needed),
        )
        return
    count = min(needed, run.cores)
    yield Finding(
        "too-few-workers",
        f"{evidence}; there are {run.cores} cores (affinity, control group and ranks counted)",
        f"Use {counted(count, 'worker')}" + (f", or {needed} if samples wait for storage." if needed > count else "."),
        f"DataLoader(dataset, num_workers={count})",
        gain=run.gain(workers=count),
    )
