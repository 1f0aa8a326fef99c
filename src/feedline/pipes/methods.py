"""`Pipe`: the methods of a pipe, one for each operator."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline.abc.description import Described, Description
from feedline.collate import default
from feedline.datasets.derived.cache import CachedDataset
from feedline.datasets.framework.kind import kind_of
from feedline.errors import BadOption
from feedline.pipes.calling import Caller, checked_function, name_of
from feedline.pipes.operators.balance import BalancedStream, BalanceOptions
from feedline.pipes.operators.batch import BatchedSamples, BatchedStream, BatchOptions, Collate
from feedline.pipes.operators.concat import JoinedSamples, JoinedStream
from feedline.pipes.operators.each import Numbers, each
from feedline.pipes.operators.flat_map import FlatMap, rows_of
from feedline.pipes.operators.interleave import Interleaved
from feedline.pipes.operators.mix import Measure, MixedSamples, MixedStream, MixOptions, Weights
from feedline.pipes.operators.pack import Packed, PackOptions, References
from feedline.pipes.operators.repeat import RepeatedSamples, RepeatedStream
from feedline.pipes.operators.shuffle import Shuffle, WindowShuffledSamples, WindowShuffledStream
from feedline.pipes.operators.slice import PartStage, SlicedSamples, SlicedStream
from feedline.pipes.operators.zip import ZippedSamples, ZippedStream
from feedline.pipes.origins import InOrder, MapOrigin, StreamOrigin, as_stream
from feedline.pipes.stage import MapStage, Stage, StreamStage, depth_after
from feedline.randomness.keys import checked_seed
from feedline.system.options import checked_count, checked_flag
from feedline.text.packing.planning import Strategy, TooLong
from feedline.types import DatasetKind

# Any, throughout: samples and datasets are of any kind.


class Pipe(Described):
    """A dataset with operators; `feedline.pipe` makes it. Each operator returns another pipe.

    Example:
        >>> import feedline
        >>> isinstance(feedline.pipe([1, 2, 3]).map(str), feedline.pipes.Pipe)
        True
    """

    stage: Stage

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Iterate over the samples of an epoch."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples. Raises TypeError: it is not known before they are read."""

    if TYPE_CHECKING:  # streams must not have it: loaders would take them for map-style datasets

        def __getitem__(self, index: int) -> Any: ...

    def map(self, function: Callable[[Any], object], *, num_threads: int = 0) -> Pipe:
        """Apply a function to each sample.

        Args:
            function: takes a sample and returns another.
            num_threads: how many samples of a batch to make at once, on threads, for functions that wait: for a
                server, or for object storage. Results keep their order.

        Example:
            >>> import feedline
            >>> feedline.pipe([1, 2, 3]).map(lambda x: x * x)[2]
            9
        """
        threads = checked_count("num_threads", num_threads, 0)
        checked_function("map", function)
        label = f"map({name_of(function)}{f', num_threads={threads}' if threads else ''})"
        return self._with(each(self.stage, label, Caller(label, function, depth_after(self.stage), threads)))

    def filter(self, function: Callable[[Any], object]) -> Pipe:
        """Keep the samples for which a function is true. The result is a stream.

        Example:
            >>> import feedline
            >>> list(feedline.pipe(range(6)).filter(lambda x: x % 2))
            [1, 3, 5]
        """
        return self._with(FlatMap(self._stream(), function, filters=True))

    def flat_map(self, function: Callable[[Any], Iterable[object]]) -> Pipe:
        """Replace each sample by any number of others. The result is a stream.

        Args:
            function: takes a sample and returns a list, or another iterable, of samples.

        Example:
            >>> import feedline
            >>> list(feedline.pipe(["a b", "", "c"]).flat_map(str.split))
            ['a', 'b', 'c']
        """
        return self._with(FlatMap(self._stream(), function))

    def batch(self, size: int, *, drop_last: bool = False, collate_fn: Collate | None = None) -> Pipe:
        """Combine samples into batches. Pass `batch_size=None` to the loader then.

        A batch fails if one of its samples does.

        Args:
            size: samples of a batch.
            drop_last: True to leave out a last batch that is not full.
            collate_fn: makes a batch from a list of samples; `feedline.collate.default` unless given. Pass `list` to
                get lists.

        Example:
            >>> import feedline
            >>> [batch.tolist() for batch in feedline.pipe(range(5)).batch(2)]
            [[0, 1], [2, 3], [4]]
        """
        count, drop = checked_count("size", size, 1), checked_flag("drop_last", drop_last)
        collate = default if collate_fn is None else collate_fn
        if not callable(collate):
            raise BadOption(f"collate_fn={collate_fn!r} is not a function that takes a list of samples.")
        options = BatchOptions(count, drop, collate)
        return self._either(lambda stage: BatchedSamples(stage, options), lambda stage: BatchedStream(stage, options))

    def unbatch(self) -> Pipe:
        """Replace each batch by its samples. The result is a stream.

        Example:
            >>> import feedline
            >>> list(feedline.pipe([[1, 2], [3]]).unbatch())
            [1, 2, 3]
        """
        return self._with(FlatMap(self._stream(), rows_of, "unbatch()"))

    def shuffle(self, *, seed: int = 0) -> Pipe:
        """Put all samples of a map-style pipe into random order: another one in each epoch and each repetition.

        The order is computed, not stored: it takes no memory, and any position in it is found at once.

        Raises:
            BadOption: the pipe is a stream. Use `window_shuffle`, or shuffle before the operator that makes it one.

        Example:
            >>> import feedline
            >>> shuffled = feedline.pipe(range(10)).shuffle(seed=1)
            >>> list(shuffled) != list(range(10)), sorted(shuffled) == list(range(10))
            (True, True)
        """
        if not isinstance(self.stage, MapStage):
            raise BadOption(
                f"{self!r} is a stream, so its samples cannot be put into random order as a whole. Call shuffle() "
                "before the operator that makes it a stream, or use window_shuffle(size)."
            )
        return self._with(Shuffle(self.stage, checked_seed(seed)))

    def window_shuffle(self, size: int, *, seed: int = 0) -> Pipe:
        """Shuffle each `size` consecutive samples among themselves.

        A stream reads a window before it hands out its first sample, and keeps it in memory. Its state does not
        contain the samples of the window, only where the window begins.

        Example:
            >>> import feedline
            >>> shuffled = list(feedline.pipe(range(6)).window_shuffle(3, seed=1))
            >>> sorted(shuffled[:3]), sorted(shuffled[3:])
            ([0, 1, 2], [3, 4, 5])
        """
        window, key = checked_count("size", size, 1), checked_seed(seed)
        return self._either(
            lambda stage: WindowShuffledSamples(stage, window, key),
            lambda stage: WindowShuffledStream(stage, window, key),
        )

    def balance(
        self, cost: Callable[[Any], object], batch_size: int, *, ranks: int = 1, window: int = 16, seed: int = 0
    ) -> Pipe:
        """Reorder samples within windows, so that the batches of a step cost the same. The result is a stream.

        In each step, all ranks of a training job wait for the slowest. A loader with `shard=True` gives ranks the
        samples of a step in turn; the samples of each then cost the same. With one rank, consecutive batches do. Like
        `window_shuffle`, it reads a window before its first sample is handed out, and its state does not contain it.
        For map-style data that is not read through a pipe, use `samplers.BalancedBatches`, whose state fits any number
        of ranks.

        Args:
            cost: what a sample costs, in any unit. Must always return the same for a sample.
            batch_size: samples of a batch, as in the loader.
            ranks: number of ranks. A state fits the same number.
            window: how many steps are dealt at a time: `batch_size * ranks * window` samples are kept in memory.
            seed: fixes the order of the steps of a window.

        Example:
            >>> import feedline
            >>> lengths = feedline.pipe([9, 1, 8, 2, 5, 5, 7, 3]).balance(float, 2, window=4)
            >>> [sum(batch) for batch in lengths.batch(2, collate_fn=list)]
            [10, 10, 10, 10]
        """
        options = BalanceOptions(
            checked_function("balance", cost),
            checked_count("batch_size", batch_size),
            checked_count("ranks", ranks),
            checked_count("window", window),
            checked_seed(seed),
        )
        return self._with(BalancedStream(self._stream(), options))

    def zip(self, *others: object) -> Pipe:
        """Combine with other datasets into tuples, as long as each of them has samples.

        Example:
            >>> import feedline
            >>> feedline.pipe(["a", "b"]).zip([1, 2, 3])[1]
            ('b', 2)
        """
        return self._combined(others, ZippedSamples, ZippedStream)

    def concat(self, *others: object) -> Pipe:
        """Append other datasets.

        Example:
            >>> import feedline
            >>> list(feedline.pipe([1, 2]).concat([3], [4, 5]))
            [1, 2, 3, 4, 5]
        """
        return self._combined(others, JoinedSamples, JoinedStream)

    def interleave(self, *others: object) -> Pipe:
        """Take one sample of each dataset in turn, until all have ended. The result is a stream.

        If all of them are endless, workers only read those whose samples they need: see the guide to pipelines.

        Example:
            >>> import feedline
            >>> list(feedline.pipe([1, 2, 3]).interleave(["a", "b"]))
            [1, 'a', 2, 'b', 3]
        """
        return self._with(Interleaved(_streams(self._and(others))))

    def mix(
        self,
        *others: object,
        weights: Weights | None = None,
        size: int | None = None,
        seed: int = 0,
        measure: Measure | None = None,
    ) -> Pipe:
        """Mix with other datasets in given proportions.

        Among the first m samples, each dataset has its share of m, rounded down or up, for every m. Map-style datasets
        are used again when they are used up; `size` says how many samples there are. A mixture of streams ends when the
        next sample is due from a stream that has ended: use `repeat()` on each for a mixture without an end.

        Args:
            others: further datasets.
            weights: a number for each dataset, this one first; equal if not given. A dict is a schedule: it maps
                positions to the weights that apply from there on, as in `{0: [0.9, 0.1], 1_000_000: [0.5, 0.5]}`.
                Weights without a small common denominator are rounded to multiples of 1 / 16,384 of their sum.
            size: the number of samples of a map-style mixture; by default as many as its datasets have together.
            seed: determines the order.
            measure: returns the size of a sample, such as `len` for its number of tokens. Weights then apply to sizes,
                and the positions of a schedule count sizes. The result is a stream.

        Example:
            >>> import feedline
            >>> mixed = feedline.pipe(["code"] * 3).mix(["prose"] * 9, weights=[0.25, 0.75], size=8)
            >>> list(mixed).count("code")
            2
        """
        stages, key = self._and(others), checked_seed(seed)
        count = None if size is None else checked_count("size", size, 1)
        maps = tuple(stage for stage in stages if isinstance(stage, MapStage))
        options = MixOptions(stages, weights, count, key)
        if measure is None and len(maps) == len(stages):
            return self._with(MixedSamples(maps, options))
        if measure is not None and not callable(measure):
            raise BadOption(f"measure={measure!r} is not a function that returns the size of a sample.")
        return self._with(MixedStream(_streams(stages), options, measure))

    def set_weights(self, weights: Weights | None) -> None:
        """Mix in other proportions from now on, if the last operator is `mix`; in a stream, from the next epoch on.

        In a map-style mixture, the sample at an index is then the one that these weights would have given from the
        start. Worker processes have copies: `loader.broadcast("set_weights", weights)` calls this in all of them.

        Example:
            >>> import feedline
            >>> mixed = feedline.pipe(["code"] * 3).mix(["prose"] * 9, size=8)
            >>> mixed.set_weights([0.25, 0.75])
            >>> list(mixed).count("code")
            2
        """
        if not isinstance(self.stage, (MixedSamples, MixedStream)):
            raise BadOption(f"The last operator of {self!r} is not mix(), so it has no weights.")
        self.stage = self.stage.with_weights(weights)

    def take(self, count: int) -> Pipe:
        """Keep the first samples.

        Example:
            >>> import feedline
            >>> list(feedline.pipe(range(100)).take(3))
            [0, 1, 2]
        """
        number = checked_count("count", count, 0)
        return self._sliced(0, number, 1, f"take({number})", {"count": number})

    def skip(self, count: int) -> Pipe:
        """Leave out the first samples.

        Example:
            >>> import feedline
            >>> list(feedline.pipe(range(5)).skip(3))
            [3, 4]
        """
        number = checked_count("count", count, 0)
        return self._sliced(number, None, 1, f"skip({number})", {"count": number})

    def slice(self, start: int, stop: int | None = None, step: int = 1) -> Pipe:
        """Keep the samples from `start` up to `stop`, every `step`-th of them.

        Example:
            >>> import feedline
            >>> list(feedline.pipe(range(10)).slice(1, 8, 3))
            [1, 4, 7]
        """
        first, distance = checked_count("start", start, 0), checked_count("step", step, 1)
        last = None if stop is None else checked_count("stop", stop, 0)
        label = f"slice({first}, {last}, {distance})"
        return self._sliced(first, last, distance, label, {"start": first, "stop": last, "step": distance})

    def repeat(self, times: int | None = None) -> Pipe:
        """Start again after the last sample: forever, or `times` times in all.

        If the samples are shuffled before, each repetition has another order. Without a number, the result is a stream.

        Example:
            >>> import feedline
            >>> list(feedline.pipe([1, 2]).repeat(2)), list(feedline.pipe([1, 2]).repeat().take(3))
            ([1, 2, 1, 2], [1, 2, 1])
        """
        number = None if times is None else checked_count("times", times, 1)
        if isinstance(self.stage, MapStage):
            if number is None:
                if not len(self.stage):
                    raise BadOption(f"{self!r} has no samples, so repeat() would never return one.")
                return self._with(InOrder(self.stage, is_endless=True))
            return self._with(RepeatedSamples(self.stage, number))
        return self._with(RepeatedStream(self._stream(), number))

    def enumerate(self, start: int = 0) -> Pipe:
        """Number the samples: each becomes a pair of its number and itself.

        Example:
            >>> import feedline
            >>> feedline.pipe(["a", "b", "c"]).enumerate()[2]
            (2, 'c')
        """
        first = operator.index(start)
        label = f"enumerate({first})" if first else "enumerate()"
        return self._with(each(self.stage, label, Numbers(first), {"start": first}))

    def pack(
        self,
        length: int,
        *,
        strategy: Strategy = "best_fit",
        window: int = 2048,
        too_long: TooLong = "cut",
        tokens: str = "tokens",
        pad: float | Mapping[str, float] = 0,
        labels: bool = False,
        mask_first: bool = True,
    ) -> Pipe:
        """Pack documents into rows of `length` tokens. The result is a stream of rows.

        A document is an array of token ids, or a dict of arrays with one value for each token. A row is a dict: the
        fields of the documents (`tokens` for bare arrays), `segment_ids` (1, 2, ... for the documents of the row, 0 for
        padding) and `positions`, which begin at 0 with each document. See `feedline.text.packing` for what attention
        needs: `block_mask`, `attention_mask`, `cu_seqlens`.

        If the pipe is map-style and its dataset knows the lengths of its documents, as `TokenDataset.documents` does,
        workers only read the documents of their own rows. Otherwise every worker reads all documents, since it has to
        know their lengths.

        Args:
            length: the tokens of a row.
            strategy: "best_fit" and "first_fit" keep documents whole. "concat" cuts them at the ends of rows, so that
                every row but the last is full.
            window: the number of documents to plan at once. More of them make fuller rows, and take more memory.
            too_long: what to do with longer documents: "cut" them into several rows, "truncate", "drop" or "raise".
            tokens: the field that has the token ids.
            pad: the token id of padding, or a dict with a value for each field.
            labels: True to add `labels`: the tokens, with -100 for padding, for tokens whose `loss_mask` is 0, and for
                the first token of each document.
            mask_first: False to leave the labels of first tokens as they are.

        Example:
            >>> import feedline
            >>> rows = feedline.pipe([[5, 6], [7, 8, 9], [3]]).pack(4)
            >>> [(row["tokens"].tolist(), row["segment_ids"].tolist()) for row in rows]
            [([5, 6, 0, 0], [1, 1, 0, 0]), ([7, 8, 9, 3], [1, 1, 1, 2])]
        """
        size = checked_count("window", window, 1)
        options = PackOptions(length, strategy, size, too_long, tokens, pad, labels, mask_first)
        stage, is_endless = self.stage, False
        if isinstance(stage, InOrder):
            is_endless, stage = stage.is_endless, stage.stage
        if isinstance(stage, MapStage) and len(stage) and stage.lengths(np.zeros(1, np.int64), 0) is not None:
            return self._with(Packed(InOrder(References(stage), is_endless=is_endless), options, stage))
        return self._with(Packed(self._stream(), options))

    def cache(self, **options: Any) -> Pipe:
        """Keep samples of a map-style pipe once they are made, in memory that all workers share, on disk, or both.

        Args:
            **options: those of `feedline.datasets.CachedDataset`: `memory="4GB"`, `disk="folder"` and others.

        Raises:
            BadOption: the pipe is a stream, or is shuffled before: cache first, then shuffle.

        Example:
            >>> import feedline
            >>> cached = feedline.pipe(range(3)).map(lambda x: x * x).cache(memory="1MB")
            >>> cached[2], cached[2]
            (4, 4)
        """
        if not isinstance(self.stage, MapStage):
            raise BadOption(
                f"{self!r} is a stream, which has no indices to cache by. Call cache() before, on map-style data."
            )
        if self.stage.changes_with_epoch():
            raise BadOption(
                f"{self!r} gives other samples in another epoch, so caching them by index would repeat those of the "
                "first epoch. Call cache() before shuffle() and mix()."
            )
        return self._with(MapOrigin(CachedDataset(self._with(self.stage), **options)))

    def describe(self) -> Description:
        """Return the operators and the options that a saved state must be loaded with, in plain values.

        Example:
            >>> import feedline
            >>> feedline.pipe(range(9)).shuffle(seed=1).describe()
            [{'operator': 'dataset', 'size': 9}, {'operator': 'shuffle', 'seed': 1}]
        """
        return self.stage.describe()

    def show(self) -> str:
        """Return the operators, one to a line, from the last one back to the datasets.

        Example:
            >>> import feedline
            >>> print(feedline.pipe(range(9)).shuffle().batch(3).show())
            batch(3)
              shuffle(seed=0)
                range: 9 samples
        """
        return "\n".join(self.stage.tree())

    def __repr__(self) -> str:
        return self.stage.chain()

    @abstractmethod
    def _with(self, stage: Stage) -> Pipe:
        """Return the pipe of another stage."""

    def _and(self, others: tuple[object, ...]) -> list[Stage]:
        """Return the stages of this pipe and of other datasets."""
        return [self.stage, *map(stage_of, others)]

    def _stream(self) -> StreamStage:
        return as_stream(self.stage)

    def _either(self, of_map: Callable[[MapStage], MapStage], of_stream: Callable[[StreamStage], StreamStage]) -> Pipe:
        """Return the operator for a map-style stage, or for a stream."""
        if isinstance(self.stage, MapStage):
            return self._with(of_map(self.stage))
        return self._with(of_stream(self._stream()))

    def _combined(
        self,
        others: tuple[object, ...],
        of_maps: Callable[[tuple[MapStage, ...]], MapStage],
        of_streams: Callable[[tuple[StreamStage, ...]], StreamStage],
    ) -> Pipe:
        stages = self._and(others)
        maps = tuple(stage for stage in stages if isinstance(stage, MapStage))
        if len(maps) == len(stages):
            return self._with(of_maps(maps))
        return self._with(of_streams(_streams(stages)))

    def _sliced(self, start: int, stop: int | None, step: int, label: str, options: Mapping[str, object]) -> Pipe:
        if isinstance(self.stage, MapStage):
            return self._with(SlicedSamples(self.stage, range(len(self.stage))[start:stop:step], label, options))
        return self._with(SlicedStream(self._stream(), start, stop, step, label, options))


# Any: `kind_of` finds out which methods the dataset has.
def stage_of(dataset: Any, name: str = "dataset") -> Stage:
    """Return the last stage of a pipe, or the first one for another dataset, which errors call `name`."""
    if isinstance(dataset, Pipe):
        return dataset.stage
    return MapOrigin(dataset) if kind_of(dataset, name) is DatasetKind.MAP else StreamOrigin(dataset)


def _streams(stages: list[Stage]) -> tuple[StreamStage, ...]:
    """Return stages as streams. If one splits itself over workers, so does each of them."""
    streams = tuple(map(as_stream, stages))
    if any(stream.is_sharded for stream in streams):
        return tuple(stream if stream.is_sharded else PartStage(stream) for stream in streams)
    return streams
