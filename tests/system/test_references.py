"""Weak references that run no code when their object is freed."""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Any

from feedline.system.references import References


class Thing:
    """Supports weak references."""


def test_living_objects_come_in_order_and_once() -> None:
    first, second, third = Thing(), Thing(), Thing()
    things: References[Thing] = References()
    for thing in (first, second, third, first):
        things.add(thing)
    assert list(things) == [second, third, first]
    del second, thing
    gc.collect()
    assert list(things) == [third, first]
    things.clear()
    assert list(things) == []


def test_what_is_added_in_the_middle_of_another_call_stays() -> None:
    things: References[Thing] = References()
    first = Thing()
    things.add(first)
    meanwhile: list[Thing] = []

    # At every line of `add`, something else adds an object, as another thread or a signal handler may.
    def trace(frame: FrameType, event: str, argument: object) -> Any:  # Any: itself
        if frame.f_code is not References.add.__code__:
            return None
        if event == "line":
            sys.settrace(None)
            meanwhile.append(Thing())
            things.add(meanwhile[-1])
            sys.settrace(trace)
        return trace

    last, before = Thing(), sys.gettrace()
    sys.settrace(trace)
    try:
        things.add(last)
    finally:
        sys.settrace(before)
    assert len(meanwhile) > 3
    assert set(things) == {first, last, *meanwhile}
    assert len(list(things)) == len(meanwhile) + 2
