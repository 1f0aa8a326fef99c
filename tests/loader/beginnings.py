"""What an iteration starts with: a dataset, the workers' specification, and a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.state.checkpoint import Checkpoint
from feedline.frameworks.numpy import NumpyFramework
from feedline.loader.loader import NumpyConfig
from feedline.loader.resources import Resources
from feedline.memory.arena import Arena
from feedline.order.foreign import ForeignOrder
from feedline.order.order import Entry, Order
from feedline.order.plan import Plan
from feedline.types import DatasetKind, Key, State


class Numbers:
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        if index == 4:
            raise ValueError("four")
        return index


def spec_of(dataset: Any, kind: DatasetKind = DatasetKind.MAP) -> WorkerSpec:
    return WorkerSpec(dataset, kind, list, NumpyFramework(), worker_count=0, base_seed=0)


def plan_of(batches: Iterable[Any]) -> Plan:
    """Return a plan of these batches."""
    return ForeignOrder(batches).plan(Entry(Key(0, 0), draw_key=0))


def bookmark_of(plan: list[Any] | Plan, workers: int = 0) -> Checkpoint:
    entry = Entry(Key(0, 0), draw_key=0)
    plan = plan if isinstance(plan, Plan) else plan_of(plan)
    return Checkpoint(GivenOrder(plan), entry, draw_seed=0, worker_count=workers, batch_size=1)


class GivenOrder(Order):
    """An order with one plan."""

    def __init__(self, plan: Plan, unit: str = "own batches") -> None:
        self._plan = plan
        self.unit = unit

    def plan(self, entry: Entry) -> Plan:
        return self._plan

    def expected(self) -> State:
        return {}


def resources_with(arena: Arena | None = None, **options: Any) -> Resources:
    """Return a loader's resources with this memory for batches, and a config with these options."""
    resources = Resources(NumpyConfig(dataset=(), **options))
    if arena is not None or not options:
        resources.arena = lambda: arena  # type: ignore[method-assign]
    return resources


class Remembering(Numbers):
    """A map-style dataset with a state."""

    def __init__(self) -> None:
        self.asked = 0

    def __getitem__(self, index: int) -> int:
        self.asked += 1
        return index

    def state_dict(self) -> dict[str, int]:
        return {"asked": self.asked}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.asked = state["asked"]


class Stream:
    def __iter__(self) -> Iterator[int]:
        return iter(range(7))
