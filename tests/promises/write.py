"""Writes the list of everything public: `python -m tests.promises.write`. A test compares it with the code."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.promises import api, commands, formats

FOLDER = Path(__file__).parent
LISTS = ("api", "commands", "formats")


def current(name: str) -> tuple[list[str], list[str]]:
    """Return the current list, and the prefixes of lines that this environment cannot determine."""
    if name == "commands":
        return commands.lines(), []
    if name == "api":
        return api.lines()
    with tempfile.TemporaryDirectory() as folder:
        return formats.lines(Path(folder))


def main() -> None:
    """Write all lists."""
    for name in LISTS:
        found, lacking = current(name)
        if lacking:
            raise SystemExit(
                f"Install the packages that {', '.join(lacking)} need, or they would vanish from the list."
            )
        (FOLDER / f"{name}.txt").write_text("\n".join(found) + "\n", "utf-8")


if __name__ == "__main__":
    main()
