"""Programs that are run with settings tried on their loaders."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests import program_server
from tests.tries import try_again

PROGRAM = "import sys; from feedline.tools.cli.main import main; sys.exit(main())"
OWN = Path(__file__).parent / "own_datasets.py"
IMPORTS = f"""
import os, sys, threading, time
sys.path.insert(0, {str(OWN.parent)!r})
from torch.utils.data import DataLoader
from own_datasets import Ready, Sleeping
"""


def tuned(
    folder: Path, program: str, *options: object, words: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    path = folder / "train.py"
    path.write_text(IMPORTS + textwrap.dedent(program))
    return program_server.run(PROGRAM, "tune", *options, "--script", path, *words)


TRAINS = """
print("training", sys.argv[1:])
list(DataLoader(Ready(), batch_size=2))  # a look at the data before
again_and_again = [place % 20 for place in range(100_000)]
for batch in DataLoader(Sleeping(), batch_size=5, sampler=again_and_again, num_workers=1, persistent_workers=True):
    time.sleep(0.003)
"""


@pytest.mark.slow
def test_settings_are_tried_on_a_program(tmp_path: Path) -> None:
    done = tuned(tmp_path, TRAINS, "--seconds", 8, "--json", words=("--epochs", "3"))
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)  # and nothing that the program has printed
    assert told["tried"][0]["engine"] == "inline"
    assert "DataLoader(dataset, batch_size=5, num_workers=" in told["code"], "the loader that most time is spent with"
    assert told["batch_bytes"] == 5 * 16 * 4


@pytest.mark.real_time
def test_the_best_for_the_step_of_a_program(tmp_path: Path) -> None:
    def check() -> None:
        told = json.loads(tuned(tmp_path, TRAINS, "--seconds", 12, "--json").stdout)
        assert told["tried"][0]["stall"] > 0.1  # half of the time, unless other programs make the steps longer
        assert told["setting"]["workers"] >= 1

    try_again(check)


def test_only_loaders_of_the_dataset_that_is_named(tmp_path: Path) -> None:
    done = tuned(tmp_path, TRAINS, f"{OWN}:Ready", "--seconds", 6)
    assert done.returncode == 0, done.stderr
    assert "DataLoader(dataset, batch_size=2, num_workers=" in done.stdout
    assert "training waits" in done.stdout


@pytest.mark.parametrize(
    ("program", "status", "text", "before"),
    [
        ("raise ValueError('no such model')", 5, "failed with no workers (exit code 1)", "no such model"),
        ("list(DataLoader(Ready())); sys.exit(3)", 5, "failed with no workers (exit code 3)", ""),
        ("sys.exit('no such model')", 5, "failed with no workers (no such model)", ""),
        ("print('nothing to do')", 8, "before any loader in this process", "nothing to do"),
        ("list(DataLoader(Ready(), batch_size=10))", 8, "before any loader in this process", ""),
        ("threading.Event().wait()", 6, "The program did not finish", ""),
        ("os._exit(9)", 7, "The program ended its process with status 9", ""),
    ],
)
def test_programs_that_cannot_be_tuned(tmp_path: Path, program: str, status: int, text: str, before: str) -> None:
    # What hangs is waited for; the others end by themselves.
    done = tuned(tmp_path, program, "--seconds", 2 if status == 6 else 60)
    assert (done.returncode, done.stdout) == (status, "")
    *more, last = done.stderr.splitlines()
    assert last.startswith("feedline: ")
    assert text in last
    assert before in "\n".join(more)


@pytest.mark.slow
def test_settings_with_which_a_program_fails_are_left_out(tmp_path: Path) -> None:
    program = """
    class RaisingInWorkers(Ready):
        def __getitem__(self, index):
            if os.getpid() != main_pid:
                raise OSError("the file is locked")
            time.sleep(0.001)
            return index
    main_pid = os.getpid()
    while True:
        list(DataLoader(RaisingInWorkers(), batch_size=2))
    """
    done = tuned(tmp_path, program, "--seconds", 8, "--json")
    assert done.returncode == 0, done.stderr
    assert {one["engine"] for one in json.loads(done.stdout)["tried"]} <= {"inline", "thread"}
    assert re.search(r"Skipped 1 worker \(process\): The program failed", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--script", "nowhere.py"], "There is no file nowhere.py"),
        (["--script"], "There is nothing to tune"),
        ([], "There is nothing to tune"),
        (["train.py"], "write --script train.py"),
        (["--step-ms", 5, "--script", "train.py"], "Leave out --step-ms"),
        (["--script", "-m", "no_such_module"], "There is no module no_such_module"),
    ],
)
def test_what_was_asked_for_wrongly(arguments: list[object], text: str) -> None:
    done = program_server.run(PROGRAM, "tune", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert text in done.stderr
