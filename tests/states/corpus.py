"""States saved by releases: where they are, and the recipes that made them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.states import data, pipes, samplers, streams, torch_loaders
from tests.states.recipe import Recipe

FOLDER = Path(__file__).parent
FAMILIES: dict[str, dict[str, Recipe]] = {
    "samplers": samplers.RECIPES,
    "streams": streams.RECIPES,
    "pipes": pipes.RECIPES,
    "torch": torch_loaders.RECIPES,
}
"""One file per family, in the folder of each version."""


def versions() -> list[str]:
    """Return the versions whose states are here."""
    return sorted(path.name for path in FOLDER.iterdir() if path.name[0].isdigit())


# Any: states and digests, by the names of recipes.
def read(version: str, family: str) -> dict[str, Any]:
    """Return the states of a family saved by a version."""
    found: dict[str, Any] = json.loads((FOLDER / version / f"{family}.json").read_text("utf-8"))
    return found


def missing(recipe: Recipe) -> str | None:
    """Return a package that a recipe needs and this environment lacks."""
    return next((name for name in recipe.needs if importlib.util.find_spec(name) is None), None)


@contextlib.contextmanager
def files() -> Iterator[None]:
    """Work in a folder that holds the files of the recipes."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        os.chdir(folder)
        try:
            data.write_files()
            data.write_tokens()
            for package, write in (("pyarrow", data.write_parquet), ("google_crc32c", data.write_records)):
                if importlib.util.find_spec(package) is not None:
                    write()
            yield
        finally:
            os.chdir(before)
