"""Which sample has failed, and where it comes from: on every engine, in both loaders, through wrappers."""

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
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        self.asked.append(index)
        if index == BAD:
            raise ValueError("broken")
        index += 1000  # what the frame says in the end is not what was asked for
        return index


class Table(Photos):
    """Reads several samples at once."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked.append(indices)
        torch.rand(())
        if BAD in indices:
            raise ValueError("broken")
        return indices


class Counting(Table):
    """Goes on from where it was."""

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
def test_of_a_subset_the_sample_is_named_by_both_indices(loader: str, kind: type[Photos]) -> None:
    told = notes_of(LOADERS[loader](Subset(kind(), BACKWARDS)))
    assert f"About sample 29, which is sample 70 of the {kind.__name__} in loader.dataset.dataset (stage: fetch" in told


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
def test_a_sample_is_followed_through_wrappers(wrapped: str, kind: type[Photos]) -> None:
    wrap, told = WRAPPED[wrapped]
    assert told.format(kind=kind.__name__) in notes_of(feedline.DataLoader(wrap(kind()), 16))


class Files(Photos):
    """To read again could take as long as a disk likes."""

    def __getitem__(self, index: int) -> int:
        self.asked.append(index)
        if index == BAD:
            raise OSError("broken")
        return index


@pytest.mark.parametrize("kind", [Photos, Files])
@pytest.mark.parametrize("wrapped", ["subset", "subset of a subset", "subset of parts"])
def test_samples_of_a_subset_are_asked_for_one_by_one_and_none_again(wrapped: str, kind: type[Photos]) -> None:
    photos = kind()
    wrap, told = WRAPPED.get(wrapped, (lambda data: Subset(data, BACKWARDS), "About sample 29, which is sample 70"))
    with pytest.raises((ValueError, OSError), match="broken") as caught:
        list(feedline.DataLoader(wrap(photos), 16))
    assert told.format(kind=kind.__name__) in caught.value.__notes__[0]
    assert photos.asked.count(BAD) == 1


class OwnSubset(Subset[Any]):
    """Has its own idea of several samples."""

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [-self.indices[index] for index in indices]


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: Subset(data, BACKWARDS)])
def test_a_subset_with_methods_of_its_own_is_asked_as_torch_does(wrap: Callable[[Any], Any]) -> None:
    photos: Any = wrap(OwnSubset(Photos(), BACKWARDS))
    ours, torchs = feedline.DataLoader(photos, 16, seed=1), torch.utils.data.DataLoader(photos, 16)
    assert torch.equal(torch.cat(list(ours)), torch.cat(list(torchs)))


def test_one_by_one_samples_are_asked_for_up_to_the_first_that_fails_and_draw_nothing() -> None:
    torch.manual_seed(5)
    table = Table()
    notes_of(feedline.DataLoader(table, 16, shuffle=False, generator=torch.Generator()))
    assert table.asked[-8:] == [list(range(64, 80)), *([index] for index in range(64, 71))]
    drawn = torch.get_rng_state()
    torch.manual_seed(5)
    torch.rand(5)  # one for each batch
    assert torch.equal(drawn, torch.get_rng_state())


def test_a_dataset_that_keeps_a_state_is_not_asked_again() -> None:
    table = Counting()
    told = notes_of(feedline.DataLoader(table, 16, shuffle=False))
    assert "About one of the samples 64, 65" in told
    assert table.asked[-1] == list(range(64, 80))


def test_a_failure_that_does_not_come_again_is_of_no_sample() -> None:
    class Tired(Table):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return super().__getitems__(indices) if len(indices) > 1 else indices

    assert "About one of the samples 64, 65" in notes_of(feedline.DataLoader(Tired(), 16, shuffle=False))


def test_time_for_trying_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.workers.fetch.origins._PATIENCE_S", -1.0)
    assert "About one of the samples 64, 65" in notes_of(feedline.DataLoader(Table(), 16, shuffle=False))


def test_an_index_that_a_dataset_of_tensors_does_not_have_is_named() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(10))
    with pytest.raises(IndexError) as caught:
        list(feedline.DataLoader(data, 4, sampler=[0, 1, 99, 3]))
    assert "About sample 99 (stage" in caught.value.__notes__[0]
