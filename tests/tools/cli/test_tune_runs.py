"""`feedline tune --script` runs programs and tries settings on their loaders."""

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


def run_tune(
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
    done = run_tune(tmp_path, TRAINS, "--seconds", 8, "--json", words=("--epochs", "3"))
    assert (done.returncode, done.stderr) == (0, "")
    output = json.loads(done.stdout)  # contains nothing that the program printed
    assert output["tried"][0]["engine"] == "inline"
    assert "DataLoader(dataset, batch_size=5, num_workers=" in output["code"], "the loader that takes the most time"
    assert output["batch_bytes"] == 5 * 16 * 4


@pytest.mark.real_time
def test_workers_are_suggested_if_the_programs_steps_wait(tmp_path: Path) -> None:
    def check() -> None:
        output = json.loads(run_tune(tmp_path, TRAINS, "--seconds", 12, "--json").stdout)
        assert output["tried"][0]["stall"] > 0.1  # half of the time, unless other programs make the steps longer
        assert output["setting"]["workers"] >= 1

    try_again(check)


def test_only_loaders_of_the_named_dataset_are_tuned(tmp_path: Path) -> None:
    """Both datasets are read again and again, so that every setting sees enough batches."""
    program = """
again_and_again = [place % 20 for place in range(1000)]
for epoch in range(10_000):
    for batch in DataLoader(Sleeping(), batch_size=5):
        pass
    for batch in DataLoader(Ready(), batch_size=2, sampler=again_and_again):
        time.sleep(0.001)
"""
    done = run_tune(tmp_path, program, f"{OWN}:Ready", "--seconds", 6)
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
def test_programs_that_cannot_be_tuned_are_explained(
    tmp_path: Path, program: str, status: int, text: str, before: str
) -> None:
    # Only the program that hangs is waited for; the others end by themselves.
    done = run_tune(tmp_path, program, "--seconds", 2 if status == 6 else 60)
    assert (done.returncode, done.stdout) == (status, "")
    *more, last = done.stderr.splitlines()
    assert last.startswith("feedline: ")
    assert text in last
    assert before in "\n".join(more)


def test_a_program_is_measured_although_few_batches_fit_into_the_time_for_a_setting(tmp_path: Path) -> None:
    program = """
    class Slow(Ready):
        def __getitem__(self, index):
            time.sleep(0.15)
            return index
    while True:
        list(DataLoader(Slow()))
    """
    done = run_tune(tmp_path, program, "--seconds", 6, "--json")
    assert json.loads(done.stdout)["tried"][0]["engine"] == "inline", done.stderr


@pytest.mark.slow
def test_settings_that_make_the_program_fail_are_skipped(tmp_path: Path) -> None:
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
    done = run_tune(tmp_path, program, "--seconds", 8, "--json")
    assert done.returncode == 0, done.stderr
    assert {one["engine"] for one in json.loads(done.stdout)["tried"]} <= {"inline", "thread"}
    assert re.search(r"Skipped 1 worker \(process\): The program failed", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--script", "nowhere.py"], "There is no file nowhere.py"),
        (["--script"], "There is nothing to tune"),
        ([], "There is nothing to tune"),
        (["train.py"], "There is no file or folder 'train.py'"),
        ([OWN], f"write --script {OWN}"),
        (["--step-ms", 5, "--script", "train.py"], "Leave out --step-ms"),
        (["--script", "-m", "no_such_module"], "There is no module no_such_module"),
    ],
)
def test_wrong_arguments_are_explained(arguments: list[object], text: str) -> None:
    done = program_server.run(PROGRAM, "tune", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert text in done.stderr
