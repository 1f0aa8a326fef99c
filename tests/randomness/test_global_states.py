"""The global random generators of the process."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.randomness import global_states
from feedline.randomness.global_states import GlobalStates, OwnGenerators, globals_kept, seed_globals

keys = st.integers(0, 2**64 - 1)


def draw_globals() -> tuple[Any, ...]:
    return (
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        np.random.randn(),
        torch.rand(()).item(),
        torch.randn(()).item(),
    )


pytestmark = pytest.mark.usefixtures("generators_as_they_were")


@pytest.fixture(params=["known", "unknown"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the memory layout of the generators is known; it depends on the versions of Python, NumPy and torch."""
    if request.param == "unknown":
        for name in ("_PYTHON", "_PYTHON_MARK", "_NUMPY_STORE"):
            monkeypatch.setattr(global_states, name, None)
        monkeypatch.setattr(global_states, "_last_words", (None, (None, None)))
        monkeypatch.setattr(global_states, "_of_torch", (torch.default_generator, (None, None, None)))
        assert global_states._mark() is None
    return str(request.param)


@given(keys)
def test_seeding_makes_all_three_follow_from_the_key(key: int) -> None:
    draw_globals()  # leaves a buffered normal number, which must not survive
    seed_globals(key)
    first = draw_globals()
    draw_globals()
    random.gauss(0, 1)
    np.random.randn()
    seed_globals(key)
    assert draw_globals() == first
    seed_globals((key + 1) % 2**64)
    assert all(mine != theirs for mine, theirs in zip(draw_globals(), first, strict=True))


@pytest.mark.parametrize("buffered", [True, False])
def test_the_generators_are_restored_exactly(buffered: bool, memory: str) -> None:
    """All three make normal numbers in pairs and buffer the second, which belongs to the caller too."""

    def begin() -> None:
        seed_globals(5)
        if buffered:
            random.gauss(0, 1)
            np.random.randn()
            torch.randn(())

    begin()
    undisturbed = [draw_globals() for _ in range(3)]
    begin()
    with globals_kept():
        seed_globals(99)
        draw_globals()
        random.gauss(0, 1)
        np.random.randn()
        torch.randn(())
    assert [draw_globals() for _ in range(3)] == undisturbed


@pytest.mark.parametrize("keeps", [True, False])
def test_own_generators_continue_even_if_other_code_draws_meanwhile(keeps: bool, memory: str) -> None:
    seed_globals(5)
    expected = [draw_globals() for _ in range(6)]
    seed_globals(5)
    own, mine = OwnGenerators(keeps=keeps), []
    for number in range(6):
        seed_globals(100 + number)
        theirs = [draw_globals() for _ in range(3)]
        seed_globals(100 + number)
        draw_globals()
        with own:
            mine.append(draw_globals())
        assert ([draw_globals() for _ in range(2)] == theirs[1:]) is keeps
    assert mine == expected


# -- comparing them ---

SIMPLE_DRAWS: dict[str, Callable[[], Any]] = {
    "random": random.random,
    "numpy.random": np.random.rand,
    "torch": lambda: torch.rand(()),
}


@pytest.mark.parametrize("name", SIMPLE_DRAWS)
def test_a_generator_that_was_drawn_from_is_named(name: str, memory: str) -> None:
    seed_globals(3)
    before = GlobalStates.now()
    assert before == GlobalStates.now()
    assert before.differing(GlobalStates.now()) == []
    SIMPLE_DRAWS[name]()
    after = GlobalStates.now()
    assert after != before
    assert after.differing(before) == [name]


@pytest.mark.parametrize("name", SIMPLE_DRAWS)
@pytest.mark.parametrize("times", [1, 624])
def test_states_are_restored(name: str, times: int, memory: str) -> None:
    """The Mersenne Twister makes 624 numbers at a time, so its memory looks different before and after that."""
    seed_globals(3)
    for _ in range(times):
        SIMPLE_DRAWS[name]()
    states = GlobalStates.now()
    expected = (random.random(), np.random.rand(), torch.rand(()).item())
    seed_globals(8)
    states.restore()
    assert states == GlobalStates.now()
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected


# -- whether anything was drawn ---

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
    "torch, upper half of the seed": lambda: torch.default_generator.manual_seed(7 + (1 << 32)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_every_way_of_drawing_is_detected(name: str, memory: str) -> None:
    seed_globals(7)
    states = GlobalStates.now()
    assert not states.have_moved()
    DRAWS[name]()
    assert states.have_moved()


def test_the_fast_check_works_with_the_installed_versions() -> None:
    assert global_states._mark() is not None


def test_a_replaced_numpy_generator_is_detected() -> None:
    states = GlobalStates.now()
    before = np.random.get_bit_generator()  # type: ignore[attr-defined]
    np.random.set_bit_generator(np.random.MT19937(3))  # type: ignore[attr-defined]
    try:
        assert states.have_moved()
        states.restore()
        assert np.random.get_bit_generator() is before  # type: ignore[attr-defined]
        assert not states.have_moved()
    finally:
        np.random.set_bit_generator(before)  # type: ignore[attr-defined]


def test_restoring_waits_for_a_thread_that_draws() -> None:
    """NumPy releases the GIL while it draws, and has its own lock."""
    states, generator = GlobalStates.now(), np.random.get_bit_generator()  # type: ignore[attr-defined]
    np.random.rand()
    restoring = threading.Thread(target=states.restore)
    with generator.lock:
        restoring.start()
        restoring.join(0.2)
        assert restoring.is_alive()
    restoring.join(100)
    assert not states.have_moved()


@pytest.mark.slow
def test_global_states_work_without_torch_and_after_it_is_imported() -> None:
    program = """
import sys
from feedline.randomness.global_states import GlobalStates
states = GlobalStates.now()
assert "torch" not in sys.modules
assert not states.have_moved()
import torch
assert states.have_moved()  # what it draws from now on is unknown
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
