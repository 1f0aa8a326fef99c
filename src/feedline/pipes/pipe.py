"""`feedline.pipe`, and the datasets that it returns: what loaders see of a pipe."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.source import ColumnSource, Derived, EpochAware, StreamSource
from feedline.datasets.framework.passes import Epochs, PartedStream, Stream, copied_stream, torch_worker
from feedline.errors import BadOption
from feedline.pipes.iterator import PipeIterator
from feedline.pipes.lap import Draws, Lap, Samples
from feedline.pipes.methods import Pipe, stage_of
from feedline.pipes.operators.mix import Measure, Weights
from feedline.pipes.operators.slice import SlicedStream
from feedline.pipes.stage import MapStage, Stage, StreamStage
from feedline.randomness.keys import checked_seed
from feedline.randomness.scope import is_in_loader
from feedline.system.options import checked_flag

if TYPE_CHECKING:
    from typing_extensions import Self

# Any, throughout: samples and datasets are of any kind.


def pipe(dataset: object) -> Pipe:
    """Return a dataset with operators: `map`, `filter`, `shuffle`, `batch`, `mix` and others.

    A pipe is an ordinary dataset. Every operator returns another pipe, and none copies the data. A pipe over a
    map-style dataset is map-style, with `len` and `[index]`, until an operator makes the number of samples
    unpredictable: `filter`, `flat_map`, `unbatch`, `interleave`, `pack`, `repeat()` without a number. Then it is a
    stream, and iterable.

    Pipes work in `feedline.DataLoader`, `feedline.Loader`, torch's own loader, and in a `for` loop. In feedline's
    loaders, the samples of a pipe do not depend on the number of workers, and `state_dict()` resumes exactly, also with
    another number of workers or ranks. A pipe over a stream that splits itself, such as that of tar shards, is an
    exception: its order depends on the number of workers, which must stay the same.

    Args:
        dataset: a map-style or iterable dataset.

    Example:
        >>> import feedline
        >>> even = feedline.pipe(range(10)).shuffle(seed=1).map(lambda x: x * 10).filter(lambda x: x % 20 == 0)
        >>> sorted(even)
        [0, 20, 40, 60, 80]
        >>> even
        pipe(range).shuffle(seed=1).map(<lambda>).filter(<lambda>)
    """
    return dataset if isinstance(dataset, Pipe) else pipe_of(stage_of(dataset))


def mix(
    datasets: Sequence[object],
    weights: Weights | None = None,
    *,
    size: int | None = None,
    seed: int = 0,
    repeat: bool = False,
    measure: Measure | None = None,
) -> Pipe:
    """Return a dataset that takes its samples from several others, in given proportions.

    It is `pipe(a).mix(b, ...)`, which says how exact the proportions are, and how long a mixture is, after each
    map-style dataset was shuffled. So its samples come in random order, and again in another order once all of them
    have been used. Iterable datasets are read in their own order.

    If all datasets are map-style, so is the mixture: sample i depends only on i, seed, epoch and weights. Otherwise it
    is iterable. `set_weights(weights)` changes the proportions.

    Args:
        datasets: a list of map-style or iterable datasets.
        weights: the proportions, with any sum, or a schedule of them; equal if None.
        size: the number of samples. By default the total of map-style datasets; if one is iterable, there is no limit.
        seed: determines the order.
        repeat: True to start datasets that have ended again, forever; the mixture is iterable then.
        measure: as for `Pipe.mix`.

    Raises:
        BadOption: a dataset or weight is invalid, or a dataset with a weight is empty.

    Example:
        >>> from feedline.datasets import mix
        >>> speech, music = [f"speech {i}" for i in range(100)], [f"music {i}" for i in range(10)]
        >>> mixture = mix([speech, music], [0.75, 0.25], size=40)
        >>> mixture
        pipe(list).shuffle(seed=0).mix(pipe(list).shuffle(seed=1), weights=[0.75, 0.25], seed=0)
        >>> sum(sample.startswith("music") for sample in mixture)
        10
    """
    if not isinstance(datasets, (list, tuple)) or not datasets:
        raise BadOption(f"datasets={datasets!r:.80} is not a list of datasets. Pass them as in mix([speech, music]).")
    key, starts_again = checked_seed(seed), checked_flag("repeat", repeat)
    parts = [pipe_of(stage_of(dataset, f"datasets[{number}]")) for number, dataset in enumerate(datasets)]
    parts = [part.shuffle(seed=key + n) if isinstance(part, MapPipe) else part for n, part in enumerate(parts)]
    first, *others = [part.repeat() for part in parts] if starts_again else parts
    return first.mix(*others, weights=weights, size=size, seed=seed, measure=measure)


def pipe_of(stage: Stage) -> Pipe:
    """Return the pipe whose last operator is a stage."""
    if isinstance(stage, MapStage):
        return ColumnPipe(stage) if stage.has_columns else MapPipe(stage)
    assert isinstance(stage, StreamStage)
    return ShardedPipe(stage) if stage.is_sharded else StreamPipe(stage)


class MapPipe(Pipe, EpochAware, Derived):
    """A map-style pipe."""

    def __init__(self, stage: MapStage) -> None:
        self.stage: MapStage = stage
        self.epoch = 0
        self.changes_with_epoch = stage.changes_with_epoch()

    def _with(self, stage: Stage) -> Pipe:
        return pipe_of(stage)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which shuffles depend on. feedline's loaders call this automatically."""
        self.epoch = operator.index(epoch)
        self.stage.set_epoch(self.epoch)

    def __len__(self) -> int:
        return len(self.stage)

    def __getitem__(self, index: object) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: object) -> Samples:
        """Return the samples at several indices; loaders, including torch's, request batches this way."""
        places = self._checked(indices)
        return self.stage.read(places, self.epoch, Draws(range(len(places))))

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    @property
    def hands_on_images(self) -> bool:
        """As that of `Source`."""
        return self.stage.hands_on_images

    @property
    def datasets(self) -> list[object]:
        """The datasets that the pipe begins with."""
        return self.stage.datasets()

    def origin(self, index: Any) -> tuple[object, object]:
        (place,) = self._checked([index])
        return self.stage.origin(place, self.epoch)

    def _checked(self, indices: object) -> NDArray[np.int64]:
        places, count = np.asarray(indices), len(self)
        if places.ndim != 1 or (places.size and places.dtype.kind not in "iu"):
            raise TypeError(f"The samples of {self!r} are numbered, but the index is {indices!r:.100}.")
        places = places.astype(np.int64, copy=False)
        if places.size and (places.min() < -count or places.max() >= count):
            wrong = next(place for place in places.tolist() if not -count <= place < count)
            raise IndexError(f"index {wrong} is out of range for {self!r} of {count} samples")
        return np.where(places < 0, places + count, places)


