"""What every engine must do, as tests."""

from tests.contracts.engine.contract import EngineContract
from tests.contracts.engine.workload import Numbers

__all__ = ["EngineContract", "Numbers"]
