"""Runs every test file in its own process, several at a time (`--processes 3`).

The pytest process imports torch and feedline but no test. It forks one process per file, which collects that file, runs
its tests and sends their reports back. These processes stay small: a test that forks workers copies the page tables of
torch, not those of everything that any test imports. When a process dies, the test it was running has failed, and a new
process continues with the tests after it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import sys
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest

from tests import program_server

_DIED_BETWEEN_TESTS = "a process ended with exit code {code} while it ran no test of {file}"


def run(session: pytest.Session, count: int) -> None:
    """Run all tests, `count` files at a time."""
    files = _Files(session)
    try:
        while files.waiting or files.running:
            while files.waiting and len(files.running) < count and not _is_stopped(session):
                files.fork(files.waiting.popleft())
            files.gather()
            if _is_stopped(session):
                files.waiting.clear()
    finally:
        files.kill()
    files.report_costs()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


def _is_stopped(session: pytest.Session) -> bool:
    return bool(session.shouldfail or session.shouldstop)


@dataclass
class _File:
    """A file to run: pytest's argument, and how many of its tests are done."""

    argument: str
    done: int = 0
    cpu_s: float = 0.0


@dataclass
class _Process:
    """A process that runs a file, as seen by the one that forked it."""

    pid: int
    file: _File
    messages: connection.Connection
    waiting: deque[tuple[str, Any]] = field(
        default_factory=deque
    )  # ids and locations of tests that are not reported yet


