"""States saved by earlier releases resume as they did then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import feedline
from feedline.pipes import Pipe
from tests.states import corpus, pipes, samplers, write
from tests.states.corpus import FAMILIES
from tests.states.recipe import digest

SAVED = [
    # Recipes with workers or ranks have their numbers in the name.
    pytest.param(version, family, name, marks=pytest.mark.slow if {"two", "three"} & set(name.split()) else ())
    for version in corpus.versions()
    for family in FAMILIES
    for name in corpus.read(version, family)
]


@pytest.fixture(scope="module", autouse=True)
def files() -> Iterator[None]:
    with corpus.files():
        yield


@pytest.mark.parametrize(("version", "family", "name"), SAVED)
def test_a_saved_state_resumes_with_the_same_batches(version: str, family: str, name: str) -> None:
    recipe, entry = FAMILIES[family][name], corpus.read(version, family)[name]
    if package := corpus.missing(recipe):
        pytest.skip(f"needs {package}")
    found = recipe.resume(entry["state"])
    advice = (
        f"A state that feedline {version} saved goes on in another way. Users have such states in their checkpoints: "
        "read them as before, or raise BadState in the next major version (docs/stability.md)."
    )
    assert found[0] == entry["next"], advice
    assert (len(found), digest(found)) == (entry["count"], entry["digest"]), advice


def test_there_are_states_of_this_version() -> None:
    assert feedline.__version__.rpartition(".")[0] in corpus.versions(), "run python -m tests.states.write"


def test_every_sampler_and_every_operator_has_a_recipe() -> None:
    assert set(feedline.samplers.__all__) - {"attention_cost"} <= samplers.SAMPLERS.keys()
    others = {"cache", "describe", "show", "set_epoch", "set_weights"}
    operators = {name for name in vars(Pipe) if not name.startswith("_")} - others
    assert operators <= pipes.PIPES.keys()


def test_released_states_are_never_overwritten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(write, "FOLDER", tmp_path)
    (tmp_path / feedline.__version__.rpartition(".")[0]).mkdir()
    assert "must stay as they are" in str(write.main())
    assert [path.name for path in tmp_path.rglob("*.json")] == []
