from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from feedline.cli.contest import Case, Comparison, Round
from feedline.cli.scoreboard import find_remarks, show_table, to_json_line


def comparison(ratio: float, *, other_load: float | None = 0.0, worker_count: int = 2) -> Comparison:
    case = Case("tiny", dataset=None, batch_size=64, worker_count=worker_count, unit="batches", unit_per_batch=1)
    return Comparison(
        case, tuple(Round(100, 50) for _ in range(3)), tuple(Round(100 * ratio, 20) for _ in range(3)), other_load
    )


def draw(*comparisons: Comparison) -> str:
    out = io.StringIO()
    show_table(comparisons, Console(file=out, width=80))
    return out.getvalue()


def test_table_fits_a_narrow_terminal() -> None:
    text = draw(comparison(12.345, worker_count=0), comparison(0.5))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for part in ("tiny, inline", "tiny, 2 workers", "12.3x", "0.50x", "1,234", "50/20"):
        assert part in text


def test_loss_is_said_in_words() -> None:
    assert "feedline was slower here: tiny, 2 workers." in draw(comparison(0.8))


@pytest.mark.parametrize("ratio", [0.97, 1.0, 3.0])
def test_even_or_ahead_needs_no_remark(ratio: float) -> None:
    assert find_remarks([comparison(ratio)]) == []


def test_busy_machine_is_mentioned() -> None:
    (remark,) = find_remarks([comparison(2, other_load=0.02), comparison(2, other_load=0.7)])
    assert "0.7 cores" in remark
    assert find_remarks([comparison(2, other_load=None)]) == []


def test_json_line_holds_every_round_and_no_host() -> None:
    line = to_json_line(comparison(2))
    assert "\n" not in line
    row = json.loads(line)
    assert row["ratio"] == 2
    assert row["torch"] == {"rate": 100, "rates": [100, 100, 100], "first_batch_ms": 50}
    assert row["workers"] == 2
    assert set(row["machine"]) == {"cores", "system", "processor", "python", "torch", "feedline"}
