"""The position of one iteration of a loader, from which its state is saved even after its workers have exited."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

from feedline.delivery.state import Snapshot
from feedline.order.order import Entry
from feedline.order.plan import Plan
from feedline.order.progress import has_state
from feedline.types import Notes, Resume, State


@dataclass
class Checkpoint:
    """The position of one iteration of a loader."""

    entry: Entry
    plan: Plan | None
    unit: str
    """The unit that positions count: see `Plan.state`."""
    expected: Callable[[], State]
    """Returns the values by which a loaded state is compared with a loader, in addition to the plan's state."""
    draw_seed: int
    worker_count: int
    batch_size: int
    """Samples per batch, for streams that resume by being read again."""
    stride: tuple[int | None, int, int] = (None, 0, 1)
    """The values that batch numbers depend on: see `Order.stride`."""
    dataset_epoch: int | None = None
    """The epoch that the dataset's `set_epoch` was last called with."""
    keeps_dataset: bool = True
    """False if the workers, and their copies of the dataset with them, end with the epoch."""
    keeps_last: bool = True
    """False if nothing outlives an iterator of the dataset: see `repeats_itself`."""
    live: Callable[[], Notes] | None = None
    """Returns the current states of dataset and iterator, if the training process makes the batches itself."""
    _plan_state: dict[str, object] = field(default_factory=dict)
    """The last state of the plan, once the plan is gone."""
    _plan_after: dict[str, object] = field(default_factory=dict)
    """What the plan leaves to the next epoch, once it is gone."""

    def batch_count(self) -> int:
        """Return how many batches of the epoch this rank has had, including those before the iteration."""
        size, _, ranks = self.stride
        return -(-self.entry.consumed // ((size or 1) * ranks)) + self.entry.progress.count()

    def freeze(self) -> None:
        """Keep the states of plan and dataset, and release the iterators of sampler and dataset, which end here."""
        if self.plan is None:
            return
        try:
            progress = self.entry.progress
            self._plan_state = {} if progress.ended else self.plan.last_state(progress.delivered)
            self._plan_after = self.plan.after()  # a framework may say later that the epoch has ended
            notes = None if self.live is None else copy.deepcopy(self.live())
        except Exception:
            return  # the user's `state_dict` raised: `snapshot` will call it again and raise
        self.live = None if notes is None else lambda: notes
        self.plan = None

    def _state_of_plan(self) -> State:
        progress = self.entry.progress
        if self.plan is None:
            return self._plan_after if progress.ended else self._plan_state
        return self.plan.after() if progress.ended else self.plan.state(progress.delivered)

    def snapshot(self) -> Snapshot:
        """Return the position of the iteration. Calls the user's own stateful objects, but not the workers."""
        key, progress = self.entry.key, self.entry.progress
        if progress.ended:
            return self._ended()
        order = {**self._state_of_plan(), **self.expected()}
        streams = self._streams(order)
        if progress.early:  # batches are identified by their numbers
            order["stride"] = list(self.stride)
        return Snapshot(
            epoch=key.epoch,
            seed=key.seed,
            draw_seed=self.draw_seed,
            order=order,
            early=tuple(sorted(ordinal - progress.delivered for ordinal in progress.early)),
            streams=tuple(streams),
            turn=self._turn(order["unit"]),
            dataset_epoch=self.dataset_epoch,
        )

    def _turn(self, unit: str) -> int:
        """Return the number of the worker whose turn is next."""
        progress = self.entry.progress
        if unit == "stream batches" or not self.worker_count:
            return progress.turn
        return (progress.turn + progress.delivered) % self.worker_count

    def _ended(self) -> Snapshot:
        """Return the snapshot of a completed epoch: the states that outlive it, with which the next one begins."""
        streams = [self._outlasting(notes) for notes in self._last_notes()] if self.keeps_dataset else []
        if all(state is None for stream in streams for state in stream.values()):
            streams = []
        order = {**self.expected(), **self._state_of_plan()}
        key = self.entry.key
        return Snapshot(
            key.epoch,
            ended=True,
            seed=key.seed,
            draw_seed=self.draw_seed,
            order=order,
            streams=tuple(streams),
            dataset_epoch=self.dataset_epoch,
        )

    def _outlasting(self, notes: Notes | None) -> dict[str, object]:
        """Return the states that outlive an epoch: the dataset's, and its iterator's (such as random generators)."""
        if notes is None:
            return {"dataset": None, "last": None}
        if notes.is_one:
            return {"dataset": copy.deepcopy(notes.iterator), "last": None}
        return {
            "dataset": copy.deepcopy(notes.dataset),
            "last": copy.deepcopy(notes.iterator) if self.keeps_last else None,
        }

    def _last_notes(self) -> list[Notes | None]:
        """Return the last known state of the dataset in every worker."""
        if self.live is not None:
            return [self.live()]
        progress = self.entry.progress
        if progress.streams:
            return [stream.notes for stream in progress.streams]
        notes = [progress.notes.get(worker) for worker in range(self.worker_count)]
        if self.unit == "stream samples":  # all workers read the same stream
            return [max((note for note in notes if note is not None), key=_place, default=None)]
        return notes

    def _streams(self, order: State) -> list[dict[str, object]]:
        progress = self.entry.progress
        unit = order["unit"]
        if unit == "stream batches":
            if self.live is not None or not progress.streams:
                return [self._own_stream()]
            return [
                _described(
                    stream.notes,
                    batches=stream.batches,
                    noted_at=stream.noted_at,
                    ended=stream.ended,
                    read=stream.read,
                )
                for stream in progress.streams
            ]
        if unit == "stream samples":
            notes = [self.live()] if self.live is not None else list(progress.notes.values())
            order["consumed"] = consumed = _consumed_with_the_last(notes, order["consumed"])
            usable = [note for note in notes if has_state(note) and note.place <= consumed]
            return [_described(max(usable, key=_place))] if usable else []
        if self.live is not None:
            note = self.live()
            return [_described(note)] if has_state(note) else []
        if not progress.notes:
            return []
        return [_described(progress.notes.get(worker)) for worker in range(self.worker_count)]

    def _own_stream(self) -> dict[str, object]:
        """Describe the one stream of an iteration without workers."""
        batches, read = self.entry.progress.delivered, self.entry.progress.read
        notes = None if self.live is None else self.live()
        return _described(notes, batches=batches, noted_at=batches, ended=False, read=read)


def _place(notes: Notes) -> int:
    return notes.place


def _consumed_with_the_last(notes: list[Notes], consumed: int) -> int:
    """Return how many samples of a stream are consumed: near its end, workers know this better than the plan."""
    known = [note.consumed for note in notes if note.consumed is not None]
    return min(consumed, max(known)) if known else consumed


def _described(notes: Notes | None, **expected: object) -> dict[str, object]:
    stream: dict[str, object] = dict(expected)
    if notes is None or not has_state(notes):
        return stream
    stream["place"] = notes.place
    for name in ("dataset", "iterator"):
        stream[name] = copy.deepcopy(getattr(notes, name))
    if notes.is_before:
        stream["last"], stream["iterator"] = stream["iterator"], None
    return stream


def notes_of(stream: State) -> Notes | None:
    """Return the notes of a stream in a snapshot, as if a worker had just sent them."""
    dataset, iterator = stream.get("dataset"), stream.get("last", stream.get("iterator"))
    if dataset is None and iterator is None:
        return None
    return Notes(dataset, iterator, place=stream.get("place", 0), is_before="last" in stream)


def resume_of(stream: State, batch_size: int) -> Resume:
    """Return the position at which a stream, or a worker's dataset, resumes."""
    dataset, iterator = stream.get("dataset"), stream.get("iterator")
    batches, read = stream.get("batches", 0), stream.get("read")
    skip = batches * batch_size if read is None else read
    least = max(0, skip - batch_size + 1)
    if "last" in stream:  # from the end of an epoch; the next one may have begun since
        last = copy.deepcopy(stream["last"])
        return Resume(copy.deepcopy(dataset), skip=skip, least=least, last=last, is_before=True)
    if dataset is None and iterator is None:
        return Resume(skip=skip, least=least)
    place = stream.get("place", 0)
    since = (batches - stream.get("noted_at", batches)) * batch_size if read is None else max(0, read - place)
    least = max(0, place + since - batch_size + 1)
    return Resume(copy.deepcopy(dataset), copy.deepcopy(iterator), place, since, least)
