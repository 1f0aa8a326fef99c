"""`feedline run`: unchanged programs get feedline's loader, and end as they would without it."""

from pathlib import Path

import pytest

from feedline.tools.cli.main import main
from tests import program_server

PROGRAM = """
import sys
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self):
        return 10
    def __getitem__(self, index):
        if "--fail" in sys.argv:
            raise LookupError("no square")
        return index * index

if __name__ == "__main__":
    loader = DataLoader(Squares(), batch_size=4, num_workers=int(sys.argv[1]), multiprocessing_context=sys.argv[2])
    print(type(loader).__mro__[1].__module__, [batch.tolist() for batch in loader], sys.argv[3:], __name__)
    sys.exit(len(sys.argv) - 3)
"""
SQUARES = "[[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def run(*arguments: str, cwd: Path) -> tuple[int, str, str]:
    done = program_server.run(
        "from feedline.tools.cli.main import main\nimport sys\nsys.exit(main(sys.argv[1:]))", *arguments, cwd=cwd
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["train.py", "2", "fork", "a", "--help"], ["a", "--help"]),
        pytest.param(["train.py", "1", "spawn"], [], marks=pytest.mark.slow),
        (["-m", "train", "1", "fork"], []),
    ],
)
def test_an_unchanged_program_gets_feedlines_loader(program: Path, words: list[str], arguments: list[str]) -> None:
    code, out, err = run("run", *words, cwd=program.parent)
    assert (code, err) == (len(arguments), "")
    assert out == f"feedline.loader.torch {SQUARES} {arguments} __main__\n"


@pytest.mark.slow
@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_processes_that_the_program_starts_get_feedlines_loader(tmp_path: Path, start: str) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    code, out, err = run("run", str(tmp_path / "ranks.py"), start, cwd=tmp_path)
    assert (code, out, err) == (0, "feedline.loader.install feedline.loader.install 8\n", "")


RANKS = """
import multiprocessing, sys
from torch.utils.data import DataLoader

class Own(DataLoader):
    pass

def rank():
    loader = DataLoader(list(range(8)), 2)
    print(type(loader).__module__, Own.__mro__[1].__module__, sum(len(batch) for batch in loader))

if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[1]).Process(target=rank)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


def test_tracebacks_of_the_program_do_not_show_feedlines_frames(program: Path) -> None:
    code, _, err = run("run", str(program), "1", "fork", "--fail", cwd=program.parent)
    assert code == 1
    assert "LookupError: no square" in err
    last = err.rpartition("Traceback (most recent call last):\n")[2]
    assert last.strip().startswith(f'File "{program}"')
    assert "runpy" not in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "No program"),
        (["nowhere.py"], "no file nowhere.py"),
        (["-m", "no.where"], "no module no.where"),
        (["-m", "tests"], "a package without a module __main__"),
    ],
)
def test_a_missing_program_is_reported(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *words]) == 1
    assert message in capsys.readouterr().err
