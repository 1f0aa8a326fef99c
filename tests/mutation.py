"""Checks the tests with small mistakes: `python -m tests.mutation --count 100 --seed 1`.

Each mutant is a copy of the checkout with one mistake in `src`: a comparison that is turned round, a statement that is
left out, or a number that is off by one. The seed draws the same mutants as long as `src` is the same. The fast tests
of the mutant's folder run first, then those of the folders that use it, until one fails: then the mutant is killed. A
mutant that makes the tests hang is killed, too.

Prints one line per mutant, and how many were killed. Equivalent mutants, which change nothing that a program can see,
survive any test: compare two versions of the tests by their counts.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/feedline"
CORE = (
    "abc",
    "collate",
    "delivery",
    "faults",
    "insight",
    "loader",
    "memory",
    "order",
    "randomness",
    "samplers",
    "types",
    "workers",
)
USERS_OF_CORE = (
    "loader",
    "delivery",
    "workers",
    "order",
    "faults",
    "states",
    "memory",
    "parity",
    "simulation",
    "insight",
    "frameworks",
)
USERS_OF_SOURCES = ("datasets", "sources", "pipes")
LIMIT_S = 600
"""A mutant whose tests take longer is taken for a hang."""
PYTEST = [
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-m",
    "not slow and not ray and not gpu",
    "-o",
    "timeout=120",
    "--processes",
    "2",
]
OPPOSITES = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A mistake in one place of one file."""

    file: str
    line: int
    before: str
    after: str
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before!r:.50} -> {self.after!r:.50}"

    def applied(self, source: str) -> str:
        """Return the text of the file with the mistake in it."""
        lines = source.encode().splitlines(keepends=True)
        head = b"".join(lines[: self.line - 1]) + lines[self.line - 1][: self.column]
        tail = lines[self.end_line - 1][self.end_column :] + b"".join(lines[self.end_line :])
        return (head + self.after.encode() + tail).decode()


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield every mistake that could be made in a file."""
    source = path.read_text()
    name = str(path.relative_to(ROOT))
    for node in ast.walk(ast.parse(source)):
        after = _mistake(node)
        if after is None or not isinstance(node, (ast.expr, ast.stmt)):
            continue
        before = ast.get_source_segment(source, node) or ""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        yield Mutant(name, node.lineno, before, after, node.col_offset, node.end_lineno, node.end_col_offset)


def _mistake(node: ast.AST) -> str | None:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPPOSITES:
        node.ops[0] = OPPOSITES[type(node.ops[0])]()
        return f"({ast.unparse(node)})"
    if isinstance(node, (ast.AugAssign, ast.Raise)) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        return "pass"
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return str(node.value + 1)
    return None


def drawn(count: int, seed: int) -> list[Mutant]:
    """Draw mutants, half of them from the core and half from the sources."""
    generator = random.Random(seed)
    folders = [[PACKAGE / name for name in CORE], [PACKAGE / "datasets"]]
    result = []
    for half in folders:
        files = sorted(file for folder in half for file in folder.rglob("*.py"))
        every = [mutant for file in files for mutant in mutants_of(file)]
        result += generator.sample(every, count // 2)
    return result


def tests_of(mutant: Mutant) -> list[str]:
    """Return the tests to run, those that are most likely to fail first."""
    inner = Path(mutant.file).relative_to("src/feedline")
    folder = inner.parts[0]
    users = USERS_OF_SOURCES if folder == "datasets" else USERS_OF_CORE
    own = [
        Path("tests", *inner.parts[:-1], f"test_{inner.name}"),
        Path("tests", *inner.parts[:-1]),
        Path("tests", folder),
    ]
    wanted = [*own, *(Path("tests", name) for name in users)]
    return list(dict.fromkeys(str(path) for path in wanted if (ROOT / path).exists()))


def failing_now(folders: set[str], jobs: int) -> list[str]:
    """Return the tests that fail without any mistake, because this machine lacks what they need."""
    command = [*PYTEST, "--tb=no", "--processes", str(jobs), *sorted(folders)]
    output = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
    return [line.split()[1] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]


def is_killed(mutant: Mutant, left_out: list[str]) -> bool:
    """Run the tests on a copy of the checkout with the mistake in it."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder, "checkout")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "site", "build", "__pycache__"), symlinks=True)
        file = copy / mutant.file
        file.write_text(mutant.applied(file.read_text()))
        environment = {
            **os.environ,
            "PYTHONPATH": f"{copy / 'src'}:{os.environ.get('PYTHONPATH', '')}",
            "TMPDIR": folder,
        }
        options = ["-x", *(part for test in left_out for part in ("--deselect", test))]
        for tests in tests_of(mutant):
            process = subprocess.Popen(
                [*PYTEST, *options, tests],
                cwd=copy,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                code = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                return True
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if code not in (0, 5):  # 5: no test is selected
                return True
    return False


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--list", action="store_true", help="show the mutants, and run nothing")
    parser.add_argument(
        "--out", type=Path, help="append a JSON line per mutant to this file; those in it are not run again"
    )
    arguments = parser.parse_args()
    mutants = drawn(arguments.count, arguments.seed)
    if arguments.list:
        for mutant in mutants:
            say(str(mutant))
        return
    known: dict[Mutant, bool] = {}
    if arguments.out is not None and arguments.out.exists():
        for row in map(json.loads, arguments.out.read_text().splitlines()):
            killed = row.pop("killed")
            known[Mutant(**row)] = killed

    folders = {str(Path(*Path(tests).parts[:2])) for mutant in mutants for tests in tests_of(mutant)}
    left_out = failing_now(folders, arguments.jobs)
    say(f"{len(left_out)} tests fail without any mistake, and are left out")

    def tried(mutant: Mutant) -> bool:
        killed = is_killed(mutant, left_out)
        if arguments.out is not None:
            with arguments.out.open("a") as file:
                file.write(json.dumps({**asdict(mutant), "killed": killed}) + "\n")
        say(f"{'killed  ' if killed else 'SURVIVED'} {mutant}")
        return killed

    with ThreadPoolExecutor(arguments.jobs) as pool:
        killed = sum(known.values()) + sum(pool.map(tried, [one for one in mutants if one not in known]))
    say(f"{killed} of {len(mutants)} mutants killed")


if __name__ == "__main__":
    main()
