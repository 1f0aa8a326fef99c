"""Every engine works in programs whose temporary folder has a long path, too long for a socket."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = """
import multiprocessing.util
import sys
import tempfile

import numpy as np

from feedline import Loader
from feedline.workers import abilities


class Rows:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return np.full(50_000, index)


if __name__ == "__main__":
    engine, method = sys.argv[1:]
    assert len(tempfile.gettempdir()) >= 150
    if engine == "portable":
        abilities.can_share_arenas = lambda: False
        engine = "process"
    options = {} if engine == "inline" else {"workers": 2}
    if method:
        options["start_method"] = method
    with Loader(Rows(), 2, engine=engine, **options) as loader:
        assert [int(batch[0, 0]) for batch in loader] == [0, 2, 4, 6]
    print(multiprocessing.util.get_temp_dir())
"""


def output_of(text: str, *arguments: str, folder: Path) -> str:
    """Run a program with a temporary folder whose path has 150 bytes; return what it prints."""
    program = folder / "program.py"
    program.write_text(text)
    long = folder / ("x" * (149 - len(os.fsencode(folder))))
    long.mkdir()
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "TMPDIR": str(long), "PYTHONPATH": path}
    command = [sys.executable, str(program), *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    assert os.listdir(long) == []
    return result.stdout.strip()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose own path leaves room for a long name in it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("engine", "method"),
    [
        *(
            pytest.param(engine, method, marks=pytest.mark.slow)
            for engine, method in [("process", "forkserver"), ("process", "spawn"), ("portable", "forkserver")]
        ),
        pytest.param("ray", "", marks=pytest.mark.ray),
    ],
)
def test_every_engine_with_a_long_temporary_folder(engine: str, method: str, short_path: Path) -> None:
    folder = Path(output_of(PROGRAM, engine, method, folder=short_path))
    assert not folder.exists(), "it is removed with the program"
