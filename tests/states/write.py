"""Writes the states of this version: `python -m tests.states.write`. Existing states are not overwritten."""

from __future__ import annotations

import json
import sys
from typing import Any

import feedline
from tests.states.corpus import FAMILIES, FOLDER, files, missing
from tests.states.recipe import Recipe, digest


# Any: an entry of a file.
def entry_of(recipe: Recipe) -> dict[str, Any]:
    """Save a state and resume from it."""
    state, follows = recipe.save()
    found = recipe.resume(state)
    if follows is not None and found != follows * recipe.ranks:
        raise AssertionError(f"The state does not resume exactly: {found} instead of {follows}.")
    return {"state": state, "next": found[0], "count": len(found), "digest": digest(found)}


def main() -> str | None:
    """Write a folder for this version; return what is wrong, if anything."""
    folder = FOLDER / feedline.__version__.rpartition(".")[0]
    if folder.exists():
        return f"{folder} exists. A release has saved these states, so they must stay as they are."
    recipes = [recipe for family in FAMILIES.values() for recipe in family.values()]
    if lacking := sorted({name for recipe in recipes if (name := missing(recipe))}):
        return f"Install {', '.join(lacking)} first: states of some recipes need them."
    written: dict[str, dict[str, Any]] = {}
    with files():
        for family, known in FAMILIES.items():
            written[family] = {}
            for name, recipe in known.items():
                try:
                    written[family][name] = entry_of(recipe)
                except Exception as exc:
                    exc.add_note(f"It was {family}, {name}.") if sys.version_info >= (3, 11) else None
                    raise
    folder.mkdir()
    for family, entries in written.items():
        lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items()]
        (folder / f"{family}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    return None


if __name__ == "__main__":
    sys.exit(main())
