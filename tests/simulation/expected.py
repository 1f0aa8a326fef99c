"""What must be delivered, derived from the plan, the dataset and the fault log, without the machine."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence

from feedline.abc.faults import Fault
from feedline.errors import EmptyBatch, WorkerError
from feedline.faults.log import FaultLog
from feedline.samplers.steps import Steps
from feedline.simulation.scenario import IN_ORDER, LawBroken
from feedline.types import IndexBlock
from tests.simulation.dataset import Made, NotSent, SampleFailed, length_of
from tests.simulation.scenario import MAP, Scenario
from tests.simulation.world import World

_LONGEST_CHAIN = 16


class Expected(ABC):
    """What one rank must get, and in which order."""

    steps = 0
    """Batches that were delivered or passed over, and exceptions raised instead of one."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    @abstractmethod
    def follow(self, world: World) -> None:
        """Follow a new loader, which starts where the last one stopped."""

    def left(self) -> None:  # noqa: B027  most have nothing to note
        """Account for the batches that a closed loader passed over at the end."""

    @abstractmethod
    def twin(self) -> Expected:
        """Return what another loader that continues from here must deliver."""

    @abstractmethod
    def got(self, ordinal: int, worker: int, batch: object) -> None:
        """Check a delivered batch, or an exception that was raised instead of one.

        Raises:
            LawBroken: something else was due.
        """

    @abstractmethod
    def ended(self) -> None:
        """Check that nothing is missing at the end of the epoch."""

    def _check_reason(self, exc: BaseException, samples: list[int]) -> None:
        """Check that there is a reason for an exception raised instead of a batch."""
        troubles, accidents = self._scenario.troubles, self._scenario.accidents
        if isinstance(exc, SampleFailed):
            has_reason = not (troubles.bad | troubles.flaky).isdisjoint(samples)
        elif isinstance(exc, WorkerError):
            has_reason = accidents.blames or not troubles.fatal.isdisjoint(samples)
        else:
            has_reason = isinstance(exc, EmptyBatch) or (isinstance(exc, NotSent) and accidents.not_sent > 0)
        if not has_reason:
            raise LawBroken(f"{exc!r} is raised instead of samples {samples} without a reason") from exc


