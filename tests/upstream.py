"""Runs a framework's own tests with torch's loader and with feedline's: `make upstream CHECKOUT=../accelerate`.

CHECKOUT is a clone of Accelerate or Lightning, at the tag of the version that is installed. Each test file runs
unchanged, first by itself, then under `feedline run`. Whatever passes with torch's loader has to pass with feedline's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

_SUITES = {
    "src/accelerate": (".", "tests/test_data_loader.py", "tests/test_accelerator.py"),
    "src/lightning": (
        "tests",
        "tests_fabric/utilities/test_data.py",
        "tests_pytorch/utilities/test_data.py",
        "tests_pytorch/utilities/test_combined_loader.py",
        "tests_pytorch/loops/test_fetchers.py",
        "tests_pytorch/trainer/test_dataloaders.py",
        "tests_pytorch/trainer/connectors/test_data_connector.py",
    ),
}
"""For a folder that identifies the project: where its tests run, and the files of those that are about loaders."""

_TIMEOUT_S = 3600
_KINDS = ("failure", "error", "skipped")


def main() -> int:
    """Run the tests and report what differs; return the exit status: 1 if a test passes with torch's loader alone."""
    parser = argparse.ArgumentParser(prog="python -m tests.upstream", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a clone of Accelerate or Lightning")
    parser.add_argument("files", nargs="*", help="test files, instead of those that are about loaders")
    arguments = parser.parse_args()
    suite = next((suite for folder, suite in _SUITES.items() if (arguments.checkout / folder).is_dir()), None)
    if suite is None:
        parser.error(f"{arguments.checkout} has none of the folders {', '.join(_SUITES)}: it is no clone of either.")
    home = arguments.checkout / suite[0]
    lost = []
    for file in arguments.files or suite[1:]:
        torch, feedline = _outcomes(home, file, []), _outcomes(home, file, ["feedline", "run", "-m"])
        passed = [sum(outcome == "passed" for outcome in run.values()) for run in (torch, feedline)]
        _say(f"{file}: {passed[0]} pass with torch's loader, {passed[1]} with feedline's")
        if not passed[0]:
            raise SystemExit(f"{file} cannot be compared: is the clone at the tag of the version that is installed?")
        for name in sorted(torch.keys() | feedline.keys()):
            outcomes = torch.get(name, "not run"), feedline.get(name, "not run")
            if outcomes[0] != outcomes[1]:
                _say(f"  {name}: {outcomes[0]}, with feedline {outcomes[1]}")
                lost += [name] * (outcomes[0] == "passed")
    return min(len(lost), 1)


def _outcomes(home: Path, file: str, before: list[str]) -> dict[str, str]:
    """Return the outcome of each test of a file; `before`: the modules and options in front of pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command = [sys.executable, "-m", *before, "pytest", file, *options]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # leave the checkout as it is
        done = subprocess.run(
            command, cwd=home, env=environment, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
        if not report.is_file():
            raise SystemExit(f"{' '.join(command)} ran no tests:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        cases = ElementTree.parse(report).iter("testcase")
        return {f"{case.get('classname')}::{case.get('name')}": _outcome(case) for case in cases}


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _outcome(case: ElementTree.Element) -> str:
    return next((child.tag for child in case if child.tag in _KINDS), "passed")


if __name__ == "__main__":
    sys.exit(main())
