"""Virtual epochs: endless data, cut into pieces of a fixed number of batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from feedline.delivery.state.epochs import VirtualPlace
from feedline.errors import BadOption
from feedline.frameworks.torch_compile import run_untraced
from feedline.loader.arguments import check_count
from feedline.loader.session import Session
from feedline.system.ranks import own_share


# Any, as a loader: one of either class, whose files import this one.
@run_untraced
class VirtualEpochs:
    """An endless iterator over virtual epochs; iterate over each of them for its batches.

    An epoch that you leave early is over: the next one starts with the batch after the last one taken.
    """

    def __init__(
        self, session: Session, loader: Any, steps_per_epoch: int, rank: int | None, world_size: int | None
    ) -> None:
        check_count("steps_per_epoch", steps_per_epoch, least=1)
        self.steps_per_epoch = steps_per_epoch
        self._session, self._loader = session, loader
        data_rank = session.config_of(loader).data_rank
        self._share_is_given = rank is not None or world_size is not None
        if data_rank is None:
            self._share = own_share(rank, world_size, "pad")
        elif self._share_is_given and (rank, world_size) != (data_rank.rank, data_rank.world_size):
            raise BadOption(
                f"virtual_epochs() got rank={rank} and world_size={world_size}, and the loader has {data_rank}. Leave "
                "them out here."
            )
        else:
            self._share = data_rank.share
        self._batches: Iterator[object] | None = None
        self._place = VirtualPlace()
        self.is_over = False
        """True once the loader was closed: no more batches will come."""

    def __iter__(self) -> VirtualEpochs:
        return self

    def __next__(self) -> VirtualEpoch:
        if self.is_over:
            raise StopIteration
        place = self._place
        if self._batches is None:
            self._open()
            place = self._place
        elif place.step:
            place.epoch, place.step = place.epoch + 1, 0
        return VirtualEpoch(self, place.epoch)

    def _open(self) -> None:
        session, epochs = self._session, self._session.epochs
        epoch, step = epochs.loaded_virtual
        if step >= self.steps_per_epoch:
            epoch, step = epoch + 1, 0
        order = session.order(session.config_of(self._loader)).without_end(self._share)
        if order is None and self._share_is_given and self._share.world_size > 1:
            raise BadOption(
                f"rank={self._share.rank} and world_size={self._share.world_size} were given, but virtual_epochs() "
                "cannot split this loader over ranks: its sampler is not feedline's, or its dataset is iterable. Use a "
                "sampler from feedline.samplers, wrap yours in feedline.samplers.distribute(), or use shard=True."
            )
        self._batches = _Chain(self._loader) if order is None else _Own(self._loader._iterate(order))
        self._place = epochs.virtual = VirtualPlace(epoch, step)

    def __repr__(self) -> str:
        return f"VirtualEpochs(steps_per_epoch={self.steps_per_epoch})"


class _Own(Iterator[object]):
    """An iteration of a loader, until another one begins with the same iterator, as with persistent workers."""

    # Any: an iterator of either loader, or of a subclass that makes one of another class.
    def __init__(self, batches: Any) -> None:
        self.batches = batches
        self._begun = getattr(batches, "begun", None)

    def __next__(self) -> object:
        if getattr(self.batches, "begun", None) is not self._begun:
            raise BadOption(
                "The virtual epoch cannot go on: its workers are persistent, and another iteration over the loader has "
                "taken them since, which dropped their position. Use another loader, such as copy.copy(loader), for "
                "what you iterate over between virtual epochs, or do not keep the workers; or call virtual_epochs() "
                "again, which begins with another epoch."
            )
        return self.batches.__next__()


class _Chain(Iterator[object]):
    """Chain one epoch of a loader after another, for orders that have no endless form. An error does not end it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._batches: _Own | None = None
        self._had_batches = True  # the first epoch may be resumed at its very end

    def __next__(self) -> object:
        while True:
            if self._batches is None:
                self._batches = _Own(self._loader._iterate(None))
            try:
                batch = self._batches.__next__()
            except StopIteration:
                if getattr(self._batches.batches, "leaving", False):  # it was closed
                    raise
                self._batches = None
                if not self._had_batches:
                    raise BadOption(
                        "virtual_epochs() has no batches to repeat: an epoch of this loader is empty."
                    ) from None
                self._had_batches = False
                continue
            self._had_batches = True
            return batch


@run_untraced
class VirtualEpoch:
    """The batches of one virtual epoch, or those left of it after resuming."""

    def __init__(self, epochs: VirtualEpochs, number: int) -> None:
        self._epochs = epochs
        self.number = number
        """Counted from 0."""

    def __len__(self) -> int:
        return self._epochs.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        epochs = self._epochs
        place, batches = epochs._place, epochs._batches
        assert batches is not None
        while place.epoch == self.number and place.step < epochs.steps_per_epoch:
            try:
                batch = batches.__next__()  # not next(): a signal could arrive after it
            except StopIteration:  # the loader was closed
                epochs.is_over = True
                return
            place.step += 1
            yield batch
            del batch  # otherwise its memory stays in use until the next one

    def __repr__(self) -> str:
        return f"VirtualEpoch({self.number}, {len(self)} batches)"
