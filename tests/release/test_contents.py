from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from scripts.contents import NEEDED_BY_TESTS, problems_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "feedline"
INFO = "feedline-1.0.0.dist-info"


def whole_wheel() -> dict[str, bytes]:
    files = {
        f"feedline/{path.relative_to(PACKAGE).as_posix()}": path.read_bytes()
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and path.name != "README.md"
    }
    return {**files, f"{INFO}/METADATA": b"Name: feedline", f"{INFO}/licenses/LICENSE": b"Apache"}


def whole_source() -> dict[str, bytes]:
    return {
        **dict.fromkeys(NEEDED_BY_TESTS, b"x"),
        "src/feedline/__init__.py": b"",
        "tests/release/test_contents.py": b"",
    }


def problems(folder: Path, files: dict[str, bytes], name: str) -> list[str]:
    path = folder / name
    if name.endswith(".whl"):
        with zipfile.ZipFile(path, "w") as wheel:
            for file, content in files.items():
                wheel.writestr(file, content)
        return problems_of(path, ROOT)
    with tarfile.open(path, "w:gz") as archive:
        for file, content in files.items():
            member = tarfile.TarInfo(f"feedline-1.0.0/{file}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return problems_of(path, ROOT)


def test_the_current_repository_has_no_problems(tmp_path: Path) -> None:
    assert problems(tmp_path, whole_wheel(), "a.whl") == []
    assert problems(tmp_path, whole_source(), "a.tar.gz") == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tests/test_a.py": b""}, "outside of the package"),
        ({"feedline/tests/test_a.py": b""}, "is a test"),
        ({"feedline/__pycache__/a.cpython-311.pyc": b""}, "does not belong"),
        ({"feedline/py.typed": None}, "py.typed is missing"),
        ({f"{INFO}/licenses/LICENSE": None}, "LICENSE is missing"),
        ({"feedline/errors.py": None}, "feedline/errors.py is missing"),
        ({"feedline/copy.py": (PACKAGE / "errors.py").read_bytes()}, "is the same as feedline/"),
        ({"feedline/large.bin": bytes(5 << 20)}, "larger than"),
    ],
)
def test_problems_of_a_wheel_are_found(tmp_path: Path, change: dict[str, bytes | None], problem: str) -> None:
    files = {name: data for name, data in {**whole_wheel(), **change}.items() if data is not None}
    assert any(problem in one for one in problems(tmp_path, files, "a.whl"))


@pytest.mark.parametrize("name", ["pyproject.toml", "tests/conftest.py", "noxfile.py", ".github/workflows/test.yml"])
def test_files_that_tests_need_must_be_in_the_source_archive(tmp_path: Path, name: str) -> None:
    files = whole_source()
    del files[name]
    assert problems(tmp_path, files, "a.tar.gz") == [f"{name} is missing"]


def test_the_source_archive_must_not_contain_the_site_or_an_environment(tmp_path: Path) -> None:
    files = {**whole_source(), "site/index.html": b"", "src/.venv/bin/python": b"", "tests/site/test_a.py": b""}
    assert len(problems(tmp_path, files, "a.tar.gz")) == 2


def test_files_that_tests_need_exist() -> None:
    assert [name for name in NEEDED_BY_TESTS if not (ROOT / name).exists()] == []
