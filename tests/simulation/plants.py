"""Faults of one line, planted in the core: the simulation must find each of them."""

from __future__ import annotations

import inspect
import sys
import textwrap
from dataclasses import dataclass, field
from typing import Any

import pytest

from feedline.delivery.machine.epoch import Epoch
from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.delivery.machine.machine import Machine
from feedline.delivery.machine.own_streams import OwnStreamsEpoch
from feedline.delivery.machine.recovery import Recovery
from feedline.faults import Policy
from feedline.order.progress import Progress
from feedline.simulation import Accidents, Habits, Troubles
from feedline.simulation.scenario import IN_ORDER, MAP, OWN, STATEFUL


@dataclass(frozen=True)
class Plant:
    """A line of a method, and what stands there instead."""

    what: str
    owner: type
    method: str
    line: str
    instead: str
    seed: int = 0
    """Of the first world in which it is looked for."""
    drawn: dict[str, Any] = field(default_factory=dict)
    """What is not drawn in these worlds, if it takes a rare one."""

    def grow(self, patches: pytest.MonkeyPatch) -> None:
        """Put it in its place."""
        function = inspect.unwrap(getattr(self.owner, self.method))
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.line) == 1, f"{self.line!r} is not one line of {self.method}"
        names = dict(vars(sys.modules[function.__module__]))
        grown: dict[str, Any] = {}  # apart: a method may have the name of a function that it calls
        exec(compile(source.replace(self.line, self.instead), f"<{self.what}>", "exec"), names, grown)
        patches.setattr(self.owner, self.method, grown[self.method])


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
"""Worlds in which workers are stopped for good, and their work moves."""

RESIZED: dict[str, Any] = {"kind": MAP, "stateful": False, "habits": Habits(resize=0.3)}

