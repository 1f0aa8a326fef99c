"""Debian's servers and browser, which some tests use: installed before the tests if missing and permitted.

    python -m tests.servers

Tests that need one are skipped if it could not be installed.
"""

import glob
import os
import shutil
import subprocess
import sys

PACKAGES = {
    "chromium": "/usr/bin/chromium",
    "postgresql": "/usr/lib/postgresql/*/bin/initdb",
    "redis-server": "/usr/bin/redis-server",
}
"""Packages, and a file that exists if they are installed."""
LONGEST_S = 240


def missing() -> list[str]:
    """Return the packages that are not installed."""
    return [package for package, pattern in PACKAGES.items() if not glob.glob(pattern)]


def main() -> int:
    packages = missing()
    if not packages:
        return 0
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        _say(f"{', '.join(packages)}: not installed, which takes root and apt-get. Tests that need them are skipped.")
        return 0
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", *packages]):
        try:
            done = subprocess.run(
                ["apt-get", *command], env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False
            )
        except subprocess.TimeoutExpired:
            _say(f"apt-get {' '.join(command)} took more than {LONGEST_S} s. Tests that need it are skipped.")
            return 0
        if done.returncode:
            _say(f"apt-get {' '.join(command)} failed: {done.stderr[-300:]}")
    return 0


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
