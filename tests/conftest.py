"""Fixtures for every test: which engine runs it, and proof that it left nothing behind.

`nothing_left_behind` is autouse. After each test, it compares the process tree, the threads, `/dev/shm` and the open
files with those before it. Workers may still be ending when a test is over, so leftovers get some time to disappear
(waiting for the processes and threads themselves) after a garbage collection. What stays is named.
"""

import contextlib
import gc
import multiprocessing
import os
import random
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver, resource_sharer, resource_tracker
from pathlib import Path
from types import ModuleType, SimpleNamespace

import hypothesis
import numpy as np
import pytest

from feedline.memory import forks
from tests import parallel, program_server
from tests.browsing import browser, shared_window, window  # noqa: F401  # fixtures

# Looking for a GPU must not open it: tests run in processes that are forked after all were collected.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

ENGINES = ("inline", "thread", "process")

# Before any test initializes CUDA, after which a loader could no longer set it, and would warn.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

# How long workers may take to end after their loader. A guess: torch's own take up to 5 s under load.
GRACE_S = 60.0

# Threads of the test runner.
RUNNER_THREADS = (
    "pytest_timeout",
    "pydevd",
    "AnyIO worker thread",
)  # the last: of servers that the tests of a file share

_failed = pytest.StashKey[bool]()
_sharer: object = vars(resource_sharer)["_resource_sharer"]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Every engine in turn."""
    name: str = request.param
    return name


@pytest.fixture
def two_torch_threads() -> Iterator[None]:
    """Let torch compute on two threads in this process, as in a training script."""
    import torch

    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.fixture
def generators_as_they_were() -> Iterator[None]:
    """Restore the random generators of the process."""
    import torch

    python, numpy, own = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(own)


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    # Started in the background (`nohup make test &`). Programs that the tests start, and interrupt, inherit this.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# No test depends on how fast its machine is. `make slow` tries four times as many examples of each property.
for _profile, _examples in (("quick", 25), ("thorough", 100)):
    hypothesis.settings.register_profile(
        _profile, max_examples=_examples, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
hypothesis.settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=1, help="how many test files run at a time")
    parser.addoption("--costs", action="store_true", help="show the CPU time of folders and files, with --processes")


gc.disable()  # until all tests are collected: nothing created until then is garbage


def _forks_files(config: pytest.Config) -> bool:
    """Whether this process runs no tests itself: it forks one process per file."""
    is_forked = hasattr(config, "workerinput")
    return config.getoption("--processes") > 1 and not is_forked and not config.option.collectonly


def pytest_collection(session: pytest.Session) -> bool | None:
    """Collect nothing if each file is collected in its own process; import what most of them need."""
    if not _forks_files(session.config):
        return None
    program_server.launch()
    _import_what_most_files_need()
    pytest_collection_finish(session)
    return True


def _import_what_most_files_need() -> None:
    """Import what hundreds of processes would otherwise import each, but nothing that starts threads."""
    import torch.utils.data  # noqa: F401

    import feedline

    for name in feedline.__all__:
        getattr(feedline, name)
    for name in feedline.datasets.__all__:
        getattr(feedline.datasets, name)

    @hypothesis.settings(max_examples=200, database=None)
    @hypothesis.given(hypothesis.strategies.integers())
    def try_some_examples(_: int) -> None:
        """Hypothesis looks through all modules for constants when it first draws one of them: in one of 20 examples."""

    try_some_examples()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that only `make slow` runs."""
    for item in items:
        if item.get_closest_marker("real_time") is not None:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude imported objects from later garbage collections: with torch, they take 100 ms each time."""
    gc.collect()
    gc.freeze()
    gc.enable()
    if "torch" in sys.modules:
        # A process that a test forks has no compute threads, and might wait for them. Besides, the other cores run
        # other tests.
        sys.modules["torch"].set_num_threads(1)
        _keep_no_stacks(sys.modules["torch"])
    if not hasattr(session.config, "workerinput"):
        program_server.move_to_huge_pages()
        if not _forks_files(session.config):
            parallel.keep_children_quiet()


def _keep_no_stacks(torch: ModuleType) -> None:
    """Stop `torch.manual_seed` from keeping stacks: each of torch's workers would read all files of pytest again."""
    for device in (torch.cuda, torch.xpu, torch.mtia):
        device.traceback = SimpleNamespace(format_stack=list)


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if not _forks_files(session.config):
        return None
    parallel.run(session, session.config.getoption("--processes"))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_failed] = report.failed
    return report


