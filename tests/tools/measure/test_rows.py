from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

import feedline
from feedline.tools.measure import rows
from feedline.tools.measure.harness import Outcome, Side, Spread

COLUMNS = (rows.Column("samples_per_s", "samples/s", better="higher"), rows.Column("first_ms", "ms", better="lower"))


def outcome(library: str, workers: int, rate: float, *, disturbed: float = 0.0) -> Outcome:
    figures = [{"samples_per_s": rate * scale, "first_ms": 10.0, "disturbed": disturbed} for scale in (1, 2)]
    return Outcome({"data": "tiny", "workers": workers}, Side(library), [dict(one) for one in figures])


@pytest.fixture
def outcomes() -> list[Outcome]:
    return [outcome("torch", 0, 100), outcome("feedline", 0, 150), outcome("torch", 2, 50), outcome("feedline", 2, 600)]


def test_outcomes_are_compared_with_every_baseline(outcomes: list[Outcome]) -> None:
    found = rows.compare(outcomes[3], outcomes, COLUMNS)
    assert found["torch"] == {"samples_per_s": Spread(12, 12, 12), "first_ms": Spread(1, 1, 1)}
    assert found["torch_best"]["samples_per_s"].median == 6
    assert found["own_inline"]["samples_per_s"].median == 4
    assert rows.compare(outcomes[0], outcomes, COLUMNS) == {}
    assert set(rows.compare(outcomes[2], outcomes, COLUMNS)) == {"torch_best", "own_inline"}


def test_rows_contain_the_machine_and_every_round_but_no_path(outcomes: list[Outcome], tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows.publish("tiny", outcomes, Namespace(json=str(file), data=Path("/home/somebody"), rounds=2), columns=COLUMNS)
    text = file.read_text(encoding="utf-8")
    assert "somebody" not in text
    machine, *rest = map(json.loads, text.splitlines())
    assert machine["flags"] == {"rounds": 2}
    assert machine["feedline"] == feedline.__version__
    assert [row["kind"] for row in rest] == ["round", "round", "summary"] * 4
    assert [row["samples_per_s"] for row in rest[:2]] == [100, 200]
    assert rest[-1]["figures"]["samples_per_s"] == {"median": 900, "low": 600, "high": 1200}
    assert rest[-1]["ratios"]["torch"]["samples_per_s"]["median"] == 12
