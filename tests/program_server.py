"""Programs that tests start, forked from a process that has already imported torch, NumPy and feedline.

A new interpreter needs two seconds of a core for these imports; a fork needs some milliseconds. A forked program has
its own arguments, environment, folder and descriptors, and is `__main__`. At its end, it waits for its threads, runs
its exit functions and drops its objects; then the process exits. Finalizing the modules and libraries that it was
forked with, as an interpreter does at exit, would copy all of their pages, which takes a quarter of a second. Tests of
that set `finalizes`. Tests of imports, memory, threads or the interpreter's options start a new interpreter.

Every test process has a server, which ends with it. The server is the parent of the programs: it waits for each and
writes its status to a pipe, whose other end `Forked` reads. The servers are forked from one process, the origin, which
imports torch once for all test processes of a run.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

import numpy as np

_ROOT = Path(__file__).resolve().parents[1]
_STATUS = struct.Struct("i")
_NO_WARNING_OF_FORKS = "ignore:This process:DeprecationWarning"
"""Programs fork while they have threads, as users' programs do; Python 3.12 and later warn about it."""
_MOST_BYTES = 1 << 17
"""The size of a request: text, arguments and environment. Sockets accept more than this at once."""


@dataclass(frozen=True)
class _Request:
    """A program to run; its descriptors are sent with it, followed by those for `passed`."""

    program: str
    is_file: bool
    arguments: list[str]
    cwd: str
    env: dict[str, str]
    passed: list[int]
    own_session: bool
    finalizes: bool


class Forked:
    """A running program, with the part of `subprocess.Popen` that tests need."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the program has ended and was reaped; return its exit code."""
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"the forked program {self.pid}", timeout or 0)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _wait(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout_s)[0]:
            (status,) = _STATUS.unpack(os.read(self._status, _STATUS.size))
            os.close(self._status)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def start(
    program: str | Path,
    arguments: Sequence[object] = (),
    *,
    stdin: int,
    stdout: int,
    stderr: int,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    start_new_session: bool = False,
    finalizes: bool = False,
) -> Forked:
    """Start a program: a text, as for `python -c`, or a file. Close your copies of its descriptors afterwards."""
    request = _Request(
        program=str(program),
        is_file=isinstance(program, Path),
        arguments=[str(argument) for argument in arguments],
        cwd=str(cwd or Path.cwd()),
        env=dict(os.environ if env is None else env),
        passed=list(pass_fds),
        own_session=start_new_session,
        finalizes=finalizes,
    )
    ours, theirs = os.pipe()
    try:
        connection = _server().connection
        text = json.dumps(asdict(request)).encode()
        socket.send_fds(connection, [text], [theirs, stdin, stdout, stderr, *pass_fds])
        answer = connection.recv(_STATUS.size)
        if not answer:
            raise RuntimeError("the server of programs has ended. Its error output says why")
        (pid,) = _STATUS.unpack(answer)
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return Forked(pid, ours)


def run(
    program: str | Path,
    *arguments: object,
    cwd: Path | None = None,
    timeout_s: float = 250,
    finalizes: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; kill it if that takes too long."""
    with (
        tempfile.TemporaryFile("w+") as stdout,
        tempfile.TemporaryFile("w+") as stderr,
        open(os.devnull) as nothing,
    ):
        forked = start(
            program,
            arguments,
            stdin=nothing.fileno(),
            stdout=stdout.fileno(),
            stderr=stderr.fileno(),
            cwd=cwd,
            finalizes=finalizes,
        )
        try:
            forked.wait(timeout_s)
        finally:
            forked.kill()
            code = forked.wait()
        return subprocess.CompletedProcess([str(program)], code, _read(stdout), _read(stderr))


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


class Server(NamedTuple):
    """The process that programs are forked from, and the connection to it."""

    pid: int
    connection: socket.socket


def running() -> Server | None:
    """Return the server of this process, if it has started one."""
    return _server() if _server.cache_info().currsize else None


def cpu_s() -> float:
    """Return the CPU time of all programs that this process started and that have ended."""
    server = running()
    if server is None:
        return 0.0
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


@functools.cache
def launch() -> socket.socket:
    """Start the process that servers are forked from. Processes forked later use the same one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-W", _NO_WARNING_OF_FORKS, "-m", "tests.program_server", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=_ROOT,
            start_new_session=True,  # Ctrl-C is for the tests
        )
    _origin_pids.append(process.pid)
    atexit.register(ours.close)
    process.returncode = 0  # not waited for: it ends with the last process that has `ours`
    return ours


_origin_pids: list[int] = []


def kept_by_this_process() -> tuple[set[int], set[int]]:
    """Return the processes and descriptors of the server and its origin, which stay until the test process ends."""
    server = running()
    pids = {*_origin_pids, *([server.pid] if server else [])}
    fds = {launch().fileno() for _ in range(launch.cache_info().currsize)}
    return pids, fds | ({server.connection.fileno()} if server else set())


@functools.cache
def _server() -> Server:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        socket.send_fds(launch(), [b"server"], [theirs.fileno()])
    atexit.register(ours.close)
    (pid,) = _STATUS.unpack(ours.recv(_STATUS.size))
    return Server(pid, ours)


