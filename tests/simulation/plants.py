"""One-line bugs planted in the core, which the simulation must find, and worlds in which rare things happen often."""

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
from feedline.delivery.machine.lateness import Lateness
from feedline.delivery.machine.machine import Machine
from feedline.delivery.machine.own_streams import OwnStreams
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

PLANTED_BUGS = [
    PlantedBug(
        "a stopped worker repeatedly gets tasks of another",
        Crew,
        "taken_back",
        "flights.drained[worker] = None",
        "pass",
        drawn=STOPPED,
    ),
    PlantedBug("a dead worker loses its slot", Crew, "_give_again", "self._flights.drop(flight)", "pass", 48),
    PlantedBug("bad samples count twice", FaultBudget, "write", "self._lost += fault", "self._lost += 2 * fault", 54),
    PlantedBug("the window is too large", Machine, "fill", "epoch.done < self.window", "epoch.done <= self.window"),
    PlantedBug(
        "a new worker continues one sample too late",
        OwnStreams,
        "_after",
        "read = (last.read or 0) + count",
        "read = (last.read or 0) + count + 1",
        drawn={"kind": OWN},
    ),
    PlantedBug(
        "a call comes after tasks that were submitted later",
        Lateness,
        "_may_move_from",
        "flight.is_call or",
        "",
        drawn={"kind": MAP, "order": IN_ORDER, "late": 0.1, "depth": 4, "workers": 3, "habits": Habits(call=0.3)},
    ),
    PlantedBug("early batches are made again", Epoch, "next", "while self._already and", "while False and", 2),
    PlantedBug("a dead worker's waiting tasks are forgotten", Crew, "started", "self._give_again(flight)", "pass", 2),
]

RARE_WORLDS: dict[str, dict[str, Any]] = {
    "workers stop, and tasks stay with them": {**STOPPED, "moves": False},
    "workers stop and live on": {**STOPPED, "moves": False, "persistent": True},
    "epochs are left": {
        "kind": OWN,
        "ranks": 1,
        "order": IN_ORDER,
        "persistent": True,
        "habits": Habits(leave=0.2),
    },
    "the number of workers changes": {"kind": MAP, "stateful": False, "habits": Habits(resize=0.3)},
    "a sample kills": {
        "kind": MAP,
        "batch_size": 4,
        "restarts": 1000,
        "policy": Policy(otherwise="skip"),
        "troubles": Troubles(killers=frozenset({5})),
        "accidents": Accidents(),
    },
    "samples are known to fail": {
        "kind": MAP,
        "order": IN_ORDER,
        "ranks": 1,
        "stateful": False,
        "policy": Policy(otherwise="skip", max_share=1.0),
        "troubles": Troubles(bad=frozenset({5, 6})),
    },
    "tasks cannot be sent": {
        **STATEFUL,
        "batch_size": 2,
        "samples": 150,
        "accidents": Accidents(growth=0.3, not_sent=0.1),
    },
    "workers read their streams again": {
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
    "indices change their meaning": {
        **STOPPED,
        "remaps": True,
        "troubles": Troubles(bad=frozenset({1, 4})),
        "policy": Policy(otherwise="skip", max_share=1.0),
        "accidents": Accidents(),
    },
}
"""Settings of worlds in which something happens often that is rare in others. The core passes in all of them."""
