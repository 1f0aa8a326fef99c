"""Which device a user means, and what is set before CUDA is initialised."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
import torch

from feedline import DataLoader
from feedline.device import torch_target
from feedline.errors import BadOption, PerformanceWarning
from feedline.system import cuda_queues

QUEUES = cuda_queues.VARIABLE


@pytest.mark.parametrize("device", ["gpu", "cuda:x", 3.5, object()])
def test_objects_that_are_not_devices_are_rejected(device: object) -> None:
    with pytest.raises(BadOption, match=r"is not a torch device .*'cuda:1'"):
        DataLoader([1], device=device)


def test_a_transform_runs_without_a_device_too() -> None:
    loader = DataLoader([1, 2, 3], batch_size=2, device_transform=lambda batch: batch * 10)
    assert [batch.tolist() for batch in loader] == [[10, 20], [30]]


@pytest.mark.parametrize("initialised", [False, True])
@pytest.mark.parametrize("given", [None, "1"])
def test_the_number_of_queues_is_set_before_cuda_is_initialised(
    monkeypatch: pytest.MonkeyPatch, initialised: bool, given: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialised)
    monkeypatch.setenv(QUEUES, given or "")
    if given is None:
        monkeypatch.delenv(QUEUES)
    cuda_queues.widen()
    expected = given if given is not None else None if initialised else "32"
    assert os.environ.get(QUEUES) == expected
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        torch_target._check_queues()
    assert [one.category for one in warned] == ([] if expected else [PerformanceWarning])


class WhoLoads(torch.utils.data.Dataset[int]):
    """Each sample is the pid of the process that loads it."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return os.getpid()


@pytest.mark.parametrize(
    ("arguments", "kept"), [({"device": "cpu"}, True), ({"device": "cpu", "persistent_workers": False}, False)]
)
def test_workers_are_persistent_by_default_with_a_device(arguments: dict[str, Any], kept: bool) -> None:
    loader = DataLoader(WhoLoads(), 1, num_workers=1, engine="process", **arguments)
    first, second = ({batch.item() for batch in loader} for _ in range(2))
    assert (first == second) == loader.persistent_workers == kept
    loader.close()