class Planned(Expected):
    """The batches of a plan, or of a stream that the loader splits.

    Args:
        scenario: what is simulated.
        tally: counts the samples of an epoch, over all ranks.
    """

    def __init__(self, scenario: Scenario, tally: Counter[int]) -> None:
        super().__init__(scenario)
        self._tally = tally
        self._made: dict[int, int] = {}
        """How many samples each worker's dataset has made, according to the delivered batches."""

    def follow(self, world: World) -> None:
        assert world.checkpoint is not None
        self._epoch = world.checkpoint.entry.key.epoch
        self._log = world.fault_budget.log
        self._fault_budget = world.fault_budget
        self._keeps_steps = world.share.world_size > 1
        self._due = self._planned(world)
        self._open: dict[int, list[int]] = {}
        """Batches read from the plan and not delivered yet."""
        self._pulled = 0
        self._next = 0
        self._already = set(world.early)
        self._progress = world.checkpoint.entry.progress
        state = self._fault_budget.state()
        self._seen, self._lost = state.get("seen", 0), state.get("lost", 0)
        world.on_hand_out = self.got

    def left(self) -> None:
        progress = self._progress
        dealt = [*range(self._next, progress.delivered), *sorted(progress.early)]
        for ordinal in dealt:
            if ordinal in self._open or ordinal >= self._pulled:
                self._pass_over(ordinal)

    def twin(self) -> Planned:
        twin = Planned(self._scenario, Counter())
        twin._made = self._made.copy()
        return twin

    def _planned(self, world: World) -> Iterator[list[int]]:
        assert world.checkpoint is not None
        entry, scenario = world.checkpoint.entry, self._scenario
        if scenario.kind == MAP:
            return (_listed(indices) for indices in world.order.plan(entry))
        return self._spans(world, entry.consumed)

    def _spans(self, world: World, origin: int) -> Iterator[list[int]]:
        scenario, total = self._scenario, self._scenario.samples
        drop_last = scenario.drop_last and scenario.batch_size is not None
        steps = Steps(max(0, total - origin), scenario.batch_size or 1, world.share, drop_last=drop_last)
        for number in range(steps.count or 0):
            begin = origin + steps.start(number)
            own = begin + world.share.rank
            first = own if own < total else begin  # a rank without samples of its own repeats the first of the step
            yield [place if place < total else first for place in (steps.own(number) + origin).tolist()]

    def _pull(self, ordinal: int) -> list[int]:
        while self._pulled <= ordinal:
            samples = next(self._due, None)
            if samples is None:
                raise LawBroken(f"batch {ordinal} is delivered, but the plan has only {self._pulled} batches")
            if self._pulled not in self._already:
                self._open[self._pulled] = samples
            self._pulled += 1
        if ordinal not in self._open:
            raise LawBroken(f"batch {ordinal} is delivered twice")
        return self._open.pop(ordinal)

    def got(self, ordinal: int, worker: int, batch: object) -> None:
        samples = self._pull(ordinal)
        self.steps += 1
        if self._scenario.order == IN_ORDER:
            for other in range(self._next, ordinal):
                self._pass_over(other)
            if ordinal < self._next:
                raise LawBroken(f"batch {ordinal} comes after batch {self._next - 1}")
            self._next = ordinal + 1
        if isinstance(batch, BaseException):
            self._check_reason(batch, [self._scenario.source_of(index, self._epoch) for index in samples])
        else:
            got = batch if isinstance(batch, list) else [batch]
            self._match(ordinal, samples, got)
            self._check_made(worker, got)
        self._tally.update(samples)
        if self._scenario.order == IN_ORDER:
            self._check_fault_budget(samples)

    def _check_made(self, worker: int, batch: list[object]) -> None:
        """Check that a dataset with a state continues where it was, even in a new worker."""
        for sample in batch:
            if type(sample) is not Made:
                return
            due = self._made.get(worker, sample.before)
            if sample.before != due:
                raise LawBroken(f"the dataset of worker {worker} has made {sample.before} samples instead of {due}")
            self._made[worker] = due + 1

    def _pass_over(self, ordinal: int) -> None:
        """Check that all samples of a batch that is not delivered are accounted for by faults."""
        if ordinal in self._already:
            return
        samples = self._pull(ordinal)
        self._match(ordinal, samples, [])
        self._tally.update(samples)
        self.steps += 1
        self._count(samples)

    def ended(self) -> None:
        for samples in self._due:
            self._open[self._pulled] = samples
            self._pulled += 1
        for ordinal in [other for other in self._open if other not in self._already]:
            self._pass_over(ordinal)

    def _match(self, ordinal: int, samples: list[int], batch: Sequence[object]) -> None:
        place, what = 0, f"batch {ordinal} is {batch}, but the plan has {samples}"
        for index in samples:
            if place < len(batch) and batch[place] == index:
                place += 1
                continue
            fault = self._fault_of(index, what)
            if fault.action == "replace":
                if place == len(batch) or not self._replaces(batch[place], index):
                    raise LawBroken(f"{what}: sample {index} was not replaced by the one in the log")
                place += 1
        is_other = place == 0 and len(batch) == 1 and self._keeps_steps  # stands in for a batch without samples
        if place < len(batch) and not is_other:
            raise LawBroken(f"{what}: {batch[place]} does not belong there")

    def _fault_of(self, index: int, what: str) -> Fault:
        """Return the fault that names a missing sample."""
        if self._scenario.kind == MAP:
            fault = self._log.quarantined_as(index)
        else:
            fault = next((one for one in reversed(self._log) if one.index == index and one.lost), None)
        if fault is None:
            raise LawBroken(f"{what}: sample {index} is missing, but no fault names it")
        known = self._scenario.troubles
        source = self._scenario.source_of(index, self._epoch)
        if source not in known.bad | known.flaky | known.fatal and not self._scenario.accidents.blames:
            raise LawBroken(f"{what}: sample {index} is blamed, but nothing is wrong with it")
        return fault

    def _replaces(self, other: object, index: int) -> bool:
        for _ in range(_LONGEST_CHAIN):
            fault = self._log.quarantined_as(index)
            if fault is None or fault.replacement is None:
                return False
            if fault.replacement == other:
                return True
            index = fault.replacement
        return True

    def _count(self, samples: list[int]) -> None:
        self._seen += len(samples)
        self._lost += sum(self._log.quarantined_as(index) is not None for index in samples)

    def _check_fault_budget(self, samples: list[int]) -> None:
        """Check that the fault budget counts each sample once, where the lost samples are known."""
        self._count(samples)
        if not self._fault_budget.guards or self._scenario.kind != MAP or self._keeps_steps:
            return
        state = self._fault_budget.state()
        if state.get("seen", 0) != self._seen:
            raise LawBroken(f"{self._seen} samples were seen, but the budget counts {state.get('seen', 0)}")
        only_skips = not any(fault.action in ("replace", "raise") for fault in self._log)
        if only_skips and state.get("lost", 0) != self._lost:
            raise LawBroken(f"{self._lost} samples were lost, but the budget counts {state.get('lost', 0)}")


