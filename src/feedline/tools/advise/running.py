"""Findings about a loader from the figures of a run. No dataset is probed and nothing is measured again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from feedline.insight.histogram import Spread
from feedline.insight.period import Period
from feedline.insight.stats import Stats, shown
from feedline.insight.verdict import FEW, SLEEPING, SLIGHT, load_of, making_text, moves_of
from feedline.insight.worker_model import LEAST_GAIN, Load
from feedline.system.shown import counted
from feedline.system.sizes import bytes_text
from feedline.tools.advise.finding import Finding, gain_of
from feedline.tools.advise.slow_samples import bridging_stragglers
from feedline.tools.measure.measured import Headroom, LoaderSetup

_OTHER_GAIN = 1.25
"""If saving a part of the work gains this much, more workers are not the first suggestion."""
_PART = 0.3
"""Share of a worker's time spent on collating or sending batches."""
_PART_S = 1e-3
_COPIES = 3
_COPIED_PER_S = 1e9
"""Bytes per second written by a collate function that only copies; `_COPIES` is how many times as long it may take."""
_LATE = 4
"""Fetching one batch in a hundred takes this many times the median."""
_TOO_MANY = 2
"""Times the number of workers needed."""
_COPIED_SHARE = 0.1
"""Share of the batches that did not stay in their slots."""
_GROWTH_BYTES = 64 << 20
"""For all workers together. All of these are guesses."""


@dataclass(frozen=True)
class Run:
    """What is known about a run."""

    stats: Stats
    headroom: Headroom
    growth: float = 0.0
    """Bytes by which the memory of all workers grows per 1,000 samples while it is measured; 0 if it does not grow."""

    @property
    def period(self) -> Period:
        return self.stats.judged

    @property
    def loader(self) -> LoaderSetup:
        settings = self.stats.settings
        return LoaderSetup(
            workers=int(self.stats.counters.get("workers", 0)),
            engine=str(settings.get("engine", "inline")),
            depth=int(settings.get("prefetch", 1)),
            batch_size=settings.get("batch_size"),
            is_persistent=bool(settings.get("persistent", False)),
            start_method=self.headroom.start_method,
            moves=moves_of(settings),
        )

    @property
    def load(self) -> Load:
        """The cost of a batch on this rank's cores."""
        return load_of(self.period, self.headroom.rank_cores)

    def share(self, *causes: str) -> float:
        """Return the share of the time that training waited for these causes."""
        return sum(self.period.waits.get(cause, 0.0) for cause in causes) / max(self.period.seconds, 1e-9)

    def gain(self, *, workers: int | None = None, saved_s: float = 0.0) -> float:
        """Return the speedup with `workers` workers and `saved_s` less work per batch."""
        period, load = self.period, self.load
        make_s = max(load.make_s - saved_s, 1e-9)
        own_s = period.waits.get("slot", 0.0) / period.batches
        then = replace(load, make_s=make_s, cpu_s=min(load.cpu_s, make_s), step_s=load.step_s + own_s)
        now_s = (period.seconds - self.period.starting_s) / period.batches
        return gain_of(now_s, now_s - 1 / then.rate(self.loader.workers if workers is None else workers))

    def gain_without(self, cause: str) -> float:
        """Return the speedup if training no longer waits for this cause."""
        return gain_of(1.0, self.share(cause))


def find(run: Run) -> list[Finding]:
    """Return the findings about a run."""
    found = [*_faults(run), *_deaths(run)]
    if run.period.batches < FEW:
        return found
    each = run.period.data_bytes / run.period.batches
    found += [
        *_restarted(run),
        *_growth(run),
        *_slots(run),
    ]
    if run.period.stall < SLIGHT:
        return [*found, *_too_many(run)]
    parts = [*_collating(run, each), *_writing(run), *_stragglers(run), *_held(run), *_device(run), *_delivering(run)]
    if not any((finding.gain or 1.0) >= _OTHER_GAIN for finding in parts):
        parts += _too_few(run)
    return found + parts


def _faults(run: Run) -> Iterator[Finding]:
    faults = {action: count for action, count in dict(run.stats.faults).items() if count}
    raised = int(run.stats.counters.get("failures", 0))
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


