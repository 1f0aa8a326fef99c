"""`feedline profile`: programs end as they would without it, and it reports what their training waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedline.insight.recording import Recording
from feedline.loader.iteration import watchers
from feedline.tools.cli.main import main
from tests import program_server

PROGRAM = """
import os, signal, sys, weakref
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __init__(self, count, work):
        self.count, self.work = count, work
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        self.made = sum(range(self.work))
        return index * index

def validate():
    for batch in DataLoader(Squares(8, 0), batch_size=4):
        pass

if __name__ == "__main__":
    words = sys.argv[1:]
    workers = 2 if "workers" in words else 0
    context = "spawn" if "spawn" in words else "fork"
    train = DataLoader(
        Squares(24, 100_000), batch_size=2, num_workers=workers, multiprocessing_context=context if workers else None
    )
    for epoch in range(2 if "nothing" not in words else 0):
        for number, batch in enumerate(train):
            if "stop" in words and number == 3:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                os.kill(os.getpid(), signal.SIGINT)
                signal.pause()
            if "fail" in words and number == 3:
                raise LookupError("on purpose")
        validate()
    if "drop" in words:
        dataset = weakref.ref(train.dataset)
        del train
        assert dataset() is None, "nothing keeps what the program drops"
    os.chdir("/")
    if "exit" in words:
        sys.exit(7)
"""
COMMAND = """
import sys
from feedline.tools.cli.main import main
from feedline.tools.advise import what_if
what_if.GRID_BATCHES = 20
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def run(*arguments: str, cwd: Path, first: str = "") -> tuple[int, str, str]:
    done = program_server.run(first + COMMAND, "profile", *arguments, cwd=cwd)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "words",
    [["workers"], *(pytest.param(words, marks=pytest.mark.slow) for words in (["workers", "spawn"], ["drop"]))],
    ids=" ".join,
)
def test_the_loader_that_was_waited_for_most_is_recorded(program: Path, words: list[str]) -> None:
    code, out, err = run(str(program), *words, cwd=program.parent)
    assert (code, err) == (0, "")
    recording = Recording.load(program.parent / "train-profile.json.gz")
    stats = recording.stats()
    assert (stats.total.batches, stats["batches"], stats.total.samples) == (24, 24, 48)
    assert stats["workers"] == (2 if "workers" in words else 0)
    assert stats.total.waits["fetch"] > 0
    lines = out.splitlines()
    assert stats.verdict in " ".join(lines)
    training, *validating = [line for line in lines if line.startswith("Squares, train.py:")]
    assert "24" in training.split()
    assert len(validating) == 2
    assert lines[-2:] == [str(program.parent / f"train-profile{end}") for end in (".json.gz", ".html")]
    assert "<title>feedline report" in (program.parent / "train-profile.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("word", "expected"),
    [("fail", 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in [("exit", 7), ("stop", 130)])],
)
def test_a_failing_program_keeps_its_exit_code_and_is_reported(program: Path, word: str, expected: int) -> None:
    code, out, err = run("-o", "run", "-m", "train", word, cwd=program.parent)
    assert code == expected
    assert str(program.parent / "run.html") in out
    batches = Recording.load(program.parent / "run.json.gz").stats().total.batches
    assert batches == (24 if word == "exit" else 4)
    assert ("LookupError: on purpose" in err) == (word == "fail")
    assert "feedline" not in err.partition("LookupError")[0].replace(str(program.parent), "")


@pytest.mark.parametrize(("words", "expected"), [(["nothing"], 4), (["nothing", "exit"], 7)])
def test_a_program_without_a_loader_is_an_error(program: Path, words: list[str], expected: int) -> None:
    code, out, err = run(str(program), *words, cwd=program.parent)
    assert (code, out) == (expected, "")
    assert ("without iterating over any DataLoader" in err) is (expected == 4)
    assert not list(program.parent.glob("*-profile*"))


def test_each_rank_writes_its_own_files(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, out, _ = run("-o", str(program.parent), str(program), cwd=program.parent)
    assert code == 0
    files = [str(program.parent / f"train-profile-rank1{end}") for end in (".json.gz", ".html")]
    assert out == f"rank 1: {' '.join(files)}\n"
    assert all(Path(file).exists() for file in files)


def test_the_output_folder_is_checked_before_the_program_runs(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "-o", f"{program}/run", str(program)]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert not watchers
