"""The public interface matches the lists in this folder."""

from __future__ import annotations

import difflib

import pytest

from tests.promises import write


@pytest.mark.parametrize("name", write.LISTS)
def test_the_lists_match_the_code(name: str) -> None:
    listed = (write.FOLDER / f"{name}.txt").read_text("utf-8").splitlines()
    found, lacking = write.current(name)
    known = [line for line in listed if not line.startswith(tuple(lacking))]
    changes = [line for line in difflib.ndiff(known, found) if line[0] in "+-"]
    assert not changes, advice(name, changes)


def advice(name: str, changes: list[str]) -> str:
    """Return the difference, and what to do about it."""
    return "\n".join([
        f"What is public differs from tests/promises/{name}.txt (+ new, - gone):",
        *changes,
        "Only new lines: run python -m tests.promises.write, and commit the list with the change.",
        "A line is gone or has changed: users rely on it. Keep it, and deprecate it first (docs/stability.md).",
        "If it was never released, or the change is compatible (a new option, a wider type), run the same command.",
    ])  # fmt: skip