def _deaths(run: Run) -> Iterator[Finding]:
    died, recycled = (int(run.stats.counters.get(name, 0)) for name in ("restarted_workers", "recycled_workers"))
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


def _restarted(run: Run) -> Iterator[Finding]:
    loader, period = run.loader, run.period
    if loader.is_persistent or loader.engine != "process" or run.stats.last_epoch is None:
        return
    gain = run.gain_without("start")
    if gain >= LEAST_GAIN:
        yield Finding(
            "workers-restarted",
            f"Each epoch starts {counted(loader.workers, 'new worker')}.",
            "Keep the workers from epoch to epoch.",
            f"DataLoader(dataset, num_workers={loader.workers}, persistent_workers=True)",
            gain=gain,
            evidence=f"Training waited {shown(period.starting_s)} of {shown(period.seconds)} for that",
        )


def _growth(run: Run) -> Iterator[Finding]:
    grown = run.growth * run.stats.total.samples / 1000
    if grown < _GROWTH_BYTES:
        return
    yield Finding(
        "memory-growth",
        f"The workers' memory grows by {bytes_text(run.growth)} per 1,000 samples.",
        "Bound the cache, hold large lists in feedline.share, or use tracemalloc to find what samples leave behind. "
        "Until then, let the loader replace workers that have grown too large.",
        'DataLoader(dataset, max_memory_per_worker="4GB")',
        is_serious=run.headroom.memory_bytes is not None and 2 * grown > run.headroom.memory_bytes,
        evidence=f"It grew by {bytes_text(grown)} in all: an unbounded cache, a leak, or Python objects that each "
        "worker copies when it reads them",
    )


def _slots(run: Run) -> Iterator[Finding]:
    counters, batches = run.stats.counters, max(int(run.stats.counters.get("batches", 0)), 1)
    overflowed = int(counters.get("overflowed_batches", 0))
    if overflowed > _COPIED_SHARE * batches and run.loader.engine == "process":
        yield Finding(
            "small-budget",
            f"{overflowed} of {batches} batches did not fit into the memory for batches.",
            "Allow more memory, or prefetch fewer or smaller batches.",
            'DataLoader(dataset, memory_budget="8GB")',
            evidence="They were larger than their slot, or than the rest of memory_budget=, and were sent another way",
        )


def _held(run: Run) -> Iterator[Finding]:
    counters, batches = run.stats.counters, max(int(run.stats.counters.get("batches", 0)), 1)
    copied = int(counters.get("copied_batches", 0))
    if run.share("slot") < SLIGHT and copied <= _COPIED_SHARE * batches:
        return
    yield Finding(
        "held-batches",
        "The program keeps batches, and the loader runs out of memory for new ones.",
        "Keep less of a batch: copies of what you need (tensor.clone()), numbers instead of tensors (loss.item()).",
        'DataLoader(dataset, memory_budget="8GB")',
        gain=run.gain_without("slot"),
        evidence=f"It holds {counters.get('leased_slots', 0)} batches. Training waited {run.share('slot'):.0%} of the "
        f"time for free memory, and {copied} of {batches} batches were copied to free their memory",
    )


def _device(run: Run) -> Iterator[Finding]:
    if run.share("device") >= SLIGHT:
        yield Finding(
            "late-copies",
            f"Training waits {run.share('device'):.0%} of the time for copies to the device.",
            "Pin the memory, and send fewer bytes: uint8 instead of float32.",
            "DataLoader(dataset, pin_memory=True)",
            gain=run.gain_without("device"),
        )


def _delivering(run: Run) -> Iterator[Finding]:
    if run.share("deliver") >= 2 * SLIGHT:
        yield Finding(
            "slow-delivery",
            f"The training process spends {run.share('deliver'):.0%} of the time on receiving batches.",
            "Return arrays instead of objects, and use a feedline sampler and larger batches.",
            "DataLoader(dataset, sampler=feedline.samplers.RandomSampler(dataset))",
            gain=run.gain_without("deliver"),
            evidence="Unpacking batches and drawing indices happens in the training process itself",
        )


