"""How long tasks take."""

from __future__ import annotations

from feedline.loader.pace import _UNKNOWN_S, Pace


def test_before_any_answer_a_guess_is_taken() -> None:
    assert Pace().typical_s() == _UNKNOWN_S


def test_one_slow_task_changes_little() -> None:
    pace = Pace()
    for busy_s in (1, 1, 500, 2, 1):
        pace.note(busy_s * 10**9)
    assert pace.typical_s() == 1.0


def test_what_was_long_ago_is_forgotten() -> None:
    pace = Pace()
    for busy_s in [50] * 40 + [3] * 41:
        pace.note(busy_s * 10**9)
        told_s = pace.typical_s()
    assert told_s == 3.0


def test_it_is_sorted_out_anew_with_every_sixteenth_answer() -> None:
    pace = Pace()
    told = []
    for busy_s in range(1, 20):
        pace.note(busy_s * 10**9)
        told.append(pace.typical_s())
    assert told == [1.0] * 16 + [9.0] * 3
