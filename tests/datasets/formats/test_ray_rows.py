"""Rows of Ray Data, with a stand-in: tests/workers/ray/test_loader.py uses the real one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from feedline import Loader
from feedline.datasets import RayRows
from feedline.errors import BadOption


class Part:
    """Stands in for what `ray.train.get_dataset_shard` returns."""

    def iter_rows(self) -> Iterator[dict[str, int]]:
        return iter([{"id": number} for number in range(5)])


class Whole(Part):
    def streaming_split(self) -> None: ...


def test_rows_are_batched_in_every_epoch() -> None:
    loader = Loader(RayRows(Whole()), batch_size=2)
    for _ in range(2):
        assert [batch["id"].tolist() for batch in loader] == [[0, 1], [2, 3], [4]]


def test_a_transform_turns_rows_into_samples() -> None:
    assert list(RayRows(Part(), lambda row: row["id"] * 10)) == [0, 10, 20, 30, 40]


def test_each_rank_needs_its_own_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(list(RayRows(Part()))) == 5
    with pytest.raises(BadOption, match=r"rank 1 of 2.*get_dataset_shard"):
        iter(RayRows(Whole()))


def test_bad_options_are_rejected() -> None:
    with pytest.raises(BadOption, match="num_workers=0"):
        next(iter(Loader(RayRows(Part()), batch_size=2, workers=1, engine="thread")))
    with pytest.raises(BadOption, match="iter_rows"):
        RayRows([1, 2])
    with pytest.raises(BadOption, match="transform=5"):
        RayRows(Part(), 5)  # type: ignore[arg-type]
