"""One-line bugs planted in the core: the simulation must find each of them."""

from __future__ import annotations

import inspect
import sys
import textwrap
from dataclasses import dataclass, field
from typing import Any

import pytest

from feedline.delivery.machine.crew import Crew
from feedline.delivery.machine.epoch import Epoch
from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.delivery.machine.flights import Flights
from feedline.delivery.machine.lateness import Lateness
from feedline.delivery.machine.machine import Machine
from feedline.delivery.machine.own_streams import OwnStreams
from feedline.delivery.machine.recovery import Recovery
from feedline.faults import Policy
from feedline.simulation.scenario import IN_ORDER
from tests.simulation.drawing import STATEFUL, Habits
from tests.simulation.scenario import MAP, OWN, Accidents, Troubles


@dataclass(frozen=True)
class PlantedBug:
    """A line of a method, and its wrong replacement."""

    what: str
    owner: type
    method: str
    line: str
    instead: str
    seed: int = 0
    """The seed of the first world in which it is searched for."""
    drawn: dict[str, Any] = field(default_factory=dict)
    """Settings that are fixed in these worlds, for bugs that show only in rare ones."""

    def install(self, patches: pytest.MonkeyPatch) -> None:
        """Put the bug into the code."""
        function = inspect.unwrap(getattr(self.owner, self.method))
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.line) == 1, f"{self.line!r} is not one line of {self.method}"
        names = dict(vars(sys.modules[function.__module__]))
        defined: dict[str, Any] = {}  # separate from `names`: a method may have the name of a function that it calls
        exec(compile(source.replace(self.line, self.instead), f"<{self.what}>", "exec"), names, defined)
        patches.setattr(self.owner, self.method, defined[self.method])


STOPPED: dict[str, Any] = {
    "kind": MAP,
    "stateful": False,
    "order": IN_ORDER,
    "moves": True,
    "workers": 3,
    "timeout_s": 5.0,
    "kills_stuck": True,
    "restarts": 1000,
    "troubles": Troubles(),
    "accidents": Accidents(stop=0.3),
    "habits": Habits(),
}
"""Worlds in which workers stop for good, and their tasks move."""

LEFT: dict[str, Any] = {"kind": OWN, "ranks": 1, "order": IN_ORDER, "persistent": True, "habits": Habits(leave=0.2)}
"""Worlds in which workers live on after an epoch that was left."""

RESIZED: dict[str, Any] = {"kind": MAP, "stateful": False, "habits": Habits(resize=0.3)}

