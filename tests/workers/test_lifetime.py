"""How worker processes start and end."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

import pytest

from feedline.abc.worker_spec import WorkerSpec
from feedline.collate import default
from feedline.errors import NotPicklable, TooManyOpenFiles, WorkerStartError
from feedline.frameworks.numpy import NumpyFramework
from feedline.types import DatasetKind
from feedline.workers import lifetime
from feedline.workers.threads import ThreadEngine

FORK = multiprocessing.get_context("fork")


class RecordsClose(ThreadEngine):
    """An engine that records whether it was closed."""

    def __init__(self) -> None:
        super().__init__(3)
        self.closed = False

    def close(self) -> None:
        self.closed = True


def ended(work: Callable[[], object]) -> Any:
    process = FORK.Process(target=work)
    process.start()
    wait([process.sentinel])
    return process


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


@pytest.mark.parametrize("raised", [TypeError("no"), AttributeError("no"), pickle.PicklingError("no")])
def test_pickle_errors_also_warn(raised: Exception) -> None:
    engine = RecordsClose()
    with (
        pytest.warns(UserWarning, match="Got pickle error"),
        pytest.raises(type(raised), match="no"),
        lifetime.explained_start(engine, None),
    ):
        raise raised
    assert engine.closed


def test_the_unpicklable_object_is_named() -> None:
    engine = RecordsClose()
    dataset = {"rows": [1, 2], "open": lambda: None}
    spec = WorkerSpec(dataset, DatasetKind.MAP, default, NumpyFramework(), worker_count=3, base_seed=0)
    with (
        pytest.warns(UserWarning, match="Got pickle error"),
        pytest.raises(NotPicklable, match=r"(?s)lambda") as caught,
        lifetime.explained_start(engine, spec),
    ):
        pickle.dumps(dataset)
    assert engine.closed
    assert isinstance(caught.value.__cause__, (AttributeError, pickle.PicklingError)), "pickle's own error"


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (lambda: os._exit(7), "worker 5 ended with exit code 7. Look for sys.exit()"),
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            "killed by signal 9 (SIGKILL). The system running out of memory",
        ),
        (lambda: os.kill(os.getpid(), signal.SIGABRT), "killed by signal 6 (SIGABRT). A crash in native code"),
    ],
)
def test_a_death_error_says_how_and_why(work: Callable[[], object], expected: str) -> None:
    process = ended(work)
    text = str(lifetime.death_error(process, 5))
    assert f"(pid(s) {process.pid}) exited unexpectedly" in text
    assert expected in text
    process.close()


def hold(ready: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.set()
    signal.pause()


def test_end_waits_then_kills() -> None:
    ready = FORK.Event()
    leaving, stubborn = FORK.Process(target=os.getpid), FORK.Process(target=hold, args=(ready,))
    for process in (leaving, stubborn):
        process.start()
    ready.wait()
    lifetime.end([leaving, stubborn])
    assert (leaving.exitcode, stubborn.exitcode) == (0, -signal.SIGKILL)
    for process in (leaving, stubborn):
        process.close()


def test_is_over_closes_the_files_of_an_ended_worker_and_keeps_its_exit_code() -> None:
    before = len(os.listdir("/proc/self/fd"))
    release = FORK.Event()
    process = FORK.Process(target=release.wait)
    process.start()
    assert not lifetime.is_over(process)
    pid = process.pid
    release.set()
    wait([process.sentinel])
    process.join()
    assert lifetime.is_over(process)
    assert lifetime.is_over(process)
    assert not process.is_alive()
    process.join()
    process.terminate()
    assert (process.exitcode, process.pid) == (0, pid)
    with pytest.raises(ValueError, match="process not started"):
        process.sentinel  # noqa: B018
    del release
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_start_method_is_that_of_the_context_or_the_default() -> None:
    assert lifetime.start_method(None) == multiprocessing.get_start_method()
    assert lifetime.start_method(multiprocessing.get_context("spawn")) == "spawn"
