"""How fast a training loop gets its batches with n workers: the formula behind all advice on workers.

A worker hands a batch over to the training process: it writes the batch, sends a message and waits for the next task.
The training process wakes up, takes over the batch and sends another task. Each side spends `handover_s` on that. A
training loop that makes its own batches has no handover. So with n workers the rate is the lowest of three:

- the workers: n batches per time that one worker takes to make and hand over a batch;
- the cores: as many batches as there is CPU time for;
- the training loop: one batch per step and handover.

The verdict and the findings base their advice on this formula. `num_workers="auto"` and `feedline tune` measure, and
take their bounds from it. The page of `feedline report` replays recorded times batch by batch, with the same handover
cost where none was recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HANDOVER_S = 2.5e-4
"""The cost of handing over a batch on either side, where it was not measured. On two cores that other programs used as
well, it was 0.08 to 0.15 ms of CPU time per batch in the training process and 0.18 to 0.31 ms in the worker, plus the
time to wake up (`python -m benchmarks.auto_setting --dataset busy`)."""

_HEADROOM = 1.05
"""Workers need a little spare capacity, because batches do not take equally long."""

LEAST_GAIN = 1.05
"""How many times as fast training must get for workers to be worth it. A guess."""


@dataclass(frozen=True)
class Load:
    """The cost of a batch for the worker that makes it and for the training loop.

    Args:
        make_s: time to make a batch, with a core of its own.
        step_s: time that the training loop spends on a batch.
        cpu_s: CPU time to make a batch; more than `make_s` if it is made on several threads.
        cores: how many cores the program may use.
        handover_s: the cost of handing over a batch on either side.

    Example:
        >>> load = Load(make_s=0.3, step_s=0.05, cpu_s=0.03, cores=2)
        >>> load.fewest(), round(load.rate(0), 1), round(load.rate(load.fewest()), 1)
        (7, 2.9, 19.9)
        >>> Load(make_s=0.3e-3, step_s=0.03e-3, cpu_s=0.3e-3, cores=16).fewest()
        0
    """

    make_s: float
    step_s: float
    cpu_s: float
    cores: float = math.inf
    handover_s: float = HANDOVER_S

    @property
    def is_cheap(self) -> bool:
        """True if handing a batch over costs both sides at least as much time as making it: workers gain nothing."""
        return self.make_s <= 2 * self.handover_s

    @property
    def needed(self) -> int:
        """How many workers make batches as fast as the training loop can take them, if each has a core."""
        return max(1, math.ceil((self.make_s + self.handover_s) * _HEADROOM / (self.step_s + self.handover_s)))

    @property
    def most(self) -> int:
        """How many workers keep all cores busy; more would wait for a core."""
        if math.isinf(self.cores):
            return 1 << 30
        return max(1, round(self.cores * (self.make_s + self.handover_s) / (self.cpu_s + 2 * self.handover_s)))

    def rate(self, workers: int) -> float:
        """Return how many batches per second the training loop gets; with 0 workers, it makes them itself."""
        if not workers:
            return 1 / max(self.step_s + self.make_s, 1e-9)
        by_workers = workers / (self.make_s + self.handover_s)
        by_cores = self.cores / (self.cpu_s + 2 * self.handover_s)
        return min(by_workers, by_cores, 1 / (self.step_s + self.handover_s))

    def fewest(self) -> int:
        """Return the smallest number of workers that is as fast as any; 0 if workers do not make training faster."""
        if self.is_cheap:
            return 0
        count = min(self.needed, self.most)
        return count if self.rate(count) >= LEAST_GAIN * self.rate(0) else 0
