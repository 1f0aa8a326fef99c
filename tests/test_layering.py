"""The dependency ladder of CONTRIBUTING.md, read as data and checked against every import in the package."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "feedline"
FORBIDDEN = {"utils", "util", "common", "helpers", "misc"}


@dataclass(frozen=True)
class Part:
    """One row of the ladder."""

    name: str
    rung: int
    rungs: range
    """The rungs it may import."""
    names: frozenset[str]
    """Other parts it may import."""

    def may_import(self, other: Part) -> bool:
        return other.name == self.name or other.rung in self.rungs or other.name in self.names


@dataclass(frozen=True)
class Arrow:
    """One import of one part by another."""

    importer: str
    imported: str
    where: str


def read_ladder(text: str) -> dict[str, Part]:
    table = text.partition("<!-- ladder: begin -->")[2].partition("<!-- ladder: end -->")[0]
    parts = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4 or not cells[0].isdecimal():
            continue
        name = cells[1].strip("`").removesuffix("/").removesuffix(".py")
        first, last = re.match(r"(?:(\d+)(?:-(\d+))?)?", cells[3]).groups()  # type: ignore[union-attr]  # always matches
        rungs = range(int(first), int(last or first) + 1) if first else range(0)
        parts[name] = Part(name, int(cells[0]), rungs, frozenset(re.findall(r"`([\w/]+)`", cells[3])))
    return parts


def part_of(names: Sequence[str], parts: Container[str]) -> str:
    """Return the row of a module, given the names on its path: the longest matching one."""
    paths = ["/".join(names[:length]) for length in range(len(names), 0, -1)]
    return next((path for path in paths if path in parts), names[0])


def path_of(file: Path, package: Path) -> tuple[str, ...]:
    return file.relative_to(package).with_suffix("").parts


@functools.cache
def imported_modules(file: Path, package: Path) -> list[tuple[str, int]]:
    """Return (dotted name, line) for everything that a file imports from the package, anywhere in the file.

    `from feedline import x` is "feedline.x": x may be a module or a name of `__init__`; the caller decides.
    """
    root = package.name
    here = [root, *file.relative_to(package).with_suffix("").parts]
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [*here[: -node.level], *filter(None, [node.module])] if node.level else [node.module or ""]
            names = [".".join([*base, alias.name]) for alias in node.names]
        else:
            continue
        found += [(name, node.lineno) for name in names if name.partition(".")[0] == root]
    return found


def find_arrows(package: Path, parts: dict[str, Part]) -> list[Arrow]:
    arrows = []
    for file in sorted(package.rglob("*.py")):
        for module, line in imported_modules(file, package):
            imported = part_of(module.split(".")[1:] or ["__init__"], parts)
            where = f"{file.relative_to(package).as_posix()}:{line}"
            importer = part_of(path_of(file, package), parts)
            arrows.append(Arrow(importer, imported if imported in parts else "__init__", where))
    return arrows


def find_wrong_arrows(package: Path, parts: dict[str, Part]) -> list[str]:
    return [
        f"{arrow.where}: {arrow.importer} (rung {parts[arrow.importer].rung}) imports "
        f"{arrow.imported} (rung {parts[arrow.imported].rung})"
        for arrow in find_arrows(package, parts)
        if not parts[arrow.importer].may_import(parts[arrow.imported])
    ]


def module_graph(package: Path) -> dict[str, set[str]]:
    """Return which modules each module imports, anywhere in the file, also for types only.

    The package itself is left out: it re-exports everything, and code built on its public API imports it.
    """
    files = {}
    for file in package.rglob("*.py"):
        name = ".".join([package.name, *file.relative_to(package).with_suffix("").parts])
        files[name.removesuffix(".__init__")] = file
    graph: dict[str, set[str]] = {}
    for name, file in files.items():
        found = {module for module, _ in imported_modules(file, package)}
        # `from feedline.a import b`: the module b, or a name of the module a.
        graph[name] = {one if one in files else one.rpartition(".")[0] for one in found} & files.keys() - {
            name,
            package.name,
        }
    return graph


def find_circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the sets of several modules that import each other (Tarjan's algorithm)."""
    numbers: dict[str, int] = {}
    lows: dict[str, int] = {}
    path: list[str] = []
    circles: list[set[str]] = []

    def visit(module: str) -> None:
        numbers[module] = lows[module] = len(numbers)
        path.append(module)
        for other in sorted(graph[module]):
            if other not in numbers:
                visit(other)
            if other in path:
                lows[module] = min(lows[module], lows[other])
        if lows[module] == numbers[module]:
            circle = set(path[path.index(module) :])
            del path[path.index(module) :]
            if len(circle) > 1:
                circles.append(circle)

    for module in sorted(graph):
        if module not in numbers:
            visit(module)
    return circles


