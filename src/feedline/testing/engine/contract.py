"""What every engine must do, as tests.

Say in a subclass how your engine is made and what it can do:

    class TestMyEngine(EngineContract):
        replaces_workers = True

        def make_engine(self) -> Engine:
            return MyEngine(worker_count=2)

Every test opens an engine of its own and closes it, also when the test fails. The chapters know nothing of each other:
each has the bench, and its own tests.
"""

from __future__ import annotations

from feedline.testing.engine.ends import EndChapter
from feedline.testing.engine.failures import FailureChapter
from feedline.testing.engine.streams import StreamChapter
from feedline.testing.engine.tasks import TaskChapter
from feedline.testing.engine.workers import WorkerChapter


class EngineContract(TaskChapter, FailureChapter, WorkerChapter, StreamChapter, EndChapter):
    """Subclass this, override `make_engine`, and let pytest collect the subclass.

    Example:
        >>> from feedline.engines.threads import ThreadEngine
        >>> class TestThreads(EngineContract):
        ...     def make_engine(self):
        ...         return ThreadEngine(2)
        >>> TestThreads().test_a_task_comes_back_as_its_batch()
    """
