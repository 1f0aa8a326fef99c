from __future__ import annotations

from feedline.tools.measure import harness
from feedline.tools.measure.harness import Entry, Figures, Outcome, Settings, Side, Spread


def outcome(library: str, *values: float) -> Outcome:
    return Outcome({}, Side(library), [{"ms": value} for value in values])


def test_ratios_are_taken_round_by_round() -> None:
    ours, theirs = outcome("feedline", 2.0, 4.0), outcome("torch", 4.0, 16.0)
    assert harness.ratio(ours, theirs, "ms", lower_is_better=True) == Spread(3.0, 2.0, 4.0)
    assert harness.ratio(ours, theirs, "ms") == Spread(0.375, 0.25, 0.5)


def test_disturbed_rounds_are_ignored_while_there_are_quiet_ones() -> None:
    ours, theirs = outcome("feedline", 2.0, 8.0), outcome("torch", 1.0, 1.0)
    theirs.rounds[1]["disturbed"] = 1.0
    assert harness.ratio(ours, theirs, "ms") == Spread(2.0, 2.0, 2.0)
    theirs.rounds[0]["disturbed"] = 1.0
    assert harness.ratio(ours, theirs, "ms") == Spread(5.0, 2.0, 8.0)
    assert theirs.disturbed_count == 2


def test_entries_take_turns_and_every_other_round_goes_backwards() -> None:
    order: list[str] = []

    def entry(name: str) -> Entry:
        def measure() -> Figures:
            order.append(name)
            return {}

        return Entry({}, Side(name), measure, lambda: order.append(f"warm {name}"))

    harness.run_rounds([entry("a"), entry("b")], Settings(rounds=3))
    assert order == ["warm a", "warm b", "a", "b", "b", "a", "a", "b"]
