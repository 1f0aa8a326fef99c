"""`balance`: batches of a step cost the same, whichever ranks take them. The laws of operators are in test_laws.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import BadOption
from feedline.samplers import attention_cost
from feedline.text.packing import cu_seqlens

LENGTHS = np.random.default_rng(0).lognormal(0, 1, 4 * 8 * 16 * 3).clip(max=12).round(3).tolist()


def test_consecutive_batches_of_one_rank_cost_the_same() -> None:
    batches = list(feedline.pipe(LENGTHS).balance(float, 8, window=64).batch(8, collate_fn=sum))
    unbalanced = list(feedline.pipe(LENGTHS).batch(8, collate_fn=sum))
    assert sorted(feedline.pipe(LENGTHS).balance(float, 8)) == sorted(LENGTHS)
    assert np.std(batches) < np.std(unbalanced) / 4


def test_the_ranks_of_a_step_cost_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    ranks = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        made = feedline.pipe(LENGTHS).balance(float, 8, ranks=4)
        ranks.append([float(np.sum(batch)) for batch in feedline.Loader(made, 8, shard=True, seed=1)])
    loads = np.array(ranks)
    assert np.mean(loads.max(0) / loads.mean(0)) < 1.02


def test_packed_rows_are_balanced_by_the_squares_of_their_documents() -> None:
    def cost(row: Any) -> float:
        lengths = np.diff(cu_seqlens(row["segment_ids"]).cu_seqlens)
        return float(attention_cost(lengths, linear=0, documents=True))

    lengths = np.random.default_rng(1).lognormal(2, 1, 3000).clip(1, 64).astype(int)
    rows = feedline.pipe([np.ones(length, np.int64) for length in lengths]).pack(64)

    def spread(pipe: Any) -> float:
        steps = np.array(list(pipe.map(cost).batch(8, drop_last=True, collate_fn=sum)))
        steps = steps[: len(steps) // 4 * 4].reshape(-1, 4)
        return float((steps.max(1) / steps.mean(1)).mean())

    assert spread(rows.balance(cost, 8, window=16)) < spread(rows) - 0.05


def test_a_cost_that_fails_is_raised_in_place_of_the_sample() -> None:
    def cost(sample: int) -> float:
        if sample == 3:
            raise ValueError("no cost")
        return float("nan") if sample == 5 else 1.0

    iterator, errors, found = iter(feedline.pipe(range(8)).balance(cost, 2, window=2)), [], []
    while True:
        try:
            found.append(next(iterator))
        except StopIteration:
            break
        except (ValueError, BadOption) as exc:
            errors.append(str(exc))
    assert sorted(found) == [0, 1, 2, 4, 6, 7]
    assert len(errors) == 2
    assert any("nan" in error for error in errors)


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"ranks": 0}, {"window": 0}, {"cost": 3}])
def test_rejects_options(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        feedline.pipe(range(4)).balance(**{"cost": float, "batch_size": 2, **options})