def _part(run: Run, stage: str) -> float:
    """Return how long a batch spends in a stage if that is a large part of the work, else 0."""
    spread = run.period.stages.get(stage, Spread())
    spent_s = spread.mean * spread.count / run.period.batches
    return spent_s if spent_s >= max(_PART * run.period.busy_s, _PART_S) else 0.0


def _collating(run: Run, each: float) -> Iterator[Finding]:
    collate_s, copy_s = _part(run, "collate"), each / _COPIED_PER_S
    gain = run.gain(saved_s=collate_s - copy_s)
    if collate_s > _COPIES * copy_s and gain >= LEAST_GAIN:
        yield Finding(
            "slow-collate",
            f"Collating a batch takes {collate_s / run.period.busy_s:.0%} of a worker's time.",
            "Stack arrays in one call (np.stack, torch.stack) instead of value by value; the doctor checks whether "
            "the default makes the same batches.",
            "feedline doctor module:loader",
            gain=gain,
            evidence=f"It takes {shown(collate_s)} of the {shown(run.period.busy_s)} in which a batch is made",
        )


def _writing(run: Run) -> Iterator[Finding]:
    write_s = _part(run, "write")
    gain = run.gain(saved_s=write_s)
    if write_s and gain >= LEAST_GAIN:
        yield Finding(
            "serialisation",
            f"Sending a batch takes {write_s / run.period.busy_s:.0%} of a worker's time.",
            "Return arrays or tensors, which are not pickled; the doctor shows which fields are neither.",
            "feedline doctor module:loader",
            gain=gain,
            evidence=f"It takes {shown(write_s)} of the {shown(run.period.busy_s)} in which a batch is made",
        )


def _stragglers(run: Run) -> Iterator[Finding]:
    fetch, share = run.period.stages.get("fetch", Spread()), run.share("order")
    gain = min(run.gain(), run.gain_without("order"))  # no gain where all workers are busy anyway
    if share < 2 * SLIGHT or fetch.p99 < _LATE * fetch.p50 or gain < LEAST_GAIN:
        return
    slowest = ", ".join(f"{slow.index!r:.40} ({shown(slow.seconds)})" for slow in run.stats.slowest_samples[:5])
    fix, code = bridging_stragglers(moves=run.loader.moves)
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


def _too_many(run: Run) -> Iterator[Finding]:
    workers, fewest, busy = run.loader.workers, run.load.fewest(), run.period.worker_utilisation
    if workers >= _TOO_MANY * fewest and workers - fewest > 1:
        yield Finding(
            "too-many-workers",
            f"{workers} workers are more than the {fewest} that are needed.",
            f"Use {fewest}.",
            f"DataLoader(dataset, num_workers={fewest})",
            evidence=f"Data was ready {1 - run.period.stall:.1%} of the time, and each worker made batches for "
            f"{sum(busy) / len(busy):.0%} of it",
        )


def _too_few(run: Run) -> Iterator[Finding]:
    workers, period, load = run.loader.workers, run.period, run.load
    if load.is_cheap or load.needed <= workers:
        return
    if run.share("queue", "fetch", "transform", "collate", "write", "order") < SLIGHT:
        return
    cores = run.headroom.rank_cores
    evidence = (
        f"A batch takes {making_text(period)} and {shown(period.body.mean)} to train on; there are {cores} "
        "cores (affinity, control group and ranks counted)"
    )
    problem = f"Training waits {run.period.stall:.0%} of the time, with {counted(workers, 'worker')}"
    fewest = load.fewest()
    if fewest <= workers:
        yield Finding(
            "slow-samples",
            f"{problem} on {counted(cores, 'core')}.",
            "Make samples cheaper: the doctor probes the dataset and shows what takes long.",
            "feedline doctor module:dataset",
            evidence=evidence,
        )
        return
    yield Finding(
        "too-few-workers",
        f"{problem}.",
        f"Use {counted(fewest, 'worker')}.",
        f"DataLoader(dataset, num_workers={fewest})",
        gain=run.gain(workers=fewest) if period.computing is not None and period.computing <= SLEEPING else None,
        evidence=evidence,
    )
