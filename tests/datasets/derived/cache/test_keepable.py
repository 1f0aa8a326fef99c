"""Detecting code that draws random numbers."""

import asyncio
import random
import threading

import numpy as np
import pytest

import feedline
from feedline.datasets.derived.cache.keepable import RandomWatch

pytestmark = pytest.mark.sample(4)


def test_nothing_is_reported_if_nothing_is_drawn() -> None:
    watch = RandomWatch()
    with watch.watching():
        np.random.default_rng(3).random()
        random.Random(3).random()
    assert watch.generators == []


def test_a_buffered_normal_number_is_detected() -> None:
    np.random.normal()
    watch = RandomWatch()
    if not np.random.get_state(legacy=False)["has_gauss"]:
        np.random.normal()
    with watch.watching():
        np.random.normal()
    assert watch.generators == ["numpy.random"]


def test_only_rng_is_watched_on_other_threads() -> None:
    watch = RandomWatch()

    def act() -> None:
        with watch.watching():
            random.random()
            feedline.rng()

    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    assert watch.generators == ["feedline.rng()"]


def test_coroutines_are_watched_separately() -> None:
    async def draw(*, draws: bool) -> list[str]:
        watch = RandomWatch()
        with watch.watching_task():
            await asyncio.sleep(0)
            if draws:
                feedline.rng().random()
            await asyncio.sleep(0)
        return watch.generators

    async def both() -> list[list[str]]:
        return list(await asyncio.gather(draw(draws=True), draw(draws=False)))

    assert asyncio.run(both()) == [["feedline.rng()"], []]


def test_an_exception_ends_the_watch() -> None:
    watch = RandomWatch()
    with pytest.raises(KeyError), watch.watching():
        raise KeyError
    feedline.rng()
    assert watch.generators == []
