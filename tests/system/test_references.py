"""Weak references that run no code when something dies."""

from __future__ import annotations

import gc

from feedline.system.references import References


class Thing:
    """Can be referred to weakly."""


def test_those_that_are_alive_come_in_order_and_once() -> None:
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


def test_what_is_added_meanwhile_comes_the_next_time() -> None:
    first, second = Thing(), Thing()
    things: References[Thing] = References()
    things.add(first)
    seen = []
    for thing in things:
        things.add(second)
        seen.append(thing)
    assert seen == [first]
    assert list(things) == [first, second]
