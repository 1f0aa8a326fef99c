"""Install the wheel in dist/ into clean environments, one for each extra, and try each: `make dist-test`.

`EXTRAS="torch tar"` selects some; `none` is the wheel without extras. One after the other, in a temporary folder: an
environment is deleted before the next is made, and pip's cache saves the downloads.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SMOKE = ROOT / "scripts" / "smoke.py"
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
FOR_DEVELOPERS = {"dev", "docs", "frameworks", "release", "streaming"}
NOT_ALONE = {"gpu"}
"""Needs a torchvision that fits the installed torch, which no pin here knows."""


def extras_for_users() -> list[str]:
    """Return the extras that pyproject.toml has for users, in its order."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    part = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    return [name for name in re.findall(r"^(\w+) = \[", part, re.MULTILINE) if name not in FOR_DEVELOPERS]


def wheel() -> Path:
    """Return the wheel in dist/. Raises SystemExit: there is none, or more than one."""
    found = sorted((ROOT / "dist").glob("feedline-*.whl"))
    if len(found) != 1:
        raise SystemExit(f"There are {len(found)} wheels in dist/, and there should be one. Run make dist first.")
    return found[0]


def try_extra(extra: str, wheel: Path) -> str:
    """Try an extra, or `none`; return an empty text, or what went wrong."""
    with tempfile.TemporaryDirectory(prefix="feedline-dist-test-") as folder:
        home = Path(folder)
        venv.create(home / "venv", with_pip=True)
        python = home / "venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        named = str(wheel) if extra == "none" else f"{wheel}[{extra}]"
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", CONSTRAINTS, named]
        for command in (install, [python, "-m", "pip", "check"], _smoke(python, home, extra)):
            done = subprocess.run(list(map(str, command)), cwd=home, capture_output=True, text=True, check=False)
            if done.returncode:
                return (done.stdout + done.stderr).strip() or f"status {done.returncode}"
    return ""


def _smoke(python: Path, home: Path, extra: str) -> list[object]:
    copy = home / SMOKE.name  # away from the repository, so that nothing of it can be imported
    copy.write_bytes(SMOKE.read_bytes())
    return [python, "-W", "error::SyntaxWarning", copy, *([] if extra == "none" else [extra])]


def main() -> int:
    """Try the extras that are named, or all; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*", help="none, or names of extras (all of them)")
    names = parser.parse_args().extras or ["none", *(name for name in extras_for_users() if name not in NOT_ALONE)]
    built, failed = wheel(), 0
    for extra in names:
        began_s = time.monotonic()
        problem = try_extra(extra, built)
        failed += bool(problem)
        sys.stdout.write(f"{extra}: {'FAILED' if problem else 'works'} ({time.monotonic() - began_s:.0f} s)\n{problem}")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
