"""Definitions of an interactive session reach workers that are not forked; otherwise one error explains why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SESSION = """
import dataclasses, sys
import numpy as np
from feedline import Loader
from feedline.workers import abilities
scale = 10
class Trouble(Exception): pass

@dataclasses.dataclass
class Batch:
    values: object

class Numbers:
    def __len__(self): return 8
    def __getitem__(self, index): return self.times(index)
    def times(self, index): return np.full(3, index * scale + offset)

class Failing(Numbers):
    def __getitem__(self, index): raise Trouble(index)

def init(number):
    global offset  # used by the methods of another class
    offset = 1

def collate(samples): return Batch(np.stack(samples))

def batches(dataset): return [type(b) is Batch and b.values.sum().item() for b in Loader(dataset, 4, workers=2, \
start_method="METHOD", collate_fn=collate, worker_init=init)]

PREPARATION
print("batches:", batches(Numbers()))

try: batches(Failing())
except Trouble as exc: print("raised:", exc.args)

"""


def run(text: str, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], input=text, cwd=cwd, capture_output=True, text=True, timeout=100
    )


def session(method: str, preparation: str = "") -> str:
    return SESSION.replace("METHOD", method).replace("PREPARATION", preparation)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "method"),
    [("prompt", "forkserver"), ("pipe", "spawn"), ("command", "forkserver"), ("portable", "spawn")],
)
def test_classes_and_functions_are_sent_by_value(how: str, method: str, tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    text = session(method, "abilities.can_share_arenas = lambda: False" if how == "portable" else "")
    arguments = {"prompt": ["-i"], "command": ["-c", text]}.get(how, [])
    result = run("" if how == "command" else text, *arguments, cwd=tmp_path)
    assert "batches: [192, 672]" in result.stdout, result.stderr
    assert "raised: (0,)" in result.stdout, result.stderr
    assert "Traceback" not in result.stderr


WITHOUT = "sys.modules['cloudpickle'] = None"


@pytest.mark.slow
@pytest.mark.parametrize("preparation", ["", "abilities.can_share_arenas = lambda: False"])
def test_without_cloudpickle_one_error_says_what_to_do(preparation: str, tmp_path: Path) -> None:
    result = run(session("forkserver", f"{WITHOUT}; {preparation}"), cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.count("Traceback") == 1, result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("feedline.errors.NotPicklable: The class Numbers is defined in an interactive session")
    for way in ("a module", 'multiprocessing_context="fork"', 'engine="thread"', "feedline[notebook]"):
        assert way in last


PROGRAM = """
import sys
import numpy as np
from feedline import Loader
"""


UNGUARDED = """
for batch in Loader(list(np.arange(8)), 4, workers=2, start_method="forkserver"):
    print(batch)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "preparation", ["", "from feedline.workers import abilities\nabilities.can_share_arenas = bool"]
)
def test_a_missing_main_guard_is_reported_once(preparation: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{PROGRAM}{preparation}\n{UNGUARDED}")
    result = run("", "train.py", cwd=tmp_path)
    assert result.returncode == 1
    assert not result.stdout
    assert result.stderr.count("Traceback") == 1, result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith(
        "feedline.errors.WorkerStartError: The main program starts workers while it is being imported"
    )
    assert '`if __name__ == "__main__":`' in last
    assert "WorkerWarning" not in result.stderr
