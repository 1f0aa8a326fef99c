"""Whether anything was drawn from the generators of the process."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from feedline.randomness import draw_watch
from feedline.randomness.draw_watch import DrawWatch
from feedline.randomness.scope import globals_kept, seed_globals

DRAWS: dict[str, Callable[[], object]] = {
    "random": random.random,
    "random, normal": lambda: random.gauss(0.0, 1.0),
    "random, all words": lambda: random.randbytes(624 * 4),
    "random, seed": lambda: random.seed(1),
    "random, state": lambda: random.setstate(random.Random(3).getstate()),
    "numpy": np.random.rand,
    "numpy, normal": np.random.randn,
    "numpy, all words": lambda: np.random.bytes(624 * 4),
    "numpy, seed": lambda: np.random.seed(1),
    "torch": lambda: torch.rand(1),
    "torch, normal": lambda: torch.randn(1),
    "torch, all words": lambda: torch.randint(0, 9, (624,)),
    "torch, permutation": lambda: torch.randperm(3),
    "torch, in place": lambda: torch.empty(1).uniform_(),
    "torch, seed": lambda: torch.manual_seed(1),
}


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with globals_kept():
        seed_globals(7)
        yield


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("by", ["place", "state"])
def test_every_way_of_drawing_is_noticed(name: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if by == "state":  # of another Python, NumPy or torch, which keeps its words elsewhere
        monkeypatch.setattr(draw_watch, "_PYTHON_MARK", None)
        monkeypatch.setattr(draw_watch, "_numpy_mark", lambda generator: None)
        monkeypatch.setattr(draw_watch, "_torch_mark", lambda torch: None)
    watch = DrawWatch()
    assert not watch.has_drawn()
    DRAWS[name]()
    assert watch.has_drawn()


def test_the_quick_way_works_with_the_versions_at_hand() -> None:
    assert draw_watch._PYTHON_MARK is not None
    assert draw_watch._numpy_mark(np.random.get_bit_generator()) is not None  # type: ignore[attr-defined]
    assert draw_watch._torch_mark(torch) is not None


def test_what_does_not_draw_is_not_taken_for_it() -> None:
    watch = DrawWatch()
    random.Random(3).random()
    np.random.default_rng(3).random()
    torch.rand(1, generator=torch.Generator().manual_seed(3))
    assert torch.zeros(3).sum() == 0
    assert not watch.has_drawn()


@pytest.mark.parametrize("name", ["numpy, normal", "torch, normal"])
def test_a_number_in_store_counts_as_drawn(name: str) -> None:
    DRAWS[name]()
    assert DrawWatch().has_drawn(), "the next one would come without a trace"


def test_a_generator_of_numpy_that_was_exchanged_is_noticed() -> None:
    watch = DrawWatch()
    before = np.random.get_bit_generator()  # type: ignore[attr-defined]
    np.random.set_bit_generator(np.random.MT19937(3))  # type: ignore[attr-defined]
    try:
        assert watch.has_drawn()
    finally:
        np.random.set_bit_generator(before)  # type: ignore[attr-defined]


def test_it_needs_no_torch_and_notices_one_that_comes() -> None:
    program = """
import sys
from feedline.randomness.draw_watch import DrawWatch
watch = DrawWatch()
assert "torch" not in sys.modules
assert not watch.has_drawn()
import torch
assert watch.has_drawn()  # nobody knows what it draws from now on
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
