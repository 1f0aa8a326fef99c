"""Objects that save and restore their state."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from feedline.abc.stateful import is_stateful


class Both:
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        return


class OnlySaves:
    def state_dict(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize(
    ("value", "stateful"),
    [(Both(), True), (torch.nn.Linear(1, 1), False), (OnlySaves(), False), (iter([]), False), (None, False)],
)
def test_it_takes_both_methods(value: Any, stateful: bool) -> None:
    assert is_stateful(value) is stateful