PLANTED_BUGS = [
    PlantedBug(
        "a stopped worker repeatedly gets tasks of another",
        Crew,
        "taken_back",
        "flights.drained[worker] = None",
        "pass",
        drawn=STOPPED,
    ),
    PlantedBug(
        "tasks move although batches depend on their worker",
        Lateness,
        "help_idle_workers",
        "epoch.limits.moves and ",
        "",
        drawn={**STOPPED, "moves": False},
    ),
    PlantedBug(
        "the slot of a task whose worker died is lost",
        Crew,
        "_give_again",
        "self._flights.drop(flight)",
        "pass",
        seed=48,
    ),
    PlantedBug(
        "a slot is released while its batch is ready",
        Flights,
        "accept",
        "if not flight.wanted or",
        "if True or",
        seed=0,
    ),
    PlantedBug(
        "an epoch has only the rest of the last one's budget", Recovery, "begin_epoch", "self._left =", "_ =", seed=32
    ),
    PlantedBug(
        "samples that failed count twice",
        FaultBudget,
        "write",
        "self._lost += fault",
        "self._lost += 2 * fault",
        seed=54,
    ),
    PlantedBug(
        "a task that was taken back still counts",
        Crew,
        "taken_back",
        "flights.remove(worker, task_id)",
        "flights.of[worker].pop(task_id)",
        seed=5,
    ),
    PlantedBug(
        "batches left over from an epoch come in the next",
        Machine,
        "leave_epoch",
        "flight.requested.wanted = flight.wanted = flight.is_call",
        "pass",
        seed=0,
    ),
    PlantedBug(
        "the window is too large by one",
        Machine,
        "fill",
        "epoch.done < self.window",
        "epoch.done <= self.window",
        seed=0,
    ),
    PlantedBug(
        "a new worker continues one sample too late",
        OwnStreams,
        "_after",
        "read = (last.read or 0) + count",
        "read = (last.read or 0) + count + 1",
        drawn={"kind": OWN},
    ),
    PlantedBug(
        "a moved task is given to both workers",
        Crew,
        "taken_back",
        "flight.worker, has_moved = target, True",
        "flight.worker, has_moved = target, True; flights.decisions.append((GIVE, worker, flight.task))",
        seed=22,
    ),
    PlantedBug(
        "a call comes after tasks that were submitted later",
        Lateness,
        "_may_move_from",
        "flight.is_call or",
        "",
        drawn={"kind": MAP, "order": IN_ORDER, "late": 0.1, "depth": 4, "workers": 3, "habits": Habits(call=0.3)},
    ),
    PlantedBug(
        "batches delivered early are made again", Epoch, "next", "while self._already and", "while False and", seed=2
    ),
    PlantedBug("streams start with the wrong turn", OwnStreams, "open", "deque(in_turn *", "deque(active *", seed=30),
    PlantedBug(
        "the wrong sample is blamed for killing a worker",
        Recovery,
        "_found",
        "suspect.task, trouble.place",
        "suspect.task, trouble.place - 1",
        drawn={
            "kind": MAP,
            "batch_size": 4,
            "restarts": 1000,
            "policy": Policy(otherwise="skip"),
            "troubles": Troubles(killers=frozenset({5})),
            "accidents": Accidents(),
        },
    ),
    PlantedBug(
        "samples that are known to fail are requested",
        FaultBudget,
        "treat",
        "treated.skip += (place,)",
        "pass",
        drawn={
            "kind": MAP,
            "order": IN_ORDER,
            "ranks": 1,
            "stateful": False,
            "policy": Policy(otherwise="skip", max_share=1.0),
            "troubles": Troubles(bad=frozenset({5, 6})),
        },
    ),
    PlantedBug(
        "tasks waiting when a worker dies are forgotten",
        Crew,
        "started",
        "self._give_again(flight)",
        "pass",
        seed=2,
    ),
    PlantedBug("a wait for a batch never ends", Lateness, "judge", "or epoch is None", "or epoch", seed=4),
    PlantedBug(
        "the position is lost with a task that cannot be sent",
        Crew,
        "not_given",
        "self._attach_to_next_task(worker, flight.task.resume)",
        "pass",
        drawn={**STATEFUL, "batch_size": 2, "samples": 150, "accidents": Accidents(growth=0.3, not_sent=0.1)},
    ),
    PlantedBug(
        "a worker is retired before its tasks are done",
        Crew,
        "_retire_if_idle",
        "flights.workers[worker].outstanding",
        "False",
        drawn=RESIZED,
    ),
    PlantedBug(
        "an epoch that is left does not reach every worker",
        Machine,
        "leave_epoch",
        "flight.wanted = flight.is_call",
        "flight.wanted = flight.is_call; self.decisions.append((TAKE_BACK, flight.worker, None))",
        drawn=LEFT,
    ),
    PlantedBug(
        "workers that live on run ahead of the window",
        Lateness,
        "help_idle_workers",
        "epoch.limits.runs_ahead and ",
        "",
        drawn={**STOPPED, "moves": False, "persistent": True},
    ),
    PlantedBug(
        "a worker that reads its stream again is killed",
        Lateness,
        "was_alive",
        "if alive_s <= view.since_s",
        "if True",
        drawn={
            **STOPPED,
            "kind": OWN,
            "ranks": 1,
            "samples": 150,
            "start_s": 0.0,
            "reread_s": 2.0,
            "batch_s": 0.1,
            "late": 0.0,
            "accidents": Accidents(growth=0.05),
        },
    ),
    PlantedBug(
        "samples in quarantine stay there when their indices mean other samples",
        FaultBudget,
        "begin_epoch",
        "if self.log.quarantined_count and changes_with_epoch(self.dataset):",
        "if not number:",
        drawn={
            **STOPPED,
            "remaps": True,
            "troubles": Troubles(bad=frozenset({1, 4})),
            "policy": Policy(otherwise="skip", max_share=1.0),
            "accidents": Accidents(),
        },
    ),
]