def move_to_huge_pages() -> None:
    """Let forks copy fewer pages. With torch, this reduces a fork and its exit from 20 ms to 9 ms of a core."""
    if sys.platform != "linux":
        return
    collapse, size = 25, 1 << 21  # MADV_COLLAPSE, since Linux 6.1; older kernels reject it, and nothing changes
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, _, *name = line.split()
        first, end = (int(address, 16) for address in addresses.split("-"))
        first, end = -(-first // size) * size, end // size * size
        if access == "rw-p" and name in ([], ["[heap]"]) and first < end:
            madvise(first, end - first, collapse)


# -- in the origin and in the servers ---


def _fork_servers(origin: socket.socket) -> socket.socket | None:
    """Fork a server per request. Return its connection there, and None in the origin after the last test process."""
    while True:
        text, fds, _, _ = socket.recv_fds(origin, 16, 1)
        if not text:
            return None
        (fd,) = fds
        if os.fork() == 0:
            origin.close()
            connection = socket.socket(fileno=fd)
            connection.send(_STATUS.pack(os.getpid()))
            return connection
        os.close(fd)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _serve(connection: socket.socket) -> _Request | None:
    """Fork a process per request. Return in each of them, and in the server when there will be no more requests."""
    children: dict[int, tuple[int, int]] = {}  # process and descriptor for its status, by pidfd
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    while True:
        for ready, _ in waiting.poll():
            if ready != connection.fileno():
                waiting.unregister(ready)
                _report(*children.pop(ready))
                os.close(ready)
                continue
            text, fds, _, _ = socket.recv_fds(connection, _MOST_BYTES, 16)
            if not text:
                return None
            status, *others = fds
            pid = os.fork()
            if pid == 0:
                connection.close()
                for fd in (status, *children, *(other for _, other in children.values())):
                    os.close(fd)
                request = _Request(**json.loads(text))
                _become(request, others)
                return request
            for fd in others:
                os.close(fd)
            handle = os.pidfd_open(pid)
            children[handle] = (pid, status)
            waiting.register(handle, select.POLLIN)
            connection.send(_STATUS.pack(pid))


def _report(pid: int, status: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the test no longer waits for it
        os.write(status, _STATUS.pack(os.waitpid(pid, 0)[1]))
    os.close(status)


def _become(request: _Request, fds: list[int]) -> None:
    """Make this process look as if it was started for the program."""
    if request.own_session:
        os.setsid()
    # First move descriptors away from the wanted numbers, then to them.
    away = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 256) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(away, [0, 1, 2, *request.passed], strict=True):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.env)
    random.seed()
    np.random.seed()


def _run(request: _Request) -> None:
    """Run the program as `__main__`; its exceptions end the process as they would end an interpreter."""
    main = types.ModuleType("__main__")
    if request.is_file:
        main.__file__ = request.program
        sys.path[0] = str(Path(request.program).parent)
        code = compile(Path(request.program).read_bytes(), request.program, "exec")
    else:
        sys.path[0] = ""
        code = compile(request.program, "<string>", "exec")
    sys.argv = [request.program if request.is_file else "-c", *request.arguments]
    sys.modules["__main__"] = main
    sys.excepthook = _show_exception_of_the_program
    exec(code, main.__dict__)


def _run_and_leave(request: _Request) -> NoReturn:
    """Run the program, and exit like an interpreter, but without finalizing it."""
    code: object = 0
    is_interrupted = False
    try:
        _run(request)
    except SystemExit as exc:
        code = exc.code
    except BaseException as exc:
        sys.excepthook(type(exc), exc, exc.__traceback__)
        code, is_interrupted = 1, isinstance(exc, KeyboardInterrupt)
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException as exc:
        sys.__excepthook__(type(exc), exc, exc.__traceback__)
    atexit._run_exitfuncs()
    vars(sys.modules["__main__"]).clear()
    gc.collect()
    if not isinstance(code, int | None):
        sys.stderr.write(f"{code}\n")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    if is_interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit((code or 0) & 0xFF)


def _show_exception_of_the_program(
    kind: type[BaseException], exception: BaseException, traceback: types.TracebackType | None
) -> None:
    names = vars(sys.modules["__main__"])
    while traceback is not None and traceback.tb_frame.f_globals is not names:  # skip frames outside the program
        traceback = traceback.tb_next
    sys.__excepthook__(kind, exception.with_traceback(traceback), traceback)


if __name__ == "__main__":
    # Accessed so that they are imported. Nothing else may happen here: a server with threads could not be forked.
    import feedline

    _loaders: list[object] = [feedline.Loader]
    with contextlib.suppress(ModuleNotFoundError):  # when feedline is tested without torch
        import torch.utils.data  # noqa: F401

        _loaders.append(feedline.DataLoader)
    for _finalizer in list(vars(weakref.finalize)["_registry"]):
        _, _called, _, _ = _finalizer.peek()
        if _called.__module__.startswith("torch."):
            _finalizer.atexit = False  # its operators need no finalization
    gc.collect()
    gc.freeze()  # otherwise each program would traverse all of torch at its end, and so copy its pages
    move_to_huge_pages()
    _this = sys.modules["__main__"]  # its names are in use until the end
    with socket.socket(fileno=int(sys.argv[1])) as _origin:
        _own = _fork_servers(_origin)
    _request = None
    if _own is not None:
        with _own:
            _request = _serve(_own)
    if _request is not None:
        (_run if _request.finalizes else _run_and_leave)(_request)