class _Files:
    """All files, and the processes that run them."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._config = session.config
        self._hook = session.config.hook
        self._folders = self._config._tmp_path_factory  # type: ignore[attr-defined]
        self._folders.getbasetemp()
        self._tests: Counter[str] = Counter()
        self._finished: list[_File] = []
        self.waiting = deque(map(_File, _arguments(session.config)))
        self.running: list[_Process] = []

    def fork(self, file: _File) -> None:
        """Start a process for a file. Never returns in that process."""
        messages, answers = connection.Pipe(duplex=False)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            for process in self.running:
                process.messages.close()
            messages.close()
            _run_file(self._session, file, answers)
        answers.close()
        self.running.append(_Process(pid, file, messages))

    def gather(self) -> None:
        """Wait for messages from the processes, and forward their reports."""
        for ready in connection.wait([process.messages for process in self.running]):
            process = next(each for each in self.running if each.messages is ready)
            try:
                kind, value = process.messages.recv()
            except (EOFError, ConnectionResetError):
                self._take_end(process)
                continue
            getattr(self, f"_take_{kind}")(process, value)

    def kill(self) -> None:
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, 9)
            process.messages.close()
            os.waitpid(process.pid, 0)
        self.running.clear()

    def report_costs(self) -> None:
        """Show the CPU time of each folder and of the most expensive files, with `--costs`."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None or not self._config.getoption("--costs", False):
            return
        costs: dict[str, dict[str, float]] = {"folder": defaultdict(float), "file": {}}
        for file in self._finished:
            costs["folder"][os.path.dirname(file.argument)] += file.cpu_s
            costs["file"][file.argument] = file.cpu_s
        for title, seconds in costs.items():
            terminal.write_sep("-", f"CPU seconds by {title}, {sum(seconds.values()):.0f} in all")
            for name, cpu_s in sorted(seconds.items(), key=lambda row: -row[1])[:40]:
                terminal.write_line(f"{cpu_s:8.1f}  {name}")

    # -- messages of a process, by their kind ---

    def _take_collected(self, process: _Process, tests: list[tuple[str, Any]]) -> None:
        process.waiting = deque(tests[process.file.done :])
        if not process.file.done:
            self._tests[process.file.argument] = len(tests)
        # pytest shows the share of finished tests as progress: estimate how many there will be.
        total = len(self._tests) + len(self.waiting)
        self._session.testscollected = sum(self._tests.values()) * total // len(self._tests)

    def _take_deselected(self, process: _Process, count: int) -> None:
        self._hook.pytest_deselected(items=[SimpleNamespace() for _ in range(count)])  # only their number matters

    def _take_collection(self, process: _Process, data: Any) -> None:  # a report, as the hook serialises it
        report = self._hook.pytest_report_from_serializable(config=self._config, data=data)
        self._hook.pytest_collectreport(report=report)

    def _take_reports(self, process: _Process, reports: list[Any]) -> None:  # of one test, serialised likewise
        for data in reports:
            report = self._hook.pytest_report_from_serializable(config=self._config, data=data)
            self._hook.pytest_runtest_logreport(report=report)
            if report.failed:
                self._name_at_once(report)
        nodeid, location = process.waiting.popleft()
        process.file.done += 1
        self._hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)

    def _name_at_once(self, report: pytest.TestReport) -> None:
        """Print which test failed and why: the summary comes only after all tests, or never."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.write_line(f"\nfailed: {report.nodeid} ({report.when})", red=True)
            terminal.write_line("\n".join(report.longreprtext.splitlines()[-5:]))

    def _take_programs(self, process: _Process, cpu_s: float) -> None:
        process.file.cpu_s += cpu_s

    def _take_end(self, process: _Process) -> None:
        self.running.remove(process)
        process.messages.close()
        _, status, usage = os.wait4(process.pid, 0)
        file = process.file
        file.cpu_s += usage.ru_utime + usage.ru_stime
        code = os.waitstatus_to_exitcode(status)
        if not process.waiting:
            self._finished.append(file)
            if code != 0 and not _is_stopped(self._session):
                self._session.shouldstop = _DIED_BETWEEN_TESTS.format(code=code, file=file.argument)
        elif not _is_stopped(self._session):
            nodeid, location = process.waiting.popleft()
            text = f"the process of this test ended with exit code {code}"
            report = pytest.TestReport(nodeid, location, {}, "failed", text, "call")
            self._hook.pytest_runtest_logreport(report=report)
            self._name_at_once(report)
            file.done += 1
            self.waiting.appendleft(file)
        if not self.waiting and not self.running:
            self._session.testscollected = sum(self._tests.values())


def _arguments(config: pytest.Config) -> Iterator[str]:
    """Yield the requested test files, largest first: the last one to start should not take longest."""
    ignored = {Path(path).resolve() for path in config.getoption("ignore") or ()}
    files: list[Path] = []
    for argument in config.args:
        path = Path(argument)
        if not path.is_dir():
            yield argument
            continue
        found = (each for each in path.rglob("test_*.py") if "__pycache__" not in each.parts)
        files += (each for each in found if not ignored & {each.resolve(), *each.resolve().parents})
    for path in sorted(files, key=lambda path: (-path.stat().st_size, path)):
        yield os.path.relpath(path)


# -- in a forked process ---


def _run_file(session: pytest.Session, file: _File, answers: connection.Connection) -> NoReturn:
    """Collect a file, run its tests except for those that are done, and exit without finalizing torch."""
    os.register_at_fork(after_in_child=answers.close)  # it must be closed when this process ends
    code = 0
    try:
        _become_one_of_many(session, file, answers)
        session.config.args[:] = [file.argument]
        session.config.hook.pytest_collection(session=session)
        answers.send(("collected", [(item.nodeid, item.location) for item in session.items]))
        _run_tests(session, session.items[file.done :], answers)
        answers.send(("programs", program_server.cpu_s()))
    except BrokenPipeError:
        code = 1  # pytest was interrupted
    except BaseException as exc:
        if not isinstance(exc, KeyboardInterrupt):
            traceback.print_exc(file=sys.__stderr__)
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def keep_children_quiet() -> None:
    """Let processes that a test forks crash without printing a stack: some do so on purpose."""
    os.register_at_fork(after_in_child=faulthandler.disable)


def _run_tests(session: pytest.Session, items: Iterable[pytest.Item], answers: connection.Connection) -> None:
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    remaining = deque(items)
    while remaining and not _is_stopped(session):
        item = remaining.popleft()
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=remaining[0] if remaining else None)
        answers.send(("reports", reporter.take()))


def _become_one_of_many(session: pytest.Session, file: _File, answers: connection.Connection) -> None:
    """Send reports to the parent, and write nothing to the terminal and files that all processes share."""
    config = session.config
    keep_children_quiet()
    random.seed()
    np.random.seed()
    folders = config._tmp_path_factory  # type: ignore[attr-defined]
    folders._basetemp = folders.mktemp("process")
    config.workerinput = {}  # type: ignore[attr-defined]  # pytest-xdist's attribute, which plugins look for
    plugins = config.pluginmanager
    capture: Any = plugins.get_plugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    plugins.register(_OneFile(file.argument))
    terminal: Any = plugins.unregister(name="terminalreporter")
    plugins.register(_Reporter(config, answers, terminal._tw, is_first=not file.done), "terminalreporter")


class _OneFile:
    """Makes pytest skip everything but one file: it would look at all files in all folders on the way."""

    def __init__(self, argument: str) -> None:
        path = Path(os.path.abspath(argument.partition("::")[0]))
        self._wanted = {path, *path.parents}

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return None if collection_path in self._wanted else True


class _Reporter:
    """Replaces the plugin that writes reports to the terminal."""

    def __init__(
        self, config: pytest.Config, answers: connection.Connection, writer: object, *, is_first: bool
    ) -> None:
        self._config = config
        self._answers = answers
        self._reports: list[object] = []
        self._is_first = is_first  # to collect this file; otherwise another process has sent those results
        self._tw = writer  # other plugins use it: pytest-timeout writes the stacks of all threads

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(self._serialised(report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if self._is_first and not report.passed:
            self._answers.send(("collection", self._serialised(report)))

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        if self._is_first:
            self._answers.send(("deselected", len(items)))

    def take(self) -> list[object]:
        """Return the reports since the last call."""
        reports, self._reports = self._reports, []
        return reports

    def _serialised(self, report: pytest.TestReport | pytest.CollectReport) -> object:
        return self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
