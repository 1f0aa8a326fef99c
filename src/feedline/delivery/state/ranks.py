"""The states of several ranks: merging them into one, and finding the state with which one rank resumes.

If all ranks go through one common order, their states are equal, and any of them serves all ranks. If every rank reads
its own part, such as shards, the states of all ranks are needed to know what is left. If the number of ranks or workers
changes, the rest is divided again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from feedline.abc.source import Reshardable
from feedline.delivery.state.snapshot import Snapshot, of_ranks
from feedline.errors import BadState
from feedline.system.ranks import Share
from feedline.types import Position, State


# Any: states as loaded from files.
def merge_states(states: Sequence[Mapping[str, Any]]) -> State:
    """Merge the states of all ranks into one that `load_state_dict` accepts on every rank, for any number of ranks.

    Args:
        states: the result of `state_dict()` on each rank, ordered by rank, as `all_gather_object` returns them. Of
            ranks that share their batches, with `mesh=`, all states or one may be given.

    Raises:
        BadState: a state is missing, duplicated or out of order, the states are from different steps or numbers of
            ranks, or one is not the state of a loader.

    Example:
        >>> import feedline
        >>> loader = feedline.Loader(list(range(6)), 2, shuffle=True, seed=1)
        >>> state = loader.state_dict()
        >>> feedline.merge_states([state, state]) == state  # ranks share one order, so one state is enough
        True
    """
    if isinstance(states, Mapping) or not states:
        raise BadState("Give merge_states a list of the states that state_dict() returned on all ranks, in rank order.")
    states = _one_of_each(states)
    snapshots = [Snapshot.from_dict(state) for state in states]
    if snapshots[0].ranks and all(snapshot == snapshots[0] for snapshot in snapshots):
        return dict(states[0])  # loaded by all ranks, none of which has started to iterate
    for rank, snapshot in enumerate(snapshots):
        if snapshot.ranks:
            raise BadState(
                f"The state of rank {rank} is a merged state: that rank has loaded it and not started to iterate, but "
                "other ranks have. Call state_dict() on all ranks after the same step."
            )
    _check_belong_together(snapshots)
    if all(snapshot.is_shared for snapshot in snapshots):
        shared = [replace(snapshot, order=_without(snapshot.order, "rank")) for snapshot in snapshots]
        alike = [{**state, **snapshot.as_dict()} for state, snapshot in zip(states, shared, strict=True)]
        if all(_without(state, "faults") == _without(alike[0], "faults") for state in alike):
            return alike[0]
    return of_ranks([dict(state) for state in states])


def _one_of_each(states: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return one state for each data rank, ordered by data rank, if several ranks shared their batches."""
    found = [_rank_of(Snapshot.from_dict(state)) for state in states]
    size = 0 if found[0] is None else found[0][1]
    if len(set(found)) == len(states) or set(found) != {(rank, size) for rank in range(size)}:
        return states
    by_rank: dict[int, tuple[int, Snapshot]] = {}
    for place, (own, state) in enumerate(zip(found, states, strict=True)):
        assert own is not None
        snapshot = Snapshot.from_dict(state)
        first, before = by_rank.setdefault(own[0], (place, snapshot))
        if before != snapshot:
            raise BadState(
                f"States {first} and {place} are both of data rank {own[0]} of {own[1]}, and they differ, although "
                "ranks with one data rank get the same batches. Call state_dict() on all ranks after the same step, "
                "and give them the same number of workers."
            )
    return [states[by_rank[rank][0]] for rank in sorted(by_rank)]


def _without(mapping: Mapping[str, object], name: str) -> dict[str, object]:
    return {key: value for key, value in mapping.items() if key != name}


def _check_belong_together(snapshots: Sequence[Snapshot]) -> None:
    """Reject snapshots that are not from all ranks at one moment, as far as they show that.

    Snapshots of streams contain their rank.
    """
    ranks = [_rank_of(snapshot) for snapshot in snapshots]
    if any(was not in (None, (place, len(ranks))) for place, was in enumerate(ranks)):
        named = ", ".join("an unknown one" if was is None else f"{was[0]} of {was[1]}" for was in ranks)
        raise BadState(
            f"These {len(ranks)} states are from ranks {named}. Give the states of all ranks, each once and ordered by "
            "rank, saved after the same step. Without one of them, the rest of its samples would be lost."
        )
    steps = {each.virtual for each in snapshots}
    epochs = {each.epoch + each.ended for each in snapshots}
    if len(steps) > 1 or (len(epochs) > 1 and snapshots[0].order["unit"] != "stream batches"):
        named = ", ".join(f"rank {rank} {_moment(each)}" for rank, each in enumerate(snapshots))
        raise BadState(f"The states were not saved after the same step: {named}. Give the states of one step.")


def _moment(snapshot: Snapshot) -> str:
    """Describe the position of a snapshot."""
    if snapshot.virtual is not None:
        return f"after batch {snapshot.virtual[1]} of virtual epoch {snapshot.virtual[0]}"
    return f"{'at the end of' if snapshot.ended else 'in'} epoch {snapshot.epoch}"


def _rank_of(snapshot: Snapshot) -> tuple[int, int] | None:
    """Return the rank of a snapshot and the number of ranks, if the snapshot contains them."""
    rank = snapshot.order.get("rank")
    return None if rank is None else (rank[0], rank[1])


