"""A script with torch's loader, and the same script with one line changed."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

import feedline
from tests.textbook.observer import Facts, observed

SCRIPTS = Path(__file__).parent / "scripts"
TORCHS = "from torch.utils.data import DataLoader\n"
OURS = "from feedline import DataLoader\n"
WORKERS = "num_workers = 2\n"

feedline.DataLoader([0], num_workers=1)  # imports what every script would otherwise import itself


# Any: pytest has no public name for what `pytest.param` returns.
def cases(slow: Collection[str] = ()) -> list[Any]:
    """Return the scripts for `pytest.mark.parametrize`: the file, and its number of workers.

    Those in `slow`, such as "infinite-2", start too many processes for `make test`, or torch ends their workers too
    slowly.
    """
    found = []
    for script in sorted(SCRIPTS.glob("*/*.py")):
        for workers in (0, 2) if WORKERS in script.read_text() else (None,):
            name = script.stem if workers is None else f"{script.stem}-{workers}"
            marks = [pytest.mark.slow] if name in slow else []
            found.append(pytest.param(script, workers, id=name, marks=marks))
    return found


def compare(script: Path, workers: int | None, folder: Path) -> Facts:
    """Run a script with torch's loader and with feedline's; everything it does must be the same."""
    text = script.read_text()
    assert text.count(TORCHS) == 1, f"{script} has to import the loader by the line {TORCHS!r}"
    if workers is not None:
        text = text.replace(WORKERS, WORKERS.replace("2", str(workers)))
    sides = {}
    for side, line in {"torch": TORCHS, "feedline": OURS}.items():
        written = folder / f"{script.stem}_{side}.py"
        written.write_text(text.replace(TORCHS, line))
        sides[side] = observed(written, folder / side)
    for kind, expected in sides["torch"].items():
        assert sides["feedline"][kind] == expected, f"{kind} differ"
    assert sides["torch"]["printed"], f"{script} prints nothing that could be compared"
    return sides["torch"]
