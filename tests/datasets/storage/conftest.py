from __future__ import annotations

import pytest

from feedline.datasets.storage.blob import RetryPolicy


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryPolicy, "pause_s", 0.001)
