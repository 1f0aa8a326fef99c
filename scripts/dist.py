"""Build the wheel and the source archive of the last commit into dist/, twice, and compare: the bytes must be equal.

Run it as `make dist`. Only what is committed is built, so anybody who has the commit gets the same files. The wheel is
built from the source archive. The links of README.md are made absolute first, if pyproject.toml names the repository.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from scripts.contents import problems_of
from scripts.long_description import rewrite_readme, source_of

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "src/feedline/__init__.py"


def build(commit: str, out: Path) -> dict[str, bytes]:
    """Build a commit in a new folder; return the files by name."""
    epoch = _git("log", "-1", "--format=%ct", commit).strip()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "PYTHONHASHSEED": "random"}
    with tempfile.TemporaryDirectory(prefix="feedline-dist-") as folder:
        tree = Path(folder, "tree")
        export(commit, tree)
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


def export(commit: str, tree: Path) -> None:
    """Write the files of a commit into the new folder `tree`, with the README that the package index shows."""
    archive = tree.with_suffix(".tar")
    _git("archive", "--output", str(archive), commit)
    with tarfile.open(archive) as opened:
        opened.extractall(tree, filter="data")
    rewrite_readme(tree, f"v{version_of((tree / PACKAGE).read_text('utf-8'))}")


def differences(first: dict[str, bytes], second: dict[str, bytes]) -> list[str]:
    """Return the names of files that two builds do not have in common, or not with the same bytes."""
    return [name for name in sorted({*first, *second}) if first.get(name) != second.get(name)]


def version_of(source: str) -> str:
    """Return the version that the package names."""
    found = re.search(r'^__version__ = "(.+)"', source, re.MULTILINE)
    assert found is not None
    return found[1]


def main() -> int:
    """Build, check, and move the files to dist/; return the exit status."""
    tag, version = os.environ.get("TAG"), version_of((ROOT / PACKAGE).read_text("utf-8"))
    if tag and tag != f"v{version}":
        sys.stderr.write(f"The tag {tag} is not that of version {version}, which would be v{version}.\n")
        return 1
    if _git("status", "--porcelain", "--untracked-files=no"):
        sys.stderr.write("Changes that are not committed are left out.\n")
    commit = _git("rev-parse", "HEAD").strip()
    if source_of(_git("show", f"{commit}:pyproject.toml")) is None:
        sys.stderr.write("README.md keeps relative links: pyproject.toml names no Source in [project.urls].\n")
    with tempfile.TemporaryDirectory(prefix="feedline-dist-") as one, tempfile.TemporaryDirectory() as two:
        made = build(commit, Path(one))
        if differs := differences(made, build(commit, Path(two))):
            sys.stderr.write(f"Two builds of {commit} differ: {', '.join(differs)}.\n")
            return 1
        problems = [f"{name}: {problem}" for name in made for problem in problems_of(Path(one, name), ROOT)]
        sys.stderr.writelines(f"{problem}\n" for problem in problems)
        files = [str(Path(one, name)) for name in made]
        checked = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=False)
        if problems or checked.returncode:
            return 1
        shutil.rmtree(ROOT / "dist", ignore_errors=True)
        (ROOT / "dist").mkdir()
        for file in files:
            shutil.copy(file, ROOT / "dist")
    sys.stdout.writelines(f"dist/{name}  {len(content):,} bytes, the same twice\n" for name, content in made.items())
    return 0


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
