"""Errors name the failed sample and its origin: on every engine, in both loaders, through wrappers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

import feedline
from feedline.datasets import CachedDataset, mix

BAD = 70
SEVEN: Any = range(7)
BACKWARDS = list(range(99, -1, -1))


class Photos(Dataset[Any]):
    """Sample 70 is broken."""

    def __init__(self) -> None:
        self.requested: list[Any] = []

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        self.requested.append(index)
        if index == BAD:
            raise ValueError("broken")
        index += 1000  # so the local variable no longer holds the requested index
        return index


class Table(Photos):
    """Reads several samples at once."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.requested.append(indices)
        torch.rand(())
        if BAD in indices:
            raise ValueError("broken")
        return indices


class StatefulTable(Table):
    """Has a state."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


LOADERS: dict[str, Callable[[Any], Any]] = {
    "inline": lambda data: feedline.DataLoader(data, 16),
    "seeded": lambda data: feedline.DataLoader(data, 16, seed=1),
    "process": lambda data: feedline.DataLoader(data, 16, num_workers=1),
    "thread": lambda data: feedline.DataLoader(data, 16, num_workers=1, engine="thread"),
    "retry": lambda data: feedline.DataLoader(data, 16, on_error="retry"),
    "Loader": lambda data: feedline.Loader(data, 16),
    "Loader process": lambda data: feedline.Loader(data, 16, workers=1),
}


def notes_of(loader: Any) -> str:
    with pytest.raises(ValueError, match="broken") as caught:
        for _ in loader:
            pass
    return "\n".join(caught.value.__notes__)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", [Photos, Table])
def test_a_sample_of_a_subset_is_named_by_both_indices(loader: str, kind: type[Photos]) -> None:
    notes = notes_of(LOADERS[loader](Subset(kind(), BACKWARDS)))
    assert (
        f"About sample 29, which is sample 70 of the {kind.__name__} in loader.dataset.dataset (stage: fetch" in notes
    )


WRAPPED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "itself": (lambda data: data, "About sample 70 (stage"),
    "subset of a subset": (lambda data: Subset(Subset(data, BACKWARDS), BACKWARDS), "loader.dataset.dataset.dataset"),
    "parts": (lambda data: ConcatDataset([SEVEN, data]), "About sample 77, which is sample 70 of the"),
    "subset of parts": (
        lambda data: Subset(ConcatDataset([SEVEN, data]), list(range(107))),
        "About sample 77, which is sample 70 of the {kind} in loader.dataset.dataset.datasets[1]",
    ),
    "split": (lambda data: feedline.split(data, [1.0])[0], "sample 70 of the {kind} in loader.dataset.dataset"),
    "mix": (lambda data: mix([range(100), data]), "sample 70 of the {kind} in loader.dataset.datasets[1]"),
    "cache": (lambda data: CachedDataset(data, memory="1MB"), "sample 70 of the {kind} in loader.dataset.dataset"),
}


@pytest.mark.parametrize("kind", [Photos, Table])
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_a_sample_is_traced_through_wrappers(wrapped: str, kind: type[Photos]) -> None:
    wrap, expected = WRAPPED[wrapped]
    assert expected.format(kind=kind.__name__) in notes_of(feedline.DataLoader(wrap(kind()), 16))


class Files(Photos):
    """Reading a sample again could be slow."""

    def __getitem__(self, index: int) -> int:
        self.requested.append(index)
        if index == BAD:
            raise OSError("broken")
        return index


@pytest.mark.parametrize("kind", [Photos, Files])
@pytest.mark.parametrize("wrapped", ["subset", "subset of a subset", "subset of parts"])
def test_samples_of_a_subset_are_requested_one_by_one_and_only_once(wrapped: str, kind: type[Photos]) -> None:
    photos = kind()
    wrap, expected = WRAPPED.get(wrapped, (lambda data: Subset(data, BACKWARDS), "About sample 29, which is sample 70"))
    with pytest.raises((ValueError, OSError), match="broken") as caught:
        list(feedline.DataLoader(wrap(photos), 16))
    assert expected.format(kind=kind.__name__) in caught.value.__notes__[0]
    assert photos.requested.count(BAD) == 1


class OwnSubset(Subset[Any]):
    """Has a `__getitems__` of its own."""

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [-self.indices[index] for index in indices]


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: Subset(data, BACKWARDS)])
def test_a_subset_that_overrides_methods_is_called_as_torch_does(wrap: Callable[[Any], Any]) -> None:
    photos: Any = wrap(OwnSubset(Photos(), BACKWARDS))
    ours, torchs = feedline.DataLoader(photos, 16, seed=1), torch.utils.data.DataLoader(photos, 16)
    assert torch.equal(torch.cat(list(ours)), torch.cat(list(torchs)))


def test_samples_are_retried_up_to_the_bad_one_without_drawing_numbers() -> None:
    torch.manual_seed(5)
    table = Table()
    notes_of(feedline.DataLoader(table, 16, shuffle=False, generator=torch.Generator()))
    assert table.requested[-8:] == [list(range(64, 80)), *([index] for index in range(64, 71))]
    drawn = torch.get_rng_state()
    torch.manual_seed(5)
    torch.rand(5)  # one for each batch
    assert torch.equal(drawn, torch.get_rng_state())


def test_a_stateful_dataset_is_not_asked_again() -> None:
    table = StatefulTable()
    notes = notes_of(feedline.DataLoader(table, 16, shuffle=False))
    assert "About one of the samples 64, 65" in notes
    assert table.requested[-1] == list(range(64, 80))


def test_a_failure_that_does_not_recur_is_not_blamed_on_one_sample() -> None:
    class Tired(Table):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return super().__getitems__(indices) if len(indices) > 1 else indices

    assert "About one of the samples 64, 65" in notes_of(feedline.DataLoader(Tired(), 16, shuffle=False))


def test_the_search_for_the_bad_sample_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.workers.fetch.origins._PATIENCE_S", -1.0)
    assert "About one of the samples 64, 65" in notes_of(feedline.DataLoader(Table(), 16, shuffle=False))


def test_an_out_of_range_index_of_a_tensor_dataset_is_named() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(10))
    with pytest.raises(IndexError) as caught:
        list(feedline.DataLoader(data, 4, sampler=[0, 1, 99, 3]))
    assert "About sample 99 (stage" in caught.value.__notes__[0]
