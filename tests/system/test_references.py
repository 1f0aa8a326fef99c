"""Weak references that run no code when their object is freed."""

from __future__ import annotations

import gc

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


def test_objects_added_during_iteration_come_the_next_time() -> None:
    first, second = Thing(), Thing()
    things: References[Thing] = References()
    things.add(first)
    seen = []
    for thing in things:
        things.add(second)
        seen.append(thing)
    assert seen == [first]
    assert list(things) == [first, second]
