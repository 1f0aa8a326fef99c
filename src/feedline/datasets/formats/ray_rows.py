"""Ray Data rows as samples. Ray reads and transforms them in its own tasks; the loader makes batches of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from feedline.abc.source import ShardedSource
from feedline.datasets.framework.passes import Stream
from feedline.datasets.framework.source import Transform, checked_transform
from feedline.errors import BadOption
from feedline.system.ranks import rank_if_known


class RayRows(Stream, ShardedSource):
    """An iterable dataset of the rows of a `ray.data.Dataset`, each a dict, for a loader without workers.

    Args:
        data: a `ray.data.Dataset` if there is one rank. With several, this rank's own part: the result of
            `ray.train.get_dataset_shard`, or one part of `Dataset.streaming_split`.
        transform: makes a sample from a row, in the training process.

    Raises:
        BadOption: `data` has no rows to iterate over, or `transform` is no function, or there are several ranks, which
            would all read everything.

    Example:
        >>> from feedline import Loader
        >>> from feedline.datasets import RayRows
        >>> class Rows:  # in place of ray.data.range(4)
        ...     def iter_rows(self):
        ...         return ({"id": number} for number in range(4))
        >>> [batch["id"].tolist() for batch in Loader(RayRows(Rows()), 2)]
        [[0, 1], [2, 3]]
    """

    # Any: a Ray object; Ray is not imported here.
    def __init__(self, data: Any, transform: Transform | None = None) -> None:
        super().__init__()
        if not callable(getattr(data, "iter_rows", None)):
            raise BadOption(f"{data!r:.80} has no iter_rows: pass a ray.data.Dataset, or a part of one.")
        self._data = data
        self._transform = checked_transform(transform)
        self._is_in_worker = False

    def __iter__(self) -> Iterator[Any]:
        if self._is_in_worker:
            raise BadOption(
                "Ray's own tasks read the rows of Ray Data, so the loader needs no workers: use num_workers=0. To "
                "compute in feedline's workers on a Ray cluster, use another dataset, and engine='ray'."
            )
        ranks = rank_if_known()
        if ranks is not None and ranks[1] > 1 and hasattr(self._data, "streaming_split"):
            raise BadOption(
                f"This is rank {ranks[0]} of {ranks[1]}, and each would read the whole ray.data.Dataset. Pass each "
                "rank its own part: ray.train.get_dataset_shard(name), or one of dataset.streaming_split(ranks, "
                "equal=True)."
            )
        rows = self._data.iter_rows()
        return iter(rows) if self._transform is None else map(self._transform, rows)

    def set_worker(self, number: int, count: int) -> None:
        self._is_in_worker = True
