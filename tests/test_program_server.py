"""A forked program behaves like one that was started normally."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests import program_server

SPAWNING = """
import multiprocessing

def double(number):
    return 2 * number

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [1, 2]))
"""


def test_a_program_has_its_own_arguments_folder_environment_and_main(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEEDLINE_TEST", "yes")
    text = "import os, sys\nname = 3\nprint(sys.argv, os.getcwd(), __name__, sys.modules['__main__'].name)\n"
    done = program_server.run(text + "print(os.environ['FEEDLINE_TEST'])", "a", 1, cwd=tmp_path)
    assert done.stdout == f"['-c', 'a', '1'] {tmp_path} __main__ 3\nyes\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_tracebacks_show_only_lines_of_the_program() -> None:
    done = program_server.run("raise ValueError('three')")
    assert done.returncode == 1
    assert done.stderr == (
        'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\nValueError: three\n'
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('seven')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("raise KeyboardInterrupt", -signal.SIGINT),
    ],
)
def test_programs_have_the_usual_exit_codes(text: str, code: int) -> None:
    done = program_server.run(text)
    assert done.returncode == code
    assert ("seven" in done.stderr) == ("seven" in text)


ENDING = """
import atexit, threading

class Last:
    def __init__(self):
        self.itself = self
    def __del__(self):
        print("dropped", flush=True)

last = Last()
atexit.register(print, "end")
threading.Timer(0.1, print, ["thread"]).start()
print("begin")
"""


@pytest.mark.parametrize("finalizes", [False, True])
def test_threads_exit_functions_and_finalizers_run_at_the_end(finalizes: bool) -> None:
    done = program_server.run(ENDING, finalizes=finalizes)
    assert (done.stdout, done.stderr) == ("begin\nthread\nend\ndropped\n", "")


def test_spawned_workers_import_the_file(tmp_path: Path) -> None:
    script = tmp_path / "spawning.py"
    script.write_text(SPAWNING)
    done = program_server.run(script, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("[2, 4]\n", "")


def test_descriptors_keep_their_numbers() -> None:
    reader, writer = os.pipe()
    with open(os.devnull, "r+b") as nothing, open(reader, "rb") as answer:
        fd = nothing.fileno()
        text = f"import os; os.write({writer}, b'heard')"
        program = program_server.start(text, stdin=fd, stdout=fd, stderr=fd, pass_fds=[writer])
        os.close(writer)
        assert answer.read() == b"heard"
        assert program.wait(100) == 0
