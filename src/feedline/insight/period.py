"""Figures of one epoch or of all epochs, in seconds, as users read them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

from feedline.insight.batch_rows import STAGES, Totals
from feedline.insight.histogram import Spread
from feedline.types import JsonObject


@dataclass(frozen=True)
class Period:
    """Measurements of one epoch, or of all epochs.

    Example:
        >>> from feedline import Loader
        >>> loader = Loader(list(range(6)), 2)
        >>> batches = list(loader)
        >>> loader.stats().epoch.batches, loader.stats().epoch.samples
        (3, 6)
    """

    batches: int = 0
    samples: int = 0
    seconds: float = 0.0
    """From `iter(loader)` to the last batch delivered."""
    stall: float = 0.0
    """The share of that time, without `starting_s`, in which the training loop waited for data, from 0 to 1."""
    start_s: float = 0.0
    """From `iter(loader)` to the first batch."""
    waits: dict[str, float] = field(default_factory=dict)
    """How long the training loop waited, by cause, in seconds; see `feedline.insight.attribution`."""
    stages: dict[str, Spread] = field(default_factory=dict)
    """Time per batch in each stage. `fetch` excludes `transform`; `wait` is the wait of the training loop."""
    body: Spread = field(default_factory=Spread)
    """How long the training loop spends on a batch before it requests the next."""
    worker_utilisation: list[float] = field(default_factory=list)
    """The share of the time that each worker spent making batches."""
    prefetch_occupancy: float = 0.0
    """How many batches were ready when one was requested, on average."""
    data_bytes: int = 0
    """Bytes of the batches that were in the loader's own memory."""
    cpu_s: float | None = None
    """CPU time to make a batch, on average; None if it was not measured."""
    queued_s: float = 0.0
    """How long the worker (or training loop) that makes a batch is ready to run but has no core, on average."""
    alone_s: float | None = None
    """Time to make a batch with a core of its own, on average; None if it was not measured."""

    packed: float | None = None
    """The share of packed rows that is not padding, from 0 to 1; None if nothing was packed."""

    @property
    def batches_per_s(self) -> float:
        """Batches per second, as the training loop received them."""
        return self.batches / self.seconds if self.seconds else 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples per second, as the training loop received them."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def wait_s(self) -> float:
        """How long the training loop waited in total."""
        return sum(self.waits.values())

    @property
    def starting_s(self) -> float:
        """How long the training loop waited for workers to start, in total. It is not part of `stall`."""
        return self.waits.get("start", 0.0)

    @property
    def busy_s(self) -> float:
        """How long a worker, or the training loop itself, takes to make a batch, on average: all stages together."""
        if not self.batches:
            return 0.0
        made = sum(self.worker_utilisation) * self.seconds
        inline = sum(self.waits.get(stage, 0.0) for stage in ("fetch", "transform", "collate", "write"))
        return (made or inline) / self.batches

    @property
    def make_s(self) -> float:
        """Time to make a batch: with a core of its own, if that was measured."""
        return self.busy_s if self.alone_s is None else self.alone_s

    @property
    def computing(self) -> float | None:
        """The share of `make_s` spent computing, from 0 to 1; the rest is waiting. None if it was not measured."""
        return None if self.cpu_s is None or not self.make_s else min(1.0, self.cpu_s / self.make_s)

    def as_dict(self) -> JsonObject:
        """Return plain values for JSON."""
        rates = {"batches_per_s": self.batches_per_s, "samples_per_s": self.samples_per_s, "wait_s": self.wait_s}
        rates |= {} if self.computing is None else {"computing": self.computing}
        return {**asdict(self), **rates}


def stall_of(waited: float, starting: float, elapsed: float) -> float:
    """Return the share of the time after start-up in which the training loop waited; the only definition of it.

    Example:
        >>> stall_of(waited=6.0, starting=5.0, elapsed=10.0)
        0.2
    """
    return min(1.0, max(0.0, waited - starting) / (elapsed - starting)) if elapsed > starting else 0.0


def period_of(totals: Totals, worker_count: int) -> Period:
    """Return the figures of an epoch or a run from its sums.

    Args:
        totals: the sums.
        worker_count: the loader's current number of workers; 0 if the training loop makes batches itself.
    """
    elapsed, batches = totals.nanoseconds, totals.batches
    waited = totals.opened + totals.waited
    waits = totals.waits
    stages = {name: histogram.spread() for name, histogram in totals.stages.items()}
    body = totals.body.spread()
    if totals.is_sampled:  # the rows give the distribution, but the exact sums are known
        stages["wait"] = replace(stages["wait"], mean=totals.waited / 1e9 / batches)
        body = replace(body, mean=max(0, elapsed - waited) / 1e9 / batches)
    named = sorted(set(totals.stages) - set(STAGES))
    ever = max(worker_count, 1 + max(totals.busy, default=-1))  # with "auto", some may have been retired
    return Period(
        batches=batches,
        samples=totals.samples,
        seconds=elapsed / 1e9,
        stall=stall_of(waited, waits["start"], elapsed),
        start_s=totals.started / 1e9,
        waits={cause: waited / 1e9 for cause, waited in waits.items() if waited},
        stages={name: stages[name] for name in (*STAGES, *named) if name in stages},
        body=body,
        worker_utilisation=[
            min(1.0, totals.busy.get(worker, 0) / elapsed) if elapsed > 0 else 0.0 for worker in range(ever)
        ],
        prefetch_occupancy=totals.ready / batches if worker_count and batches else 0.0,
        data_bytes=totals.bytes,
        cpu_s=totals.computed / 1e9 / totals.timed if totals.timed else None,
        queued_s=totals.queued / 1e9 / totals.timed if totals.timed else 0.0,
        packed=totals.packed_tokens / totals.packed_places if totals.packed_places else None,
        alone_s=(totals.made - totals.queued) / 1e9 / totals.timed if totals.timed else None,
    )
