"""For people who write a scheduler of their own: a suite that says whether it keeps its contract.

A suite is a class of tests. Subclass it in a test file, say how your object is made, and let pytest find it; the
tests use plain `assert` and need nothing but a test runner.
"""

from feedline.testing.scheduler import SchedulerContract

__all__ = ["SchedulerContract"]
