"""States of a newer feedline are reported as newer, whichever part of them is."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from feedline.errors import BadState
from tests.states import corpus
from tests.states.corpus import FAMILIES

# Any, throughout: states and places in them.
PLACES: dict[str, tuple[str, str, tuple[Any, ...]]] = {
    "a loader": ("samplers", "shuffle", ()),
    "a loader of one rank": ("streams", "tar, three ranks then two", ("ranks", 1)),
    "the faults": ("samplers", "skipped samples", ("faults",)),
    "tar": ("streams", "tar", ("streams", 0, "iterator")),
    "tar, of one rank": ("streams", "tar, three ranks then two", ("ranks", 1, "streams", 0, "iterator")),
    "tar, in a thread": ("streams", "tar, two workers", ("streams", 0, "iterator")),
    "parquet": ("streams", "parquet", ("streams", 0, "iterator")),
    "lines": ("streams", "lines", ("streams", 0, "iterator")),
    "rows of a query": ("streams", "rows of a query", ("streams", 0, "iterator")),
    "records": ("streams", "records", ("streams", 0, "iterator")),
    "messages": ("streams", "messages", ("streams", 0, "iterator")),
    "lines inside a pipe": (
        "streams",
        "tokenized lines",
        ("streams", 0, "iterator", "position", "source", "source", "iterator"),
    ),
    "tar inside a mixture": (
        "streams",
        "mixture of shards, two workers",
        ("streams", 0, "iterator", "position", "source", "sources", 0, "source", "iterator"),
    ),
    "a pipe": ("pipes", "window_shuffle", ("streams", 0, "iterator")),
    "tar inside a pipe": ("pipes", "tar", ("streams", 0, "iterator", "position", "source", "source", "iterator")),
}


@pytest.fixture(scope="module", autouse=True)
def files() -> Iterator[None]:
    with corpus.files():
        yield


@pytest.mark.parametrize("name", PLACES)
def test_a_newer_format_is_reported_wherever_it_is(name: str) -> None:
    family, recipe_name, path = PLACES[name]
    recipe = FAMILIES[family][recipe_name]
    if package := corpus.missing(recipe):
        pytest.skip(f"needs {package}")
    state = copy.deepcopy(corpus.read(corpus.versions()[-1], family)[recipe_name]["state"])
    part = state
    for key in path:
        part = part[key]
    part["feedline"] = found = part.get("feedline", 1) + 1
    with pytest.raises(BadState, match=rf"has format {found}, and this .* feedline( \S+)? saved it\. U"):
        recipe.resume(state)


@pytest.mark.parametrize("found", [0, -1, "2", None, True, 1.0])
def test_an_invalid_format_is_not_reported_as_newer(found: Any) -> None:
    state = copy.deepcopy(corpus.read(corpus.versions()[-1], "pipes")["filter"]["state"])
    state["streams"][0]["iterator"]["feedline"] = found
    with pytest.raises(BadState, match="no release of feedline has saved"):
        FAMILIES["pipes"]["filter"].resume(state)
