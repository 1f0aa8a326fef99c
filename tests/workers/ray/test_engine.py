"""Workers that are Ray actors: the contract."""

from __future__ import annotations

from typing import Any

import pytest

from feedline.abc import Engine
from feedline.frameworks.numpy import NumpyFramework
from feedline.memory.codec import Codec
from feedline.types import Result, SlotBatch
from feedline.workers.ray.engine import RayEngine
from feedline.workers.ray.options import RayOptions
from tests.contracts.engine import EngineContract

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("cluster"),
    pytest.mark.filterwarnings("ignore::feedline.errors.WorkerWarning"),  # a busy machine starts processes slowly
]


class TestRay(EngineContract):
    has_processes = True

    def make_engine(self) -> Engine:
        return RayEngine(2, RayOptions(num_cpus=1))

    def batch_of(self, result: Result) -> Any:
        slot_batch = result.payload
        assert isinstance(slot_batch, SlotBatch)
        return Codec(NumpyFramework()).decode(slot_batch.header, slot_batch.reader)
