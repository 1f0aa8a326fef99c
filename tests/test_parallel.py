"""Each test runs once and is reported once, even if the process of its file dies."""

import re
from pathlib import Path

from tests import program_server

PROGRAM = """
import sys, pytest
from tests import parallel

class Plugin:
    def pytest_collection(self, session):
        return None if hasattr(session.config, "workerinput") else True

    def pytest_runtestloop(self, session):
        parallel.run(session, 2)
        return True

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


def run_pytest(folder: Path, *options: str, conftest: str = "") -> tuple[int, str]:
    (folder / "conftest.py").write_text(conftest)  # pytest searches all plugins for hooks of a folder
    for name in "abc":
        (folder / f"test_{name}.py").write_text(FILE)
    done = program_server.run(PROGRAM, folder, *options)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_each_test_runs_once_and_a_dying_process_fails_only_its_test(tmp_path: Path) -> None:
    code, text = run_pytest(tmp_path)
    assert code == 1
    ran = sorted(re.findall(r"^(PASSED|FAILED) \S*test_(\w).py::test_(\w+)", text, re.M), key=lambda row: row[1:])
    names = ["failing", "killed", "the_last", "whole"]
    failed = {("b", "killed"), ("c", "failing")}
    assert ran == [("FAILED" if (file, name) in failed else "PASSED", file, name) for file in "abc" for name in names]
    assert "the process of this test ended with exit code -9" in text
    assert text.count("written by test_a\n") == 1, "the report of a test contains its output"
    assert "2 failed, 10 passed" in text


def test_a_process_that_dies_between_tests_is_an_error(tmp_path: Path) -> None:
    dying = "import os\ndef pytest_collection_modifyitems(): os._exit(3)"
    code, text = run_pytest(tmp_path, "-k", "whole or last", conftest=dying)
    assert code == 2
    assert "a process ended with exit code 3 while it ran no test" in text
