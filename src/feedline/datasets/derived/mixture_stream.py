"""Several datasets, at least one iterable, as one stream in given proportions.

The state of a mixture consists of the states of its datasets: the number of samples taken, and the dataset's or
iterator's own state if it has `state_dict` and `load_state_dict`. A dataset without these is restarted and read up to
its position when its next sample is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline.abc.description import Described, Description, check_description
from feedline.abc.source import Repeatable, ShardedSource, copy_for_worker
from feedline.abc.stateful import check_format, is_stateful
from feedline.datasets.derived.mixture import Mixed, Orders, check_weights, form
from feedline.datasets.framework.passes import Part, PartedStream, Pass, Stream, copied_stream
from feedline.errors import BadOption, BadState
from feedline.randomness.keys import epoch_key, mix
from feedline.randomness.scope import current_scope
from feedline.randomness.turns import Turns
from feedline.system.failures import broke_generator
from feedline.types import DatasetKind, MapStyle, State

if TYPE_CHECKING:
    from typing_extensions import Self

_BLOCK = 1 << 8
"""Number of places to decide at a time."""


class MixtureStream(Stream, Mixed, Described):
    """An iterable dataset that takes its samples from several others; `mix` makes it.

    As with any iterable dataset, each worker has its own stream, and the loader divides the output.
    """

    # Any: datasets are any objects that fit.
    def __init__(
        self,
        datasets: Sequence[Any],
        kinds: Sequence[DatasetKind],
        weights: Sequence[float] | None,
        size: int | None,
        *,
        seed: int,
        repeat: bool,
    ) -> None:
        super().__init__()
        self.datasets = list(datasets)
        self._sizes = [len(d) if k is DatasetKind.MAP else None for d, k in zip(datasets, kinds, strict=True)]
        self.size = size
        self.seed = seed
        self.repeat = repeat
        self._pass: _MixturePass | None = None
        self._state: dict[str, object] | None = None
        self.set_weights(weights)

    def set_weights(self, weights: Sequence[float] | None) -> None:
        """Mix in other proportions from the next iteration on; None for equal ones.

        Raises BadOption: these are not valid weights for the datasets.
        """
        self.weights = check_weights(weights, self._sizes)

    def __iter__(self) -> Iterator[Any]:
        state, self._state = self._state, None
        self._pass = _MixturePass(self, state, self._part())
        return self._pass

    def state_dict(self) -> State:
        """Return the position of the latest iteration: after the last sample that it returned."""
        if self._state is not None:
            return self._state
        if self._pass is None:
            begun = {"epoch": self.epoch, "taken": 0, "ended": False, "datasets": [None] * len(self.datasets)}
            return {"mixture": self.describe(), **begun}
        return self._pass.state()

    def describe(self) -> Description:
        """Return the options that a state must be loaded with. Weights may change: each dataset has its position."""
        options = {"size": self.size, "seed": self.seed, "repeat": self.repeat}
        return [{"operator": "mix", **options, "sources": self._sources()}]

    # object: a state may come from anywhere.
    def load_state_dict(self, state: object) -> None:
        """Resume at `state` in the next iteration; later ones start from the beginning.

        Raises BadState: this is not a state of such a mixture.
        """
        if isinstance(state, dict):
            check_format(state, "a mixture")
        if not isinstance(state, dict) or not {"mixture", "epoch", "taken", "ended", "datasets"} <= state.keys():
            raise BadState(
                "This is not the state of a mixture, as its state_dict() returns it: it was saved by another version "
                "of feedline, or with another dataset. Use those again, or start the epoch over without the state. "
                f"It is {state!r:.200}"
            )
        check_description(state["mixture"], self.describe())
        self.set_epoch(state["epoch"])
        self._pass = None
        self._state = state

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_pass": None}

    def __copy__(self) -> Self:
        own = copied_stream(self)
        pairs = zip(self.datasets, self._sizes, strict=True)
        own.datasets = [copy_for_worker(dataset) if size is None else dataset for dataset, size in pairs]
        return own

    def __repr__(self) -> str:
        size = "" if self.size is None else f"{self.size} samples of "
        repeat = ", repeat=True" if self.repeat else ""
        name = type(self).__name__
        return f"{name}({size}{len(self.datasets)} datasets, {form(self.weights)}, seed={self.seed}{repeat})"


class ShardedMixtureStream(PartedStream, MixtureStream):
    """A mixture that splits itself over workers and ranks, because its iterable datasets do; `mix` makes it.

    Every worker of every rank mixes its own parts of them, and every n-th sample of the map-style ones, in the given
    proportions, so that each sample comes once. It ends when one of its parts does.
    """

    def set_worker(self, number: int, count: int) -> None:
        super().set_worker(number, count)
        for dataset in self.datasets:
            if isinstance(dataset, ShardedSource):
                dataset.set_worker(number, count)


class _MixturePass(Pass[int]):
    """One pass over a mixture, or over one part of it. The items are dataset numbers.

    A sample that fails still uses up its place: a caller that continues after an exception gets the next one.
    """

    def __init__(self, mixture: MixtureStream, state: dict[str, object] | None, part: Part) -> None:
        super().__init__(part)
        self._description = mixture.describe()
        secret = epoch_key(mixture.seed, mixture.epoch)
        number, count = part
        self._epoch = mixture.epoch
        self._size = None if mixture.size is None else len(range(number, mixture.size, count))
        self._turns = Turns(mixture.weights, mix(secret, 0) if number == 0 else mix(mix(secret, 2), number))
        orders = Orders([size or 1 for size in mixture._sizes], mix(secret, 1))
        self._parts: list[_MapPart | _StreamPart] = [
            _StreamPart(dataset, place, mixture.repeat)
            if size is None
            else _MapPart(dataset, place, range(number, size, count), orders, mixture.repeat)
            for place, (dataset, size) in enumerate(zip(mixture.datasets, mixture._sizes, strict=True))
        ]
        self._taken = 0
        self._ended = False
        self._block: Iterator[int] = iter(())
        if state is not None:
            self._restore(state)

    def _take(self) -> int:
        if self._ended or self.has_broken_off or (self._size is not None and self._taken >= self._size):
            raise StopIteration
        number = next(self._block, None)
        if number is None:
            numbers, _ = self._turns.at(np.arange(self._taken, self._taken + _BLOCK))
            self._block = iter(numbers.tolist())
            number = next(self._block)
        self._taken += 1
        return number

    def _make(self, item: int) -> object:
        part = self._parts[item]
        try:
            return part.read()
        except StopIteration:
            self._ended = True
            self._taken -= 1
            raise
        except Exception:
            self.has_broken_off = part.has_broken_off
            raise

    def try_again(self) -> bool:
        failed = self._failed
        return failed is not None and self._parts[failed].try_again() and super().try_again()

    def state(self) -> State:
        return {
            "mixture": self._description,
            "epoch": self._epoch,
            "taken": self._taken - (self._again is not None),
            "ended": self._ended,
            "part": list(self._part),
            "datasets": [part.state() for part in self._parts],
        }

    def _restore(self, state: State) -> None:
        was, part = state.get("part"), list(self._part)
        if was is not None and list(was) != part:
            raise BadState(
                f"The state belongs to part {was[0]} of {was[1]} of the mixture, but this is part {part[0]} of "
                f"{part[1]}. To resume a mixture of datasets that split themselves, use as many workers and ranks as "
                "before."
            )
        self._taken = state["taken"]
        self._ended = state["ended"]
        for dataset_part, own_state in zip(self._parts, state["datasets"], strict=True):
            if own_state is not None:
                dataset_part.restore(own_state)


@dataclass(eq=False)
class _MapPart:
    """A map-style dataset in a mixture, in random order: some of its turns in the first pass, then in later passes."""

    _dataset: MapStyle[object]
    _number: int
    _turns: range
    _orders: Orders
    _repeat: bool
    _turn: int = 0
    has_broken_off = False

    def read(self) -> object:
        if self._turn >= len(self._turns) and not self._repeat:
            raise StopIteration
        turn = self._turns.start + self._turn * self._turns.step
        try:
            sample = self._dataset[self._orders.one(self._number, turn)]
        except Exception:
            self._turn += 1
            raise
        self._turn += 1
        return sample

    def try_again(self) -> bool:
        self._turn -= 1
        return True

    def state(self) -> dict[str, object]:
        return {"taken": self._turn}

    def restore(self, state: State) -> None:
        self._turn = state["taken"]


@dataclass(eq=False)
class _StreamPart:
    """An iterable dataset in a mixture."""

    # Any: a dataset that can be iterated over, and its iterator, perhaps with further methods.
    _dataset: Any
    _number: int
    _repeat: bool
    _iterator: Any = None
    _taken: int = 0
    """Samples requested in this pass, including those that failed."""
    _passes: int = 0
    _skip: int = 0
    has_broken_off: bool = False
    """True if an exception has ended the iterator, and so the mixture."""

    def read(self) -> object:
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        if self._skip:
            self._skip_taken()
        try:
            sample = next(self._iterator)
        except StopIteration:
            if not self._repeat:
                raise
            if self._taken == 0:
                self.has_broken_off = True
                raise BadOption(
                    f"datasets[{self._number}] yields no samples, even when it is repeated. Leave it out."
                ) from None
            self._iterator = None
            self._taken = 0
            self._passes += 1
            return self.read()
        except Exception as exc:
            self._taken += 1
            self._note(exc)
            raise
        self._taken += 1
        return sample

    def _skip_taken(self) -> None:
        """Read again the samples that were taken before the state was saved."""
        while self._skip:
            self._skip -= 1
            try:
                next(self._iterator)
            except StopIteration:
                self._skip = 0
            except Exception as exc:  # it was already raised or skipped at its turn
                self._note(exc)
                if self.has_broken_off:
                    raise
        scope = current_scope()
        if scope is not None:  # undo their draws: these random numbers belong to the sample that is being made
            scope.begin_sample_again()

    def _note(self, exc: Exception) -> None:
        """Record whether an exception has ended the iterator, as it ends any generator."""
        self.has_broken_off = broke_generator(exc, self._iterator, f"datasets[{self._number}]") or (
            isinstance(self._iterator, Repeatable) and self._iterator.has_broken_off
        )

    def try_again(self) -> bool:
        if self._iterator is None:  # the iterator was never created
            return True
        if not isinstance(self._iterator, Repeatable) or not self._iterator.try_again():
            return False
        self._taken -= 1
        return True

    def state(self) -> State:
        state: dict[str, object] = {"taken": self._taken, "passes": self._passes}
        if self._iterator is not None and is_stateful(self._iterator):
            state["iterator"] = self._iterator.state_dict()
        if is_stateful(self._dataset) and self._iterator is not self._dataset:
            state["dataset"] = self._dataset.state_dict()
        return state

    def restore(self, state: State) -> None:
        self._taken = state["taken"]
        self._passes = state["passes"]
        if "dataset" in state:
            self._dataset.load_state_dict(state["dataset"])
        if "iterator" in state:
            self._iterator = iter(self._dataset)
            self._iterator.load_state_dict(state["iterator"])
        if "dataset" not in state and "iterator" not in state:
            self._skip = self._taken
