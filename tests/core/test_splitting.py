from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset, get_worker_info

from feedline import DataLoader
from feedline.core.splitting import Splitter
from feedline.errors import BadOption
from feedline.frameworks.torch import TorchFramework
from feedline.transport.codec import Codec, SlotWriter
from feedline.types import Parcel

pytestmark = pytest.mark.sample(4)


class Rows(Dataset[Any]):
    """Sample i: an array full of i, and i. The samples in `wide` have one column more."""

    def __init__(self, count: int = 500, wide: frozenset[int] = frozenset(), broken: int = -1) -> None:
        self.count = count
        self.wide = wide
        self.broken = broken

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if index == self.broken:
            raise KeyError(f"sample {index}")
        return torch.full((3, 9 if index in self.wide else 8), float(index)), index


class Readers(Rows):
    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        return index, info.id


@pytest.mark.slow
@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize("batch_size", [1, 7, 32])
def test_the_batches_are_the_same_as_unsplit(parts: int, batch_size: int) -> None:
    expected = list(DataLoader(Rows(), batch_size))
    actual = list(DataLoader(Rows(), batch_size, num_workers=3, split=parts))
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_several_workers_really_share_a_batch() -> None:
    readers = [set(worker.tolist()) for _, worker in DataLoader(Readers(), 20, num_workers=2, split=2)]
    assert readers[-1] == {0, 1}


def test_a_batch_whose_rows_have_another_shape_is_made_whole() -> None:
    dataset = Rows(wide=frozenset(range(400, 420)))
    batches = list(DataLoader(dataset, 20, num_workers=2, split=2))
    assert batches[20][0].shape == (20, 3, 9)
    assert torch.cat([labels for _, labels in batches]).tolist() == list(range(500))


def test_a_failing_row_fails_its_batch_only() -> None:
    iterator = iter(DataLoader(Rows(broken=333), 20, num_workers=2, split=2))
    labels = [label for _ in range(16) for label in next(iterator)[1].tolist()]
    with pytest.raises(KeyError, match="sample 333"):
        next(iterator)
    labels += [label for _, batch in iterator for label in batch.tolist()]
    assert labels == [label for label in range(500) if not 320 <= label < 340]


def test_epochs_left_early_give_their_slots_back() -> None:
    loader = DataLoader(TensorDataset(torch.arange(3000.0)), 500, num_workers=2, split=2, persistent_workers=True)
    for _ in range(5):
        next(iter(loader))
        assert torch.cat([batch[0] for batch in loader]).tolist() == list(range(3000))
    assert loader.stats()["overflowed_batches"] == 0
    loader.close()


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 2, "engine": "thread"},
        {"num_workers": 2, "collate_fn": list},
        {"num_workers": 2, "split": 0},
    ],
)
def test_what_cannot_be_split_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match="split"):
        DataLoader(Rows(), 4, **{"split": 2, **options})


def test_only_layouts_made_of_rows_are_learnt() -> None:
    framework = TorchFramework()

    def learn(batch: Any) -> bool:
        splitter = Splitter(framework, 2)
        view = np.zeros(1 << 16, np.uint8)
        writer = SlotWriter(view, view.__array_interface__["data"][0])
        splitter.learn(list(range(4)), Parcel(Codec(framework).encode(batch, writer), 0, writer.used))
        return splitter.cut(list(range(4)), 0) is not None

    assert learn([torch.zeros(4, 2), torch.zeros(4)])
    assert learn({"x": torch.zeros(4)})
    assert not learn([torch.zeros(3, 2), torch.zeros(4)])
    assert not learn([torch.zeros(4), "text"])
    assert not learn(torch.zeros(()))


@pytest.mark.parametrize("kind", [list, tuple, set, iter, torch.tensor])
def test_whatever_a_batch_sampler_yields(kind: Any) -> None:
    class Sampler:
        def __iter__(self) -> Any:
            return (kind([number, number + 1, number + 2, number + 3]) for number in range(0, 40, 4))

    loader = DataLoader(Rows(), batch_sampler=Sampler(), num_workers=2, split=2)
    assert [label for _, labels in loader for label in labels.tolist()] == list(range(40))


class Mixed(Dataset[Any]):
    def __init__(self, path: str) -> None:
        self.path = path

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Any:
        with open(self.path, "ab") as file:
            file.write(b".")
        return torch.zeros(1, dtype=torch.float64), float(index), index


def test_splitting_makes_no_batch_twice(tmp_path: Any) -> None:
    path = tmp_path / "reads"
    loader = DataLoader(Mixed(str(path)), 20, num_workers=2, split=2)
    labels = torch.cat([batch[2] for batch in loader])
    assert labels.tolist() == list(range(200))
    assert path.stat().st_size == 200