def own_snapshot(snapshot: Snapshot, share: Share, worker_count: int, dataset: Any) -> Snapshot:
    """Return the snapshot from which this rank resumes, with `worker_count` workers (0: none).

    Raises:
        BadState: it cannot be derived from the given snapshot.
    """
    own, was = (share.rank, share.world_size), None if snapshot.is_shared else _rank_of(snapshot)
    ranks, parts = snapshot.ranks or (snapshot,), max(1, worker_count)
    is_reshardable = isinstance(dataset, Reshardable) and snapshot.order["unit"] == "stream batches"
    # If some ranks have ended the epoch, all ranks share the rest of the others.
    are_alike = len({each.ended for each in ranks}) == 1 and all(len(each.streams) in (0, parts) for each in ranks)
    fits = are_alike or not is_reshardable
    if not snapshot.ranks:
        if was is None or (was == own and fits) or not is_reshardable:
            return snapshot  # it serves all ranks, or this one
        if was[1] > 1:
            raise BadState(
                f"This is the state of rank {was[0]} of {was[1]}, and this process is rank {own[0]} of {own[1]} with "
                f"{worker_count} workers. Each rank reads its own shards, and the state does not say what the other "
                "ranks have left. Load the states of all ranks: "
                "loader.load_state_dict(feedline.merge_states(states)). Or use as many ranks and workers as when the "
                "state was saved."
            )
    elif fits and (len(ranks) == share.world_size or _is_common(ranks)):
        return ranks[share.rank % len(ranks)]
    elif not is_reshardable:
        raise BadState(
            f"The state was saved by {len(ranks)} ranks, each with a state of its own, and there are "
            f"{share.world_size} now. What they have left cannot be divided again: only streams of tar shards, of "
            "TFRecord files and of query rows can. Use as many ranks and workers as when the state was saved."
        )
    return _resharded(ranks, share, parts, dataset)


def _is_common(ranks: Sequence[Snapshot]) -> bool:
    """True if the ranks go through one order and are at the same position in it."""
    first, *others = ((each.epoch, each.ended, each.order) for each in ranks)
    unit = ranks[0].order["unit"]
    has_own = unit == "stream batches" or (unit != "stream samples" and any(each.streams for each in ranks))
    return not has_own and all(other == first for other in others)


def _resharded(ranks: Sequence[Snapshot], share: Share, parts: int, dataset: Reshardable) -> Snapshot:
    """Divide the rest of an epoch among the current ranks."""
    epoch = max(each.epoch for each in ranks)
    under_way = [each for each in ranks if each.epoch == epoch and not each.ended]
    begun = any(each.streams for each in under_way)
    if not (_are_level(ranks, epoch) if begun else len({(each.epoch, each.ended) for each in ranks}) == 1):
        raise BadState(
            "The ranks are in different epochs: "
            + ", ".join(f"rank {rank} in {each.epoch}" for rank, each in enumerate(ranks))
            + ". What is left of several epochs cannot be divided again. Use as many ranks and workers as when the "
            "state was saved, and let ranks end their epochs together, with shard='drop' or shard='pad'."
        )
    chosen = (under_way or ranks)[share.rank % len(under_way or ranks)]
    order = {**chosen.order, "rank": [share.rank, share.world_size]}
    if not begun:
        return replace(chosen, order=order, streams=())
    left, count = _left(ranks, epoch)
    states = dataset.reshard(left, count, parts * share.world_size, epoch)
    # Random numbers follow from positions; no stream has used those from this position on.
    place = max(max(position.place, position.read or 0) for each in under_way for position in each.streams)
    streams = tuple(
        Position(iterator=states[worker * share.world_size + share.rank], place=place, read=place)
        for worker in range(parts)
    )
    return replace(chosen, order=order, streams=streams, turn=0)


def _are_level(ranks: Sequence[Snapshot], epoch: int) -> bool:
    """True if all ranks are in this epoch or at the end of the previous one."""
    return all(each.epoch == epoch or (each.ended and each.epoch == epoch - 1) for each in ranks)


def _left(ranks: Sequence[Snapshot], epoch: int) -> tuple[dict[int, object], int]:
    """Return the states of all parts that have not ended, by their numbers, and the number of parts."""
    workers = max(len(each.streams) for each in ranks)
    left: dict[int, object] = {}
    for rank, each in enumerate(ranks):
        if each.ended and each.epoch == epoch:
            continue
        streams = (each.streams if each.epoch == epoch else ()) or (Position(),) * workers
        if len(streams) != workers:
            raise BadState(
                f"Rank {rank} had {len(streams)} workers and another one {workers}, so their parts overlap. Give all "
                "ranks the same number of workers."
            )
        for worker, stream in enumerate(streams):
            if stream.ended:
                continue
            if stream.skip:
                raise BadState(
                    "The state does not hold the exact position of each worker, only how many batches it has made "
                    "since its last snapshot, so other workers cannot resume from there. Use as many workers and "
                    "ranks as when the state was saved; to change them, save states with snapshot_every_n_steps=1."
                )
            left[worker * len(ranks) + rank] = stream.iterator
    return left, workers * len(ranks)
