"""The datasets that a pipe begins with, as stages."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline.abc.deferred import hands_on_images
from feedline.abc.description import Description, origin_of
from feedline.abc.source import (
    ColumnSource,
    IterableSource,
    Repeatable,
    ShardedSource,
    changes_with_epoch,
    copy_for_worker,
)
from feedline.abc.stateful import is_stateful
from feedline.errors import BadState, SourceError
from feedline.pipes.calling import Seeding, salted, warn_if_unequal
from feedline.pipes.cursor import Cursor, up_to_failure
from feedline.pipes.lap import CursorState, Draws, Lap, Places, Samples
from feedline.pipes.stage import MapStage, Stage, StreamStage
from feedline.randomness.global_states import seed_globals
from feedline.randomness.scope import current_scope
from feedline.system.failures import broke_generator, note_last
from feedline.types import MapStyle

if TYPE_CHECKING:
    from typing_extensions import Self


class _Origin(Stage):
    """A stage that reads a dataset."""

    # Any: a dataset is any object that fits.
    dataset: Any

    def datasets(self) -> list[object]:
        return [self.dataset]

    def set_epoch(self, epoch: int) -> None:
        if callable(set_epoch := getattr(self.dataset, "set_epoch", None)):
            set_epoch(epoch)


class MapOrigin(_Origin, MapStage):
    """A map-style dataset."""

    def __init__(self, dataset: MapStyle[object]) -> None:
        super().__init__(label=type(dataset).__name__)
        self.dataset = dataset
        self.depends_on_epoch = changes_with_epoch(dataset)
        self.has_columns = isinstance(dataset, ColumnSource)
        self.hands_on_images = hands_on_images(dataset)
        self._seeding = Seeding()

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, places: Places, epoch: int, draws: Draws) -> Samples:
        indices = (places % max(len(self.dataset), 1)).tolist()
        dataset = self.dataset
        # Samples of a stream that are read together must not share random numbers: the grouping is arbitrary.
        several = getattr(dataset, "__getitems__", None)
        if callable(several) and not (draws.seeds and getattr(dataset, "transform", None)):
            return list(several(indices))
        scope = current_scope()
        with contextlib.nullcontext() if scope is None else salted(scope, 0, draws):
            return self._seeding.run(indices, draws, lambda walk: [dataset[index] for index in walk])

    def read_columns(self, places: Places, epoch: int) -> object:
        dataset, size = self.dataset, len(self)
        return dataset.read_columns(places % size) if isinstance(dataset, ColumnSource) else None

    def lengths(self, places: Places, epoch: int) -> Places | None:
        # Only arrays: an attribute of this name can be anything.
        known = getattr(self.dataset, "lengths", None)
        if not isinstance(known, np.ndarray) or known.shape != (len(self),) or known.dtype.kind not in "iu":
            return None
        return known[places % len(self)].astype(np.int64)

    def origin(self, place: int, epoch: int) -> tuple[object, int]:
        return self.dataset, int(place) % len(self)

    def describe(self) -> Description:
        return origin_of(self.dataset, len(self))


class InOrder(StreamStage):
    """A map-style stage as a stream: its samples one after the other.

    Args:
        stage: the map-style stage.
        is_endless: True to start again after the last sample, forever.
    """

    def __init__(self, stage: MapStage, *, is_endless: bool = False) -> None:
        super().__init__(label="repeat()" if is_endless else "", fixed={"times": None})
        self.stage = stage
        self.sources = (stage,)
        self.is_endless = is_endless

    @property
    def depth(self) -> int:
        return self.stage.depth

    def count(self) -> int | None:
        return None if self.is_endless else len(self.stage)

    def open(self, lap: Lap) -> Cursor:
        return PlaceCursor(self.stage, lap, is_endless=self.is_endless)


def as_stream(stage: Stage) -> StreamStage:
    """Return a stage as a stream."""
    return stage if isinstance(stage, StreamStage) else InOrder(stage)  # type: ignore[arg-type]  # or map-style


class PlaceCursor(Cursor):
    """Reads a map-style stage in order. Its position is one number."""

    def __init__(self, stage: MapStage, lap: Lap, *, is_endless: bool) -> None:
        self._stage = stage
        self._lap = lap
        self._size = len(stage)
        self._base = lap.number * self._size
        self._at = 0
        self._end: int | None = None if is_endless and self._size else self._size

    def take(self, count: int) -> Samples:
        if self._end is not None:
            count = min(count, self._end - self._at)
        if count <= 0:
            return []
        first = self._base + self._at
        found, failure = up_to_failure(self._read, range(first, first + count))
        if failure is not None and not found:
            self._at += 1
            raise failure
        self._at += len(found)
        return found

    def _read(self, places: range) -> Samples:
        draws = Draws(places, seeds=True, branch=self._lap.branch)
        return self._stage.read(np.arange(places.start, places.stop), self._lap.epoch, draws)

    def skip(self, count: int) -> int:
        if self._end is not None:
            count = min(count, self._end - self._at)
        self._at += count
        return count

    def try_again(self) -> bool:
        self._at -= 1
        return True

    def state(self) -> CursorState:
        return {"at": self._at}

    def restore(self, state: CursorState) -> None:
        if self._end is not None and state["at"] > self._end:
            raise BadState(
                f"According to the state, {state['at']} samples were read, but there are {self._end}. Use the data "
                "that the state was saved with."
            )
        self._at = state["at"]


class StreamOrigin(_Origin, StreamStage):
    """An iterable dataset."""

    # Any: a dataset is any object that fits.
    def __init__(self, dataset: Any) -> None:
        super().__init__(label=type(dataset).__name__)
        self.dataset = dataset
        self.depends_on_epoch = changes_with_epoch(dataset)
        self.is_sharded = isinstance(dataset, ShardedSource)

    def count(self) -> int | None:
        try:
            return len(self.dataset)
        except TypeError:
            return None

    def open(self, lap: Lap) -> Cursor:
        self.set_epoch(lap.epoch)
        dataset = self.dataset
        if self.is_sharded and (lap.worker or lap.ranks):
            dataset = copy.copy(dataset)  # workers that are threads share it
            if lap.worker is not None:
                dataset.set_worker(*lap.worker)
            if lap.ranks is not None:
                dataset.set_ranks(*lap.ranks)
        return IteratorCursor(dataset, (self.identity, lap), is_whole=not self.is_sharded)

    def describe(self) -> Description:
        return origin_of(self.dataset, None)

    def copied(self) -> Self:
        own = super().copied()
        own.dataset = copy_for_worker(self.dataset)
        return own


def _no_worker() -> AbstractContextManager[None]:
    """Return a context in which torch's `get_worker_info()` returns None."""
    if "torch.utils.data" not in sys.modules:
        return contextlib.nullcontext()
    from feedline.frameworks.torch import worker_info_hidden

    return worker_info_hidden()


