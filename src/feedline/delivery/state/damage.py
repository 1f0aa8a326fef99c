"""Checks that a state is intact: every value is present, with the right type and range.

Without them, a state that was truncated, edited or mixed up would silently resume somewhere else. Nothing in a state is
optional: values that do not apply are None or empty. Whether a state fits a loader is not checked here, but by its
`Order`; the user's dataset and sampler check the states that they stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from feedline.abc.stateful import check_format
from feedline.errors import BadState

# Any, throughout: values loaded from a file.

_MOST = 1 << 62
"""Every count is smaller than this; the arithmetic of orders still works with that many positions."""


def checked(state: Mapping[str, Any]) -> Mapping[str, object]:
    """Return the state, after checking that no value is missing or has the wrong type.

    Raises:
        BadState: a value is missing or wrong; the message names it.
    """
    ended = _held(state, "ended", bool)
    _number(state, "epoch")
    _held(state, "seed", int, optional=True)
    _held(state, "draw_seed", int)
    _held(state, "dataset_epoch", int, optional=True)
    order = _held(state, "order", Mapping)
    unit = _held(order, "unit", str, "order.")
    if unit in ("samples", "batches") and state["seed"] is None:
        _refuse("it has no seed, which its order depends on")
    _check_order(order, unit, ended=ended)
    early = _held(state, "early", (list, tuple))
    if not all(_is_number(number) and number > 0 for number in early) or len(set(early)) < len(early):
        _refuse(f"early is {early!r:.100}, not a list of distinct batch numbers")
    if bool(early) != ("stride" in order):
        _refuse("it has only one of order.stride and early, which belong together")
    streams = _held(state, "streams", (list, tuple))
    for place, stream in enumerate(streams):
        _check_stream(stream, f"streams[{place}]", counts=unit == "stream batches" and not ended, ended=ended)
    _number(state, "turn")
    if unit != "stream samples" and state["turn"] > len(streams):
        _refuse(f"turn is {state['turn']!r:.100}, but there are {len(streams)} streams")
    virtual = _held(state, "virtual", (list, tuple), optional=True)
    if virtual is not None and not (len(virtual) == 2 and all(map(_is_number, virtual))):
        _refuse(f"virtual is {virtual!r:.100}, not the numbers of an epoch and a batch")
    if order.get("endless") and virtual is None:
        _refuse("its virtual epoch is missing")
    return state


def checked_ranks(state: Mapping[str, object]) -> list[object]:
    """Return the states of the single ranks that a merged state consists of.

    Raises:
        BadState: there are none, or the values are not states.
    """
    ranks = _held(state, "ranks", (list, tuple))
    if not ranks or any(not isinstance(each, Mapping) or "ranks" in each for each in ranks):
        _refuse(f"ranks is {ranks!r:.100}, not a list of the ranks' states")
    return list(ranks)


def _check_order(order: Mapping[str, Any], unit: str, *, ended: bool) -> None:
    at = "order."
    check_format(order, "the order")
    for name, value in order.items():
        if name not in _OF_USERS:
            _check_plain(value, at + name)
    if not ended and unit != "stream batches":
        _number(order, "consumed", at)
    elif "consumed" in order:
        _refuse(f"order.consumed is {order['consumed']!r:.100}, but this kind of state has no count")
    if "sampler_epoch" in order:
        _number(order, "sampler_epoch", at)
    if "rank" in order:
        rank = _held(order, "rank", (list, tuple), at)
        if not (len(rank) == 2 and all(map(_is_number, rank)) and rank[0] < rank[1]):
            _refuse(f"order.rank is {rank!r:.100}, not a rank and the number of ranks")
    for name in ("torch_generator", "torch_generator_next", "torch_seeds_next"):
        if name in order:
            _held(order, name, str, at, optional=True)
    seed = _held(order, "torch_seed", int, at, optional=True) if "torch_seed" in order else None
    if seed is not None and not 0 <= seed < 1 << 63:
        _refuse(f"order.torch_seed is {seed!r:.100}, which is not a valid torch seed")
    for name in ("finish", "endless"):
        if name in order and order[name] is not True:
            _refuse(f"order.{name} is {order[name]!r:.100}")
    if "stride" in order:
        _held(order, "stride", (list, tuple), at)
    states = _held(order, "sampler_state", Mapping, at, optional=True) if "sampler_state" in order else None
    if states is not None:
        _held(states, "parts", (list, tuple), "order.sampler_state.")
        _held(states, "iterator", object, "order.sampler_state.")
        if _held(order, "redraw", int, at) not in (0, 1):
            _refuse(f"order.redraw is {order['redraw']!r:.100}")
        if len(_held(order, "held", (list, tuple), at)) > 1:
            _refuse(f"order.held has {len(order['held'])} batches")
    if ("finish" in order) != (ended and states is not None):
        _refuse("its sampler has no state, or is in a different epoch from the rest")


_OF_USERS = ("sampler_state", "held")
"""Parts of an order that the user's sampler made, which may hold anything."""


def _check_plain(value: object, at: str) -> None:
    """Reject arrays and tensors anywhere in a value, which cannot be compared with the expected value.

    Reject later formats of samplers too.
    """
    if isinstance(value, Mapping):
        check_format(value, f"the sampler ({at})")
    if isinstance(value, (Mapping, list, tuple)):
        inside = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, one in inside:
            _check_plain(one, f"{at}.{name}")
    elif getattr(value, "shape", ()) != ():
        _refuse(f"{at} is the array {value!r:.100}")


def _check_stream(stream: object, at: str, *, counts: bool, ended: bool) -> None:
    if not isinstance(stream, Mapping):
        _refuse(f"{at} is {stream!r:.100}")
    check_format(stream, f"a worker ({at})")
    if ended:
        _held(stream, "dataset", object, f"{at}.")
        return
    if counts:
        _number(stream, "batches", f"{at}.")
        _number(stream, "noted_at", f"{at}.")
        _held(stream, "ended", bool, f"{at}.")
        if _held(stream, "read", int, f"{at}.", optional=True) is not None:
            _number(stream, "read", f"{at}.")
        if stream["noted_at"] > stream["batches"]:
            _refuse(f"{at}.noted_at is {stream['noted_at']}, but there are only {stream['batches']} batches")
    if not stream:
        return  # the worker has not sent its dataset's state yet
    if counts and not any(name in stream for name in ("place", "dataset", "iterator")):
        return
    _number(stream, "place", f"{at}.")
    states = [_held(stream, name, object, f"{at}.") for name in ("dataset", "iterator")]
    if all(state is None for state in (*states, stream.get("last"))):
        _refuse(f"{at} has a place, but no state to go with it")


def _held(
    holder: Mapping[str, object], name: str, kind: type | tuple[type, ...], at: str = "", *, optional: bool = False
) -> Any:
    """Return a required value of this type; if `optional`, it may be None."""
    if name not in holder:
        _refuse(f"it has no {at + name!r}")
    value = holder[name]
    if optional and value is None:
        return value
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        _refuse(f"{at}{name} is {value!r:.100}")
    return value


def _number(holder: Mapping[str, object], name: str, at: str = "") -> None:
    value = _held(holder, name, int, at)
    if not _is_number(value):
        _refuse(f"{at}{name} is {value!r:.100}, which is not a valid count")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _refuse(what: str) -> NoReturn:
    raise BadState(f"The state is damaged: {what}. Load an intact one, or start the epoch again.")
