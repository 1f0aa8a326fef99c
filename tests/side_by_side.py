"""Runs tests in several processes (`--processes 3`), which are forked when all tests are collected.

pytest-xdist collects in each of its processes: 23 s of a core every time. Here one process collects, forks the others
and gathers their reports. Each of them takes the next file from a pipe until there is none left. If one dies, the test
that it was at has failed, and a new process goes on with those behind it; if it was at none, all is interrupted.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

import numpy as np
import pytest

from tests import program_server

_NUMBER = struct.Struct("i")
_USUAL = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


def run(session: pytest.Session, count: int) -> bool:
    """Run all tests. Returns in the forked processes, too: they end as pytest does."""
    tests = _Tests(session)
    for _ in range(count):
        if not tests.fork():
            return tests.run()
    while left := tests.gather():
        if not tests.fork(left):
            return tests.run(left)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


@dataclass
class _Process:
    """A process that runs tests, as seen by the one that forked it."""

    pid: int
    reports: connection.Connection
    waiting: deque[pytest.Item]  # what it has taken and not reported, in this order


class _Tests:
    """All tests, and the processes that run them."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._config = session.config
        self._hook = session.config.hook
        self._files = [list(items) for _, items in itertools.groupby(session.items, key=lambda item: item.path)]
        self._queue, entrance = os.pipe()
        os.write(entrance, b"".join(map(_NUMBER.pack, range(len(self._files)))))
        os.close(entrance)
        self._processes: list[_Process] = []
        self._folders = self._config._tmp_path_factory  # type: ignore[attr-defined]
        self._folders.getbasetemp()

    def fork(self, first: Iterable[pytest.Item] = ()) -> bool:
        """Fork a process that begins with these tests; returns whether this is the one that forked."""
        reports, self._answers = connection.Pipe(duplex=False)
        pid = os.fork()
        if pid != 0:
            self._answers.close()
            self._processes.append(_Process(pid, reports, deque(first)))
        return pid != 0

    def gather(self) -> list[pytest.Item]:
        """Pass reports on. Returns what a process that died has left, or nothing when all have ended."""
        try:
            while self._processes:
                for ready in connection.wait([process.reports for process in self._processes]):
                    process = next(each for each in self._processes if each.reports is ready)
                    try:
                        self._take_in(process, process.reports.recv())
                    except EOFError:
                        if left := self._ended(process):
                            return left
                if self._session.shouldfail or self._session.shouldstop:
                    self._hurry()
        except BaseException:
            self._hurry()
            raise
        return []

    def _take_in(self, process: _Process, message: Any) -> None:  # the number of a file, or the reports of a test
        if isinstance(message, int):
            process.waiting += self._files[message]
            return
        for each in message:
            self._hook.pytest_runtest_logreport(
                report=self._hook.pytest_report_from_serializable(config=self._config, data=each)
            )
        item = process.waiting.popleft()
        self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _ended(self, process: _Process) -> list[pytest.Item]:
        self._processes.remove(process)
        process.reports.close()
        code = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        if self._session.shouldfail or self._session.shouldstop:
            return []
        if not process.waiting:
            if code not in _USUAL:  # it may have died with a file that nobody else will take
                self._session.shouldstop = f"a process ended with exit code {code} while it ran no test"
            return []
        item, *left = process.waiting
        text = f"the process of this test ended with exit code {code}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
        self._hook.pytest_runtest_logreport(report=report)
        return left

    def _hurry(self) -> None:
        """Let no process begin another file."""
        while os.read(self._queue, 1 << 16):
            pass

    # -- in a forked process ---

    def run(self, first: Iterable[pytest.Item] = ()) -> bool:
        """Run these tests, then those of one file after the other, and report each."""
        os.register_at_fork(after_in_child=self._answers.close)  # it is closed when this process ends
        for process in self._processes:
            process.reports.close()
        reports: list[object] = []
        self._become_one_of_many(reports)
        items = itertools.chain(first, self._taken())
        item = next(items, None)
        with contextlib.suppress(BrokenPipeError):  # the process that collected was interrupted
            while item is not None and not (self._session.shouldfail or self._session.shouldstop):
                following = next(items, None)
                self._hook.pytest_runtest_protocol(item=item, nextitem=following)
                self._answers.send(reports)
                reports.clear()
                item = following
        return True

    def _taken(self) -> Iterator[pytest.Item]:
        while number := os.read(self._queue, _NUMBER.size):
            self._answers.send(*_NUMBER.unpack(number))
            yield from self._files[_NUMBER.unpack(number)[0]]

    def _become_one_of_many(self, reports: list[object]) -> None:
        """Write reports into a list, and nothing into the terminal and the files that the processes have in common."""
        program_server.move_to_huge_pages()
        random.seed()
        np.random.seed()
        self._folders._basetemp = self._folders.mktemp("process")
        self._config.workerinput = {}  # type: ignore[attr-defined]  # the sign of pytest-xdist, which plugins know
        plugins = self._config.pluginmanager
        capture: Any = plugins.get_plugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
        terminal: Any = plugins.unregister(name="terminalreporter")
        plugins.register(_Reporter(self._config, reports, terminal._tw), "terminalreporter")


class _Reporter:
    """Takes the place of what writes reports into the terminal."""

    def __init__(self, config: pytest.Config, reports: list[object], writer: object) -> None:
        self._config = config
        self._reports = reports
        self._tw = writer  # others write with it: pytest-timeout all stacks

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._reports.append(data)