def _open_cuda() -> None:
    """Let CUDA open its files now: it keeps them open until the program ends."""
    import torch

    if torch.cuda.is_available():
        torch.empty(1, pin_memory=True).to("cuda")


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a passing test that leaves a process, a thread, shared memory or an open file."""
    if not Path("/proc/self/fd").is_dir():
        yield  # the figures below are read from Linux's /proc
        return
    if request.node.get_closest_marker("gpu") is not None:
        _open_cuda()
    before = Surroundings.now()
    yield
    leftovers = before.leftovers()
    if not leftovers:
        return
    if request.node.stash.get(_failed, True):
        return  # the traceback of a failed test keeps its loader alive: do not report that as a second failure
    gc.collect()
    before.wait_for_leavers(GRACE_S)
    # Names of other programs in /dev/shm come and go; what a test left is there both times.
    leftovers = [found for found in before.leftovers() if found in leftovers or not found.startswith("/dev/shm")]
    leftovers += before.places_of_threads()
    before.kill_leftover_processes()
    if _is_first_to_load_a_driver():
        leftovers = [found for found in leftovers if not found.startswith("open file")]
    assert not leftovers, "the test left behind:\n  " + "\n  ".join(leftovers)


_drivers: set[str] = set()


def _is_first_to_load_a_driver() -> bool:
    """Whether this test was the first to load a GPU driver or Ray, which keep pipes open until the process ends."""
    maps = Path("/proc/self/maps").read_text()
    loaded = {name for name in ("libcuda.so", "libnvidia-ml.so", "_raylet.so") if name in maps}
    is_first = not loaded <= _drivers
    _drivers.update(loaded)
    return is_first


@dataclass(frozen=True)
class Surroundings:
    """Processes, threads, shared memory and open files at the start of a test."""

    processes: frozenset[int]
    threads: frozenset[int]
    shared_memory: frozenset[str]
    files: dict[int, str]

    @classmethod
    def now(cls) -> "Surroundings":
        return cls(
            processes=frozenset(_descendants()),
            threads=frozenset(id(thread) for thread in threading.enumerate()),
            shared_memory=frozenset(_shared_memory_names()),
            files=_open_files(),
        )

    def leftovers(self) -> list[str]:
        multiprocessing.active_children()  # reaps children that ended
        found = [f"process {pid}: {_command(pid)}" for pid in self._new_processes()]
        found += [f"thread {thread.name!r}" for thread in self._new_threads()]
        found += [f"/dev/shm/{name}" for name in sorted(_shared_memory_names() - self.shared_memory) if _is_ours(name)]
        files = _open_files()
        if len(files) > len(self.files):
            found += [f"open file {fd}: {target}" for fd, target in files.items() if self.files.get(fd) != target]
        return found

    def places_of_threads(self) -> list[str]:
        """Return where leftover threads are. Not to be called while a thread is ending: Python may crash."""
        return [f"  {thread.name} is at {_place_of(thread)}" for thread in self._new_threads()]

    def wait_for_leavers(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        for thread in self._new_threads():
            thread.join(max(0.0, deadline - time.monotonic()))
        for pid in self._new_processes():
            _wait_for_exit(pid, max(0.0, deadline - time.monotonic()))
        # Tests in other processes may have created names in the meantime; their owner is unknown, but they disappear.
        # A server in a thread closes its end of a connection after the client.
        names = _shared_memory_names() - self.shared_memory
        while True:
            forks.release_ended(at_once=True)  # memory that a forked process saw is released only by this call
            is_left = any(_is_ours(name) for name in names & _shared_memory_names())
            if time.monotonic() >= deadline or not (is_left or len(_open_files()) > len(self.files)):
                return
            time.sleep(0.02)

    def kill_leftover_processes(self) -> None:
        for pid in self._new_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _new_processes(self) -> list[int]:
        return sorted(_descendants() - self.processes)

    def _new_threads(self) -> list[threading.Thread]:
        return [
            thread
            for thread in threading.enumerate()
            if id(thread) not in self.threads
            and not thread.name.startswith(RUNNER_THREADS)
            and thread is not getattr(_sharer, "_thread", None)
        ]


def _descendants() -> set[int]:
    """Return all descendants, without the servers that multiprocessing and tests keep until the program ends."""
    programs, _ = program_server.kept_by_this_process()
    servers = {
        *programs,
        getattr(resource_tracker._resource_tracker, "_pid", None),
        getattr(forkserver._forkserver, "_forkserver_pid", None),
    }
    found: set[int] = set()
    server = program_server.running()
    waiting = [os.getpid(), *([server.pid] if server else [])]
    while waiting:
        for pid in _children(waiting.pop()):
            if "/playwright/driver/" in _command(pid):
                continue  # belongs to a fixture; the browser's processes come and go with its pages
            found.add(pid)
            waiting.append(pid)
    return {pid for pid in found if pid not in servers}


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):  # the process, or one of its threads, has ended in the meantime
        for task in os.listdir(f"/proc/{pid}/task"):  # with plain strings, for speed: this runs twice for every test
            with open(f"/proc/{pid}/task/{task}/children", "rb", buffering=0) as file:
                children += map(int, file.read().split())
    return children


def _wait_for_exit(pid: int, timeout_s: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            waiter = select.poll()
            waiter.register(handle, select.POLLIN)
            waiter.poll(timeout_s * 1000)
        finally:
            os.close(handle)


def _command(pid: int) -> str:
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "(gone)"
    return f"[state {status}] {command[:200]}"


def _shared_memory_names() -> set[str]:
    """Return the names in /dev/shm without semaphores: those are multiprocessing's, and do not name their owner."""
    with contextlib.suppress(OSError):
        return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}
    return set()