def _listed(indices: object) -> list[int]:
    if isinstance(indices, IndexBlock):
        numbers: list[int] = indices.array.tolist()
        return numbers
    assert isinstance(indices, int)
    return [indices]


class Rotation(Expected):
    """Batches of the workers' own streams: workers take turns, and those whose stream has ended are left out."""

    def __init__(self, scenario: Scenario, workers: int) -> None:
        super().__init__(scenario)
        self._lengths = [length_of(scenario.samples, worker) for worker in range(workers)]
        self._places = [0] * workers
        self._active = list(range(workers))
        self._turn = 0
        self._log = FaultLog()

    def follow(self, world: World) -> None:
        self._log = world.fault_budget.log
        world.on_hand_out = self.got

    def twin(self) -> Rotation:
        twin = copy.copy(self)
        twin._places, twin._active = self._places.copy(), self._active.copy()
        return twin

    def got(self, ordinal: int, worker: int, batch: object) -> None:
        self.steps += 1
        if self._scenario.order == IN_ORDER:
            due = self._whose_turn()
            if worker != due:
                raise LawBroken(f"worker {worker} delivers a batch, but it is the turn of worker {due}")
        first = self._places[worker]
        samples, failed = self._cut(worker)
        if isinstance(batch, BaseException):
            self._check_reason(batch, [] if failed is None else [failed])
            return
        got = batch if isinstance(batch, list) else [batch]
        if failed is not None or got != [(worker, place) for place in samples]:
            raise LawBroken(f"worker {worker} delivers {got} from place {first} on, but its stream has {samples}")

    def _whose_turn(self) -> int | None:
        """Return the worker whose batch comes next; remove workers without samples from the rotation."""
        while self._active:
            worker = next((one for one in self._active if one >= self._turn), self._active[0])
            self._turn = worker + 1
            before = self._places[worker]
            samples, failed = self._cut(worker)
            self._places[worker] = before
            if samples or failed is not None:
                return worker
            self._active.remove(worker)
        return None

    def _cut(self, worker: int) -> tuple[list[int], int | None]:
        """Return the samples of a worker's next batch, and the place of a sample that raises instead."""
        scenario = self._scenario
        count, length, bad = scenario.batch_size or 1, self._lengths[worker], scenario.troubles.bad
        samples: list[int] = []
        raises = scenario.policy.never_catches
        while len(samples) < count and self._places[worker] < length:
            place = self._places[worker]
            self._places[worker] += 1
            if place not in bad:
                samples.append(place)
            elif raises:
                return [], place
        if len(samples) < count and scenario.drop_last and scenario.batch_size is not None:
            return [], None
        return samples, None

    def ended(self) -> None:
        for worker in self._active:
            samples, failed = self._cut(worker)
            if samples or failed is not None:
                raise LawBroken(f"the epoch is over, but worker {worker} has {samples or failed} left")
