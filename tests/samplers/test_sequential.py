"""Indices as they come."""

from __future__ import annotations

from feedline.samplers import SequentialSampler


def test_length_is_asked_for_in_each_epoch() -> None:
    dataset = ["a", "b"]
    sampler = SequentialSampler(dataset)
    assert list(sampler) == [0, 1]
    dataset.append("c")
    assert len(sampler) == 3
    assert list(sampler) == [0, 1, 2]


def test_empty_dataset_is_an_empty_epoch() -> None:
    assert list(SequentialSampler([])) == []


def test_more_than_a_block() -> None:
    assert list(SequentialSampler(range(40_000))) == list(range(40_000))
