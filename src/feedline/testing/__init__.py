"""Test suites for authors of schedulers and sources, to check that an implementation keeps its contract.

A suite is a class of tests. Subclass it in a test file, define how your object is created, and let pytest find it; the
tests use plain `assert` and need nothing but a test runner.
"""

from feedline.testing.scheduler import SchedulerContract
from feedline.testing.source import SourceContract
from feedline.testing.stream import StreamContract

__all__ = ["SchedulerContract", "SourceContract", "StreamContract"]


def __dir__() -> list[str]:
    return __all__