class IteratorCursor(Cursor):
    """Reads an iterable dataset; resumes by its own state if it has one, else by reading it again."""

    # Any: a dataset is any object that fits.
    def __init__(self, dataset: Any, where: Hashable, *, is_whole: bool) -> None:
        self._dataset = dataset
        self._where = where
        """Identifies the stream, for workers that compare its samples."""
        self._is_compared = not isinstance(dataset, IterableSource)
        self._context = _no_worker if is_whole else contextlib.nullcontext
        """The context in which the dataset's code runs. The loader deals out samples, so it must not split itself."""
        self._number = 0
        """Samples read so far, including those that failed."""
        self._failure: Exception | None = None
        self._left: Samples = []
        """Samples that were read before an interrupt."""
        self._ended = False
        self._begin()

    def _begin(self) -> None:
        with self._context():
            self._iterator = iter(self._dataset)
        self._take_many: Callable[[int], Samples] | None = getattr(self._iterator, "take", None)
        self._skip_many: Callable[[int], int] | None = getattr(self._iterator, "skip", None)

    def take(self, count: int) -> Samples:
        if self._left:
            found, self._left = self._left[:count], self._left[count:]
            self._number += len(found)
            return found
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._number += 1
            raise failure
        if self._ended:
            return []
        found = []
        try:
            with self._context():
                if self._take_many is not None:
                    found = self._take_many(count)
                else:
                    self._take_each(count, found)
        except StopIteration:
            self._ended = True
        except Exception as exc:
            self._ended = broke_generator(exc, self._iterator, type(self._dataset).__name__) or (
                isinstance(self._iterator, Repeatable) and self._iterator.has_broken_off
            )
            if self._ended:
                note_last(exc)
            if not found:
                self._number += 1
                raise
            self._failure = exc
        except BaseException:  # an interrupt: what was read comes next time
            self._left = found
            raise
        if self._is_compared and warn_if_unequal(self._where, type(self._dataset).__name__, self._number, found):
            self._is_compared = False
        self._number += len(found)
        return found

    def _take_each(self, count: int, found: Samples) -> None:
        scope, iterator, first = current_scope(), self._iterator, self._number
        for number in range(first, first + count):
            if scope is not None:
                scope.place = number
                if scope.seeds_globals:
                    seed_globals(scope.key())
            found.append(next(iterator))

    def skip(self, count: int) -> int:
        if self._skip_many is None or self._failure is not None or self._left or self._ended:
            return super().skip(count)
        with self._context():
            skipped = self._skip_many(count)
        self._number += skipped
        return skipped

    def try_again(self) -> bool:
        again = getattr(self._iterator, "try_again", None)
        if again is None or not again():
            return False
        self._number -= 1
        return True

    def state(self) -> CursorState:
        state: CursorState = {"number": self._number}
        if is_stateful(self._iterator):
            state["iterator"] = self._iterator.state_dict()
        elif is_stateful(self._dataset):
            state["dataset"] = self._dataset.state_dict()
        if self._failure is not None and len(state) > 1:  # the dataset has moved past the sample that failed
            state["failed"] = repr(self._failure)
        return state

    def restore(self, state: CursorState) -> None:
        if "failed" in state:
            self._failure = SourceError(
                f"Sample {state['number']} of {type(self._dataset).__name__} failed before the state was saved: "
                f"{state['failed']}."
            )
        if "iterator" in state:
            self._iterator.load_state_dict(state["iterator"])
            self._number = state["number"]
        elif "dataset" in state:
            self._dataset.load_state_dict(state["dataset"])
            self._begin()
            self._number = state["number"]
        elif (skipped := self.skip(state["number"])) < state["number"]:
            raise BadState(
                f"According to the state, {state['number']} samples were read of {type(self._dataset).__name__}, but "
                f"it has {skipped}. Use the data that the state was saved with."
            )
