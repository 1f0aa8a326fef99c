"""Binding collate functions to a framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from feedline import collate
from feedline.frameworks.numpy import NumpyFramework
from feedline.frameworks.torch import TorchFramework

MAKERS: list[Callable[[], Any]] = [collate.pad, collate.detection, collate.drop_none]


@pytest.mark.parametrize("make", MAKERS)
def test_binding_does_not_change_the_original(make: Callable[[], Any]) -> None:
    original = make()
    samples = [(np.ones(2), np.ones(1))]
    bound = original.bound_to("torch")
    assert isinstance(bound(samples)[0], torch.Tensor)
    assert isinstance(original(samples)[0], np.ndarray)
    assert isinstance(bound.bound_to("numpy")(samples)[0], np.ndarray)


@pytest.mark.parametrize("inner", [collate.default, default_collate])
def test_binding_replaces_the_default_with_that_of_the_framework(inner: Any) -> None:
    framework = TorchFramework()
    assert collate.drop_none(inner).bound_to(framework)._inner is framework.bind_collate(default_collate)


def test_a_user_function_is_unchanged() -> None:
    for framework in (TorchFramework(), NumpyFramework(), "torch", "numpy"):
        assert collate.drop_none(list).bound_to(framework)._inner is list
