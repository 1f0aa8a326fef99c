"""How starts that fail are explained, and how much time workers get to end."""

from __future__ import annotations

import errno
import math
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL

from feedline.errors import TooManyOpenFiles, WorkerStartError
from feedline.workers import lifetime
from feedline.workers.threads import ThreadEngine


class RecordsClose(ThreadEngine):
    """An engine that records whether it was closed."""

    def __init__(self) -> None:
        super().__init__(3)
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("raised", "expected", "advice"),
    [
        (OSError(errno.EMFILE, "Too many open files"), TooManyOpenFiles, "starting 3 workers.*ulimit -n"),
        (OSError(errno.EAGAIN, "busy"), WorkerStartError, "3 workers could not be started.*ulimit -u"),
        (OSError(errno.EIO, "broken"), OSError, "broken"),
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
    ],
)
def test_a_failed_start_is_explained_and_closes_the_engine(
    raised: BaseException, expected: type[BaseException], advice: str
) -> None:
    engine = RecordsClose()
    with pytest.raises(expected, match=advice), lifetime.explained_start(engine, None):
        raise raised
    assert engine.closed


class Finalizing:
    """A worker process, in virtual time: after SIGTERM, the user's finalizers take as long as torch's loader grants."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.ends_s = math.inf
        self.killed = False

    def monotonic(self) -> float:
        return self.now_s

    def join(self, timeout: float) -> None:
        self.now_s = min(self.now_s + timeout, max(self.now_s, self.ends_s))

    def is_alive(self) -> bool:
        return self.now_s < self.ends_s

    def terminate(self) -> None:
        self.ends_s = self.now_s + MP_STATUS_CHECK_INTERVAL

    def kill(self) -> None:
        self.killed = True
        self.ends_s = self.now_s


def test_finalizers_of_workers_get_as_much_time_as_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    process: Any = Finalizing()
    monkeypatch.setattr(lifetime, "time", process)
    monkeypatch.setattr(lifetime, "BaseProcess", Finalizing)
    process._popen = SimpleNamespace(method="forkserver")
    lifetime.end([process])
    assert not process.is_alive()
    assert not process.killed
