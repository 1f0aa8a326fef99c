"""What every engine must do, as tests."""

from feedline.testing.engine.contract import EngineContract
from feedline.testing.engine.workload import Numbers

__all__ = ["EngineContract", "Numbers"]
