"""The training loop of a simulated world, from epoch to epoch, and the results of a run."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace

from feedline.delivery.state import Snapshot
from feedline.errors import EmptyBatch, TooManyBadSamples, WorkerDied, WorkerError, WorkerTimeout
from feedline.simulation.scenario import IN_ORDER, LawBroken, draw_s
from feedline.system.ranks import Share
from feedline.types import State
from tests.simulation.dataset import CallFailed, NotReady, NotSent, SampleFailed
from tests.simulation.drawing import Habits, TrainingScenario
from tests.simulation.engine import Trace
from tests.simulation.expected import Expected, Planned, Rotation
from tests.simulation.scenario import MAP, OWN, Accidents
from tests.simulation.world import World

_RAISED = (SampleFailed, CallFailed, NotSent, NotReady, EmptyBatch, WorkerError)
"""Exceptions that a loader may raise."""


@dataclass
class Run:
    """The results of a simulation."""

    scenario: TrainingScenario
    events: int = 0
    """Events that concern the machine: tasks assigned and answered, deaths, batches, and so on."""
    batches: int = 0
    epochs: int = 0
    moves: int = 0
    """How often the training loop continued elsewhere from a saved state."""
    looks: int = 0
    """How often another loader continued from a saved state."""
    raised: Counter[str] = field(default_factory=Counter)
    """Exceptions that the training loop got, by name."""
    counts: Counter[str] = field(default_factory=Counter)
    """What was counted: restarts, workers replaced because they had grown, and so on."""
    checksum: int = 0
    """Checksum of the trace, which is equal for two runs of a scenario."""
    trace: tuple[str, ...] = ()
    """The last events."""


class WorldBroken(LawBroken):
    """A law was broken in a world: `run` holds the results up to that point, with the last events in `run.trace`."""

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run


def simulate(scenario: TrainingScenario, *, events: int = 2000) -> Run:
    """Run epochs until `events` events have happened, and check the laws at every step.

    Args:
        scenario: what to simulate.
        events: how many events to simulate; the epoch in progress is then left.

    Raises:
        WorldBroken: a law is broken.
    """
    training = _Training(scenario, events)
    try:
        training.go()
    except LawBroken as broken:
        raise WorldBroken(str(broken), training.finish()) from broken
    except Exception as exc:  # an exception that no loader may raise
        raise WorldBroken(f"{type(exc).__name__}: {exc}", training.finish()) from exc
    return training.finish()


class _Left(Exception):
    """Raised to leave the epoch at any point."""


class _Over(Exception):
    """Raised when enough events have happened."""


class _Training:
    """A training loop on one or several ranks."""

    def __init__(self, scenario: TrainingScenario, events: int) -> None:
        self._scenario = scenario
        self._events = events
        self._dice = random.Random(scenario.seed)
        self._trace = Trace()
        self._run = Run(scenario)
        self._worlds: list[World] = []
        self._states: list[dict[str, object]] = []

    def finish(self) -> Run:
        """Return the results."""
        for world in self._worlds:
            self._part_from(world)
        run, trace = self._run, self._trace
        run.events, run.checksum, run.trace = trace.events, trace.checksum, tuple(trace.lines)
        return run

    def go(self) -> None:
        """Run epochs."""
        try:
            number = 0
            while self._trace.events < self._events:
                try:
                    self._epoch(number)
                except _Left:
                    self._part()
                self._run.epochs += 1
                number = self._dice.randrange(100) if self._dice.random() < 0.1 else number + 1  # set_epoch
        except _Over:
            pass
        for world in self._worlds:
            world.close()

    # -- one epoch ---------------------------------------------------------------------------------------------------

    def _epoch(self, number: int) -> None:
        scenario, dice, habits = self._scenario, self._dice, self._scenario.habits
        tally: Counter[int] = Counter()
        ranks, workers = scenario.ranks, scenario.workers
        expected: list[Expected] = []
        if not scenario.persistent:
            self._part()
        if not self._worlds:
            ranks = len(self._states) or ranks
            self._worlds = [self._world(rank, ranks, workers) for rank in range(ranks)]
        states = self._after()
        for rank, world in enumerate(self._worlds):
            world.begin(number, _next_epoch(states[rank], number) if states else None)
            expected.append(self._expect(world, tally))
        while True:
            target = self._until_leaving(dice, habits)
            ends = {self._walk(rank, expected[rank], target) for rank in range(len(self._worlds))}
            if ends == {"ended"}:
                self._check_tally(tally)
                for world in self._worlds:
                    world.epoch.progress.ended = True
                if dice.random() < habits.move:
                    self._states = [world.state() for world in self._worlds]
                    self._part()
                return
            if "spent" in ends or "ended" in ends:
                if len(ends) > 1 and "spent" not in ends:
                    raise LawBroken(f"ranks get out of step: {sorted(ends)}")
                return
            if dice.random() * (habits.leave + habits.move) < habits.leave:
                self._trace.add(0.0, "leave")
                return
            expected = self._move(number, tally, expected)

    def _after(self) -> list[dict[str, object]]:
        states, self._states = self._states, []
        return states

    def _until_leaving(self, dice: random.Random, habits: Habits) -> int | None:
        chance = habits.leave + habits.move
        return 1 + int(dice.expovariate(chance)) if chance else None

    def _expect(self, world: World, tally: Counter[int]) -> Expected:
        if self._scenario.kind == OWN:
            expected: Expected = Rotation(self._scenario, len(world.machine.flights.active))
        else:
            expected = Planned(self._scenario, tally)
        expected.follow(world)
        return expected

    def _check_tally(self, tally: Counter[int]) -> None:
        """Check that all ranks together got or accounted for every sample, as often as the tail allows."""
        scenario = self._scenario
        if scenario.kind == OWN or not scenario.samples:
            return
        is_sharded = scenario.ranks > 1
        least = 0 if scenario.drop_last or (is_sharded and scenario.tail == "drop") else 1
        most = scenario.samples if is_sharded and scenario.tail == "pad" else 1
        wrong = [place for place in range(scenario.samples) if not least <= tally[place] <= most]
        if wrong:
            raise LawBroken(f"sample {wrong[0]} came {tally[wrong[0]]} times in an epoch of {scenario.ranks} ranks")

    # -- elsewhere ---------------------------------------------------------------------------------------------------

    def _world(self, rank: int, ranks: int, workers: int) -> World:
        scenario, dice = self._scenario, random.Random(self._dice.random())
        share = Share(rank, ranks, scenario.tail)
        most = workers + scenario.most_workers - scenario.workers
        return World(scenario, workers, share, self._trace, dice, most_workers=most)

    def _part(self) -> None:
        for world in self._worlds:
            world.close()
            self._part_from(world)
        self._worlds = []

    def _part_from(self, world: World) -> None:
        """Add the figures of a closed loader to the results."""
        run, counters = self._run, world.counters
        run.counts["restarts"] += counters.restarts
        run.counts["recycled"] += counters.recycled
        run.counts["relieved"] += counters.relieved
        run.counts["run ahead"] += counters.run_ahead
        run.counts["without slot"] += world.slots.without

    def _workers_elsewhere(self, dice: random.Random, before: int) -> int:
        """Return the number of workers elsewhere; the same as before if workers have their own streams or states."""
        is_bound = self._scenario.kind == OWN or (self._scenario.kind == MAP and self._scenario.stateful)
        return before if is_bound else dice.choice((1, 2, 3, before))

    def _move(self, number: int, tally: Counter[int], expected: list[Expected]) -> list[Expected]:
        """Save the states of all ranks and continue elsewhere, perhaps with another number of ranks."""
        scenario, dice = self._scenario, self._dice
        states = [world.state() for world in self._worlds]
        if any(world.closed for world in self._worlds):
            raise _Left
        for one in expected:
            one.left()
        ranks, workers = len(states), self._workers_elsewhere(dice, len(self._worlds[0].machine.flights.active))
        self._trace.add(0.0, "move", ranks, workers)
        self._run.moves += 1
        may_change = scenario.order == IN_ORDER and not scenario.stateful and scenario.tail != "exact"
        if ranks > 1 and may_change:
            self._check_agreement(states)
            ranks = dice.choice((2, 3, ranks))
            states = [{**states[0], "faults": states[min(rank, len(states) - 1)]["faults"]} for rank in range(ranks)]
        self._part()
        self._worlds = [self._world(rank, ranks, workers) for rank in range(ranks)]
        follows = []
        for rank, (world, state) in enumerate(zip(self._worlds, states, strict=True)):
            world.restore(number, state)
            if scenario.kind == OWN or scenario.stateful:
                expected[rank].follow(world)
                follows.append(expected[rank])
            else:
                follows.append(self._expect(world, tally))
        return follows

    def _check_agreement(self, states: list[State]) -> None:
        # A short last step counts as a full one if a sample failed before the end of the stream was seen. Ranks that
        # drop what is left over are at the end before it.
        dropped = len(states) - 1 if self._scenario.tail == "drop" else 0
        end = self._scenario.samples - dropped
        places = {min(state["order"].get("consumed", 0), end) for state in states}
        if len(places) > 1:
            raise LawBroken(f"ranks are at different places after the same number of steps: {places}")

    def _look(self, world: World, expected: Expected) -> None:
        """Let another loader continue from a saved state, and check that it delivers the same remaining batches."""
        scenario, number = self._scenario, world.epoch.number
        state = world.state()
        if world.closed:
            return
        self._run.looks += 1
        calm = replace(scenario, accidents=Accidents(), habits=Habits(), restarts=1000)
        dice = random.Random(self._dice.random())
        workers = self._workers_elsewhere(dice, len(world.machine.flights.active))
        other = World(calm, workers, world.share, self._trace, dice)
        other.restore(number, state)
        self._trace.add(0.0, "look", workers)
        rest = expected.twin()
        rest.follow(other)
        try:
            while True:
                try:
                    other.next()
                except (*_RAISED, TooManyBadSamples) as exc:
                    is_late = isinstance(exc, WorkerTimeout) and exc is not other.raised
                    if other.closed or is_late or isinstance(exc, TooManyBadSamples):
                        break
        except StopIteration:
            rest.ended()
        other.close()
        self._trace.add(0.0, "looked")

    # -- steps -------------------------------------------------------------------------------------------------------

    def _walk(self, rank: int, expected: Expected, target: int | None) -> str:
        """Take `target` steps with one rank (None: no limit).

        Returns:
            "ended" at the end of the epoch, "spent" if the fault budget is used up, otherwise "left".
        """
        begin, scenario, dice = expected.steps, self._scenario, self._dice
        held: deque[int] = deque()
        while target is None or expected.steps - begin < target:
            if self._trace.events >= self._events:
                raise _Over
            world = self._worlds[rank]
            try:
                _, slot = world.next()
            except StopIteration:
                expected.ended()
                self._drop(world, held, 0)
                return "ended"
            except TooManyBadSamples:
                self._run.raised["TooManyBadSamples"] += 1
                self._drop(world, held, 0)
                return "spent"
            except Exception as exc:
                if not self._may_come(world, exc):
                    raise
                self._run.raised[type(exc).__name__] += 1
                if world.closed or (isinstance(exc, WorkerTimeout) and exc is not world.raised):
                    held.clear()
                    self._revive(rank, expected)
                continue
            self._run.batches += 1
            if slot >= 0:
                held.append(slot)
            self._drop(world, held, scenario.habits.holds)
            world.pass_time(draw_s(dice, scenario.step_s, expected.steps - 1))
            self._do_besides(world, expected)
        self._drop(self._worlds[rank], held, 0)
        return "left"

    def _drop(self, world: World, held: deque[int], most: int) -> None:
        """Drop batches at random until the training loop has at most `most`."""
        while len(held) > most:
            place = self._dice.randrange(len(held))
            slot = held[place]
            del held[place]
            world.slots.drop(slot)

    def _do_besides(self, world: World, expected: Expected) -> None:
        dice, habits = self._dice, self._scenario.habits
        if habits.call and dice.random() < habits.call:
            world.call(fails=dice.random() < 0.2)
        if habits.resize and self._scenario.most_workers > self._scenario.workers and dice.random() < habits.resize:
            world.resize()
        if habits.look and dice.random() < habits.look:
            self._look(world, expected)

    def _may_come(self, world: World, exc: Exception) -> bool:
        """True if a loader may raise `exc`. Exceptions raised instead of a batch have been checked before."""
        if exc is world.raised:
            return not isinstance(exc, LawBroken)
        scenario, books = self._scenario, world.books
        has_left = books.epoch_deaths <= scenario.restarts
        may_go_on = scenario.kind == MAP and has_left
        if isinstance(exc, WorkerDied) and world.closed and may_go_on and (exc.was_ready or exc.was_killed):
            raise LawBroken(f"the loader gives up after {books.epoch_deaths} deaths, within its budget") from exc
        if isinstance(exc, WorkerTimeout) and not any(worker.outstanding for worker in world.workers):
            raise LawBroken("the training loop gets a timeout although no worker has a task") from exc
        return isinstance(exc, _RAISED) and not isinstance(exc, LawBroken)

    def _revive(self, rank: int, expected: Expected) -> None:
        """Continue with a new loader where the training loop was, after an error that ends the old one."""
        old = self._worlds[rank]
        state, number = old.state(), old.epoch.number
        old.close()
        self._part_from(old)
        workers = self._workers_elsewhere(self._dice, len(old.machine.flights.active))
        world = self._worlds[rank] = self._world(rank, old.share.world_size, workers)
        self._trace.add(0.0, "revived", rank, workers)
        world.restore(number, state)
        expected.left()
        expected.follow(world)


def _next_epoch(state: dict[str, object], number: int) -> Snapshot:
    """Return where epoch `number` begins, given the state at the end of another."""
    ended = Snapshot.from_dict({name: value for name, value in state.items() if name != "faults"})
    return Snapshot(number, order=ended.order, streams=ended.streams)
