"""For people who write an engine, a scheduler or a source of their own: suites that say whether it keeps its contract.

A suite is a class of tests. Subclass it in a test file, say how your object is made, and let pytest find it; the
tests use plain `assert` and need nothing but a test runner.
"""

from feedline.testing.engine import EngineContract
from feedline.testing.gate import Gate, Journal
from feedline.testing.scheduler import SchedulerContract
from feedline.testing.source import SourceContract

__all__ = ["EngineContract", "Gate", "Journal", "SchedulerContract", "SourceContract"]
