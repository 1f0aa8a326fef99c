"""Say what is wrong with the contents of a wheel or a source archive."""

from __future__ import annotations

import hashlib
import posixpath
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

NEEDED_BY_TESTS = (
    ".github/workflows/test.yml", ".pre-commit-config.yaml", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md",
    "LICENSE", "Makefile", "README.md", "SECURITY.md", "benchmarks/README.md", "docs/index.md", "examples/audio.py",
    "mkdocs.yml", "noxfile.py", "pyproject.toml", "requirements/constraints.txt", "scripts/smoke.py",
    "tests/conftest.py",
)  # fmt: skip
"""A sample of what the tests read besides src/."""
_LARGEST = 4 << 20
_JUNK = re.compile(r"(^|/)(__pycache__|\.git|\.venv[^/]*|\.hypothesis|results)/|^site/|\.(py[co]|so|whl|env)$")
_SMALL = 64
"""Files of fewer bytes may be equal, such as the empty ones of packages."""


def problems_of(archive: Path, root: Path) -> list[str]:
    """Return what is wrong with an archive, compared with the repository in `root`; nothing if all is well."""
    files = read(archive)
    common = [f"{name} does not belong there" for name in files if _JUNK.search(name)]
    common += [f"{name} is larger than {_LARGEST:,} bytes" for name, data in files.items() if len(data) > _LARGEST]
    own = _wheel_problems(files, root) if archive.suffix == ".whl" else _source_problems(files)
    return [*common, *own]


def read(archive: Path) -> dict[str, bytes]:
    """Return the files of an archive by name; of a source archive without the folder that all of them are in."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
    with tarfile.open(archive) as opened:
        members = [member for member in opened if member.isfile()]
        contents = ((member.name.partition("/")[2], opened.extractfile(member)) for member in members)
        return {name: content.read() for name, content in contents if content is not None}


def _wheel_problems(files: dict[str, bytes], root: Path) -> Iterator[str]:
    for name in files:
        if not re.match(r"feedline/|feedline-[\w.]+\.dist-info/", name):
            yield f"{name} is outside of the package"
        if re.search(r"(^|/)(tests?|conftest\.py|test_\w+\.py)(/|$)", name):
            yield f"{name} is a test"
    package = root / "src" / "feedline"
    wanted = {
        f"feedline/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and path.name != "README.md"
    }
    yield from (f"{name} is missing" for name in sorted(wanted - files.keys()))
    if "feedline/py.typed" not in files:
        yield "feedline/py.typed is missing"
    if not any(re.search(r"\.dist-info/licenses/LICENSE$", name) for name in files):
        yield "LICENSE is missing"
    yield from _twice(files)


def _twice(files: dict[str, bytes]) -> Iterator[str]:
    seen: dict[str, str] = {}
    for name, data in files.items():
        if len(data) < _SMALL:
            continue
        first = seen.setdefault(hashlib.sha256(data).hexdigest(), name)
        if first != name:
            yield f"{name} is the same as {first}"


def _source_problems(files: dict[str, bytes]) -> Iterator[str]:
    yield from (f"{name} is missing" for name in NEEDED_BY_TESTS if name not in files)
    folders = {posixpath.dirname(name) for name in files}
    yield from (f"{name}/ is missing" for name in ("src/feedline", "tests/release") if name not in folders)