@pytest.fixture(scope="module")
def parts() -> dict[str, Part]:
    return read_ladder((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))


def test_every_file_and_folder_has_a_rung(parts: dict[str, Part]) -> None:
    present = {part_of(path_of(file, PACKAGE), parts) for file in PACKAGE.rglob("*.py")}
    assert present <= parts.keys(), f"no row in CONTRIBUTING.md for {sorted(present - parts.keys())}"


def test_imports_only_go_down(parts: dict[str, Part]) -> None:
    wrong = find_wrong_arrows(PACKAGE, parts)
    assert not wrong, "imports against the ladder of CONTRIBUTING.md:\n" + "\n".join(wrong)


def test_no_import_circles() -> None:
    circles = find_circles(module_graph(PACKAGE))
    assert not circles, "modules that import each other:\n" + "\n".join(map(str, map(sorted, circles)))


def test_no_module_has_a_name_like_utils() -> None:
    found = [path for path in PACKAGE.rglob("*") if path.stem in FORBIDDEN]
    assert not found, "these names say nothing; name the noun instead"


def test_folders_with_many_files_have_a_readme() -> None:
    folders = {file.parent for file in PACKAGE.rglob("*.py")} - {PACKAGE}
    large = [folder for folder in folders if sum(file.stem != "__init__" for file in folder.glob("*.py")) > 3]
    missing = sorted(folder.name for folder in large if not (folder / "README.md").exists())
    assert not missing, f"more than three files and no README.md: {missing}"


@pytest.mark.parametrize("readme", sorted(PACKAGE.rglob("README.md")), ids=lambda path: path.parent.name)
def test_readmes_have_a_row_for_every_file(readme: Path) -> None:
    files = {file.name for file in readme.parent.glob("*.py")} - {"__init__.py"}
    folders = {f"{file.parent.name}/" for file in readme.parent.glob("*/*.py")}
    rows = [line.split("|")[1] for line in readme.read_text().splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert files | folders <= named, f"without a row: {sorted((files | folders) - named)}"
    assert named <= files | folders | {"__init__.py"}, f"not there: {sorted(named - files - folders)}"


# The checker itself, on a made-up package.


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("faults/depth.py", "def f() -> None:\n    from feedline.loader import x", "imports loader (rung 8)"),
        ("faults/depth.py", "if TYPE_CHECKING:\n    from ..loader import x", "imports loader (rung 8)"),
        ("faults/depth.py", "from feedline import DataLoader", "imports __init__"),
        ("errors.py", "from .types import Task", "errors (rung 0) imports types (rung 2)"),
        ("delivery/machine/x.py", "from feedline.delivery.driver import y", "machine (rung 7) imports delivery/driver"),
        ("faults/depth.py", "from .other import x\nfrom feedline import types\nimport numpy", None),
        ("delivery/driver/x.py", "from feedline.delivery.machine import y", None),
    ],
)
def test_wrong_imports_are_found(
    tmp_path: Path, parts: dict[str, Part], file: str, source: str, complaint: str | None
) -> None:
    path = tmp_path / "feedline" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    wrong = find_wrong_arrows(tmp_path / "feedline", parts)
    assert len(wrong) == (complaint is not None)
    assert all(str(complaint) in each for each in wrong)


def test_an_import_circle_is_found(tmp_path: Path) -> None:
    package = tmp_path / "feedline"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "a.py").write_text("def f() -> None:\n    from feedline.b import y")
    (package / "b.py").write_text("from .a import x")
    assert find_circles(module_graph(package)) == [{"feedline.a", "feedline.b"}]
