"""The fork server imports what workers need, and the program does not depend on it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch  # noqa: F401  (importing it opens files for good, which would look like leaks of a test)

import feedline
from feedline.workers import forkserver


def test_modules_that_a_package_imports_lazily_are_found(tmp_path: Path) -> None:
    """`from feedline import DataLoader` imports feedline.loader.torch, which the program's source does not say."""
    main = ModuleType("__main__")
    main.__file__ = str(tmp_path / "train.py")
    Path(main.__file__).write_text("from feedline import DataLoader\n")
    vars(main)["DataLoader"] = feedline.DataLoader
    assert {"feedline", "feedline.loader.torch"} <= set(forkserver._imports_of(main))


DATA = """
import os
import sys

IMPORTED_BY = os.getpid()

class Look:
    '''What a worker finds; the modules of a transform and of a dataset inside of another one as well.'''
    def __len__(self):
        return 2
    def __getitem__(self, index):
        import transform, broken
        return {
            "parent": os.getppid(), "imported_by": [IMPORTED_BY, transform.IMPORTED_BY], "broken": broken.IMPORTED_BY,
            "worker": os.getpid(), "path": list(sys.path), "cwd": os.getcwd(), "environ": sorted(os.environ),
        }
"""

BROKEN = """
import multiprocessing, os, sys
IMPORTED_BY = os.getpid()
is_worker = getattr(multiprocessing.current_process(), "_inheriting", False)
if not is_worker and not hasattr(sys.modules["__main__"], "here"):
    sys.exit("in the server")
"""

TRAIN = """
import json, os, signal, sys
here = True
from multiprocessing import forkserver
import broken
from data import Look
from transform import double
from feedline import Loader

def look(loader):
    for found in loader:
        print(json.dumps(found), flush=True)

if __name__ == "__main__":
    os.environ["ONLY_IN_THE_PROGRAM"] = "1"
    sys.path.append("/added/by/the/program")
    loader = Loader(Look(), None, workers=1, start_method="forkserver", restarts=0)
    look(loader)
    server = forkserver._forkserver._forkserver_pid
    os.kill(server, signal.SIGKILL)
    os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    look(loader)
    print(json.dumps({"path": sys.path, "cwd": os.getcwd(), "environ": sorted(os.environ)}))
"""


@pytest.fixture
def found(tmp_path: Path) -> list[dict[str, Any]]:
    for name, text in {"train": TRAIN, "data": DATA, "broken": BROKEN}.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    (tmp_path / "transform.py").write_text("import os\nIMPORTED_BY = os.getpid()\ndef double(x):\n    return 2 * x\n")
    # Not run from the folder of the program, so the server must be told where its modules are.
    result = subprocess.run([sys.executable, tmp_path / "train.py"], capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("The fork server could not import broken (SystemExit: in the server)") == 2, (
        "one message per server"
    )
    assert len(result.stderr.splitlines()) == 2
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_server_imports_the_modules_of_the_program_and_of_the_dataset(found: list[dict[str, Any]]) -> None:
    *samples, program = found
    assert len(samples) == 4
    for sample in samples:
        assert sample["imported_by"] == [sample["parent"]] * 2
        assert sample["broken"] == sample["worker"], "the worker imports what the server could not"
        assert all(sample[name] == program[name] for name in ("path", "cwd"))
        assert sample["environ"] == program["environ"]
    servers = [sample["parent"] for sample in samples]
    assert servers[0] == servers[1] != servers[2] == servers[3], "a killed server is restarted"
    assert all(is_gone(server) for server in set(servers)), "servers end with the program"


def is_gone(pid: int) -> bool:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], 30)[0])
    finally:
        os.close(fd)


def run(folder: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(program)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, *options, str(folder / "train.py")]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environ, cwd=folder)