def _is_ours(name: str) -> bool:
    """Whether a name in /dev/shm does not belong to a living process outside this process tree.

    torch's names contain the process id. A worker of torch's own loader that is killed while it sends a batch leaves a
    name forever, and tests in all processes would be blamed for it.
    """
    family = {str(pid) for pid in (os.getpid(), *_descendants())}
    path = f"/dev/shm/{name}"
    if name.startswith("torch_") and name.split("_")[1] not in family:
        return False
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or process.name in family:
            continue
        with contextlib.suppress(OSError):
            if path in (process / "maps").read_text():
                return False
    return os.path.exists(path)


def _place_of(thread: threading.Thread) -> str:
    """Return where a thread is, innermost frame first."""
    frame = sys._current_frames().get(thread.ident or 0)
    summary = traceback.extract_stack(frame, 6) if frame is not None else []
    return " < ".join(f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in reversed(summary))


def _open_files() -> dict[int, str]:
    """Return open descriptors and their targets, without those that multiprocessing and tests keep until the end.

    These are the connections to their servers, and the socket through which a process passes descriptors to others.
    """
    _, programs = program_server.kept_by_this_process()
    listener = getattr(getattr(_sharer, "_listener", None), "_listener", None)
    servers = {
        *programs,
        getattr(resource_tracker._resource_tracker, "_fd", None),
        getattr(forkserver._forkserver, "_forkserver_alive_fd", None),
        listener._socket.fileno() if listener is not None else None,
    }
    files: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            files[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    # A GPU driver opens files whenever a part of it is first used; torch's first matrix product opens a file for
    # profilers, and multiprocessing keeps the memory of its shared values open.
    # In parity tests, torch's own loader leaves the memory of a worker that was killed while it sent a batch.
    # On ARM, importing torch opens files about the processor and leaves them open.
    processor = "/sys/devices/system/cpu/"
    own = (f"/tmp/perf-{os.getpid()}.map", f"/dev/shm/pym-{os.getpid()}-")
    kept = ("/dev/nvidia", *own, "/dev/shm/torch_", processor)
    return {fd: target for fd, target in files.items() if fd not in servers and not target.startswith(kept)}
