"""Tests that run in several processes: each runs once, whatever becomes of the processes."""

import re
from pathlib import Path

import pytest

from tests import program_server

PROGRAM = """
import sys, pytest
from tests import side_by_side

class Plugin:
    def pytest_runtestloop(self, session):
        return side_by_side.run(session, 2)

folder, *options = sys.argv[1:]
options += ["--rootdir", folder, "-c", "/dev/null", "-p", "no:cacheprovider", "-rA"]
sys.exit(pytest.main([folder, *options], [Plugin()]))
"""

FILE = """
import os

def test_whole():
    print("written by", __name__)

def test_killed():
    if __name__ == "test_b":
        os.kill(os.getpid(), 9)

def test_failing():
    assert __name__ != "test_c"

def test_the_last():
    pass
"""


def told(folder: Path, *options: str, conftest: str = "") -> tuple[int, str]:
    (folder / "conftest.py").write_text(conftest)  # pytest looks through all plugins for what belongs to a folder
    for name in "abc":
        (folder / f"test_{name}.py").write_text(FILE)
    done = program_server.run(PROGRAM, folder, *options)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_each_test_runs_once_and_a_process_that_dies_fails_its_test_alone(tmp_path: Path) -> None:
    code, text = told(tmp_path)
    assert code == 1
    ran = sorted(re.findall(r"^(PASSED|FAILED) \S*test_(\w).py::test_(\w+)", text, re.M), key=lambda row: row[1:])
    names = ["failing", "killed", "the_last", "whole"]
    failed = {("b", "killed"), ("c", "failing")}
    assert ran == [("FAILED" if (file, name) in failed else "PASSED", file, name) for file in "abc" for name in names]
    assert "the process of this test ended with exit code -9" in text
    assert all(text.count(f"written by test_{file}\n") == 1 for file in "abc"), "what a test writes is told with it"
    assert "2 failed, 10 passed" in text


def test_nothing_is_begun_after_as_many_failures_as_are_allowed(tmp_path: Path) -> None:
    code, text = told(tmp_path, "--maxfail=1", "-k", "killed or last")
    assert code == 1
    assert "stopping after 1 failures" in text
    assert "test_b.py::test_the_last" not in text


BEGINNING = "import os, random\nrandom.seed = lambda: os._exit(3)"
END = "import os\npid = os.getpid()\ndef pytest_sessionfinish():\n    if os.getpid() != pid: os._exit(3)"


@pytest.mark.parametrize("conftest", [BEGINNING, END])
def test_a_process_that_dies_when_it_is_at_no_test_is_not_passed_over(tmp_path: Path, conftest: str) -> None:
    code, text = told(tmp_path, "-k", "whole or last", conftest=conftest)
    assert code == 2
    assert "a process ended with exit code 3 while it ran no test" in text