PLANTS = [
    Plant(
        "signals that hit workers as they start end the epoch",
        Recovery,
        "end_by",
        "starts > self._most_starts(was_killed)",
        "starts > _MOST_STARTS",
        drawn={
            "kind": MAP,
            "stateful": False,
            "restarts": 1000,
            "accidents": Accidents(killed_at_start=0.8, death=0.1),
        },
    ),
    Plant(
        "a stopped worker gets the work of another again and again",
        Machine,
        "taken_back",
        "self._unresponsive[worker] = None",
        "pass",
        drawn=STOPPED,
    ),
    Plant(
        "work moves although batches depend on their worker",
        Machine,
        "_help_idle_workers",
        "self._moves and ",
        "",
        drawn={**STOPPED, "moves": False},
    ),
    Plant("the slot of a task whose worker died is lost", Machine, "_redo", "self._drop(begun)", "pass", seed=48),
    Plant(
        "the slot of a batch that failed is lost",
        Machine,
        "_settle",
        "not flight.wanted or result.kind is not ResultKind.DONE",
        "not flight.wanted",
        seed=0,
    ),
    Plant("a task that nobody wants keeps its slot", Machine, "taken_back", "self._drop(flight)", "pass", seed=0),
    Plant(
        "a slot is released while its batch is ready",
        Machine,
        "_settle",
        "if not flight.wanted or",
        "if True or",
        seed=0,
    ),
    Plant("batches that nobody wants keep their slots", Epoch, "leave", "list(self.ready.values())", "[]", seed=0),
    Plant("a death counts twice", Recovery, "end_by", "self._left -= 1", "self._left -= 2", seed=32),
    Plant("a death is not counted", Machine, "died", "self._counters.restarts += 1", "pass", seed=2),
    Plant(
        "an epoch has what is left of the last one's budget", Recovery, "begin_epoch", "self._left =", "_ =", seed=32
    ),
    Plant(
        "samples that failed count twice",
        FaultBudget,
        "write",
        "self._lost += fault",
        "self._lost += 2 * fault",
        seed=54,
    ),
    Plant(
        "samples that were seen count twice",
        FaultBudget,
        "write",
        "self._seen += count",
        "self._seen += 2 * count",
        seed=13,
    ),
    Plant(
        "a late answer of a worker that was replaced is taken",
        Machine,
        "_give_again",
        "self._give(flight, flight.task.slot)",
        "self._flights[flight.task.id] = flight; self._hand_over(flight)",
        seed=8,
    ),
    Plant("a task that was taken back still counts", Machine, "taken_back", "self._take_from(view)", "pass", seed=0),
    Plant(
        "a task that could not be sent still counts",
        Machine,
        "not_given",
        "self._take_from(self.workers[flight.worker])",
        "pass",
        seed=39,
    ),
    Plant(
        "a new worker does not count as idle",
        Machine,
        "started",
        "self._idle += view.outstanding > 0 and worker < len(self.active)",
        "pass",
        seed=0,
    ),
    Plant(
        "a task that waits for another worker is forgotten",
        Machine,
        "_hand_over",
        "].append(flight)",
        "].copy()",
        seed=2,
    ),
    Plant("a call is given again to a new worker", Machine, "_give_again", "if flight.is_call:", "if False:", seed=2),
    Plant(
        "the leftover of an epoch comes in the next",
        Machine,
        "leave_epoch",
        "flight.whole.wanted = flight.wanted = flight.is_call",
        "pass",
        seed=0,
    ),
    Plant(
        "the window is too large by one",
        Machine,
        "fill",
        "epoch.done < self._window",
        "epoch.done <= self._window",
        seed=0,
    ),
    Plant("a batch leaves the window twice", Epoch, "pop", "self.done += 1", "self.done += 2", seed=0),
    Plant(
        "a new worker is not told where to go on",
        Machine,
        "_give_again",
        "flight.task.resume = self._owed.pop(worker)",
        "self._owed.pop(worker)",
        seed=5,
    ),
    Plant(
        "a new worker is told too late where to go on",
        Machine,
        "_redo",
        "self._give_again(begun.worker, [begun])",
        "self.epoch.owe(begun.worker, self._owed.pop(begun.worker)) if begun.worker in self._owed else None",
        drawn={"kind": OWN, "ranks": 1, "accidents": Accidents(death=0.1), "habits": Habits(call=0.3)},
    ),
    Plant(
        "a new worker goes on one sample too late",
        OwnStreamsEpoch,
        "resume_for",
        "- origin.place, least=0",
        "- origin.place + 1, least=0",
        seed=5,
    ),
    Plant(
        "a task that moves is given to both",
        Machine,
        "taken_back",
        "flight.worker = target",
        "flight.worker = target; self.decisions.append((GIVE, worker, flight.task))",
        seed=22,
    ),
    Plant(
        "a call comes after tasks that were given later",
        Machine,
        "_may_move_from",
        "flight.is_call or",
        "",
        drawn={"kind": MAP, "order": IN_ORDER, "late": 0.1, "depth": 4, "workers": 3, "habits": Habits(call=0.3)},
    ),
    Plant("batches out of turn are not noted", Progress, "note", "self.early.add(ordinal)", "pass", seed=4),
    Plant("batches out of turn are made again", Epoch, "next", "while self._already and", "while False and", seed=2),
    Plant("streams begin with another turn", OwnStreamsEpoch, "open", "deque(in_turn *", "deque(active *", seed=30),
    Plant(
        "a stream that has ended is asked again", OwnStreamsEpoch, "end_stream", "flight.wanted = False", "pass", seed=6
    ),
    Plant(
        "another sample is blamed than the one that kills",
        Recovery,
        "_search_on",
        "self._found(suspect, search.found,",
        "self._found(suspect, search.found - 1,",
        drawn={
            "kind": MAP,
            "batch_size": 4,
            "restarts": 1000,
            "policy": Policy(otherwise="skip"),
            "troubles": Troubles(killers=frozenset({5})),
            "accidents": Accidents(),
        },
    ),
    Plant("a worker that has grown keeps its tasks", Machine, "grown", "self._parked[worker] = []", "pass", seed=2),
    Plant(
        "a worker is replaced while it is at work",
        Machine,
        "_replace_if_idle",
        "if self.workers[worker].outstanding > len(self._parked[worker])",
        "if False",
        seed=2,
    ),
    Plant(
        "nobody fills the place of a batch that is left out",
        Machine,
        "_pass_over",
        "epoch.pop(ordinal)",
        "None",
        seed=12,
    ),
    Plant(
        "samples that are known to fail are asked for",
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
    Plant(
        "what is waiting when a worker dies is forgotten",
        Machine,
        "started",
        "self._give_again(worker, left.waiting)",
        "pass",
        seed=2,
    ),
    Plant("a wait for a batch never ends", Machine, "judge_lateness", "self._look_at(epoch, due)", "pass", seed=4),
    Plant(
        "where to go on is lost with a task that cannot be sent",
        Machine,
        "not_given",
        "self._attach_to_next_task(flight.worker, flight.task.resume)",
        "pass",
        drawn={**STATEFUL, "batch_size": 2, "samples": 150, "accidents": Accidents(growth=0.3, not_sent=0.1)},
    ),
    Plant(
        "a worker is retired before it has done what it had",
        Machine,
        "_retire_if_idle",
        "self.workers[worker].outstanding",
        "False",
        drawn=RESIZED,
    ),
    Plant(
        "a worker that was retired gets tasks",
        Machine,
        "_send_one",
        "epoch.assign(indices, self.active)",
        "epoch.assign(indices, self.workers)",
        drawn=RESIZED,
    ),
    Plant("idle workers are not counted anew", Machine, "resize", "self._idle = sum", "_ = sum", drawn=RESIZED),
]