class ColumnPipe(MapPipe, ColumnSource):
    """A map-style pipe that only reorders or selects samples, and reads those of a batch together."""

    def read_columns(self, indices: NDArray[np.int64]) -> object:
        return self.stage.read_columns(self._checked(indices), self.epoch)


class _Streamed(Pipe, Stream):
    """An iterable pipe."""

    stage: StreamStage
    epoch = 0

    def __init__(self, stage: StreamStage) -> None:
        Stream.__init__(self)
        self.stage = stage

    def _with(self, stage: Stage) -> Pipe:
        return pipe_of(stage)

    def __copy__(self) -> Self:
        own = copied_stream(self)
        own.stage = self.stage.copied()
        return own

    def __iter__(self) -> PipeIterator:
        return PipeIterator(self.stage, Lap(self.epoch))

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        count = self.stage.count()
        if count is None:
            raise TypeError(f"The length of {self!r} is not known before it is read.")
        return count


class StreamPipe(_Streamed, StreamSource, Epochs):
    """An iterable pipe, whose samples the loader deals out to workers and ranks."""

    @property
    def is_endless(self) -> bool:
        """True if the pipe never ends."""
        return self.stage.is_endless

    draws_nothing = True  # operators seed the process-wide generators themselves, for each sample

    def __iter__(self) -> PipeIterator:
        number, count = (0, 1) if is_in_loader() else torch_worker()
        stage = self.stage
        if count > 1:
            stage = SlicedStream(stage, number, None, count, "part", {"worker": number, "workers": count})
        return PipeIterator(stage, Lap(self.epoch))


class ShardedPipe(_Streamed, PartedStream, Epochs):
    """An iterable pipe over a stream that splits itself over workers and ranks."""

    def __iter__(self) -> PipeIterator:
        return PipeIterator(self.stage, Lap(self.epoch, worker=self._worker, part=self._part(), ranks=self._data_rank))
