"""The figures, pictures and sentences of every view."""

import ast
import builtins
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import feedline
from feedline.datasets.derived.objects import open_object
from feedline.tools.lab.server import Run
from feedline.tools.lab.views import VIEWS
from feedline.tools.lab.views.your_dataset import code_of
from feedline.tools.measure.target import target_of

BY_NAME = {view.name: view for view in VIEWS}
INLINE = ("batching", "samplers", "collate", *(() if torch.cuda.is_available() else ("transfer",)))
"""Views that start no process; without a GPU, a recorded transfer is shown."""
USERS = {"dataset", "dataset_of_arrays", "labels", "lengths", "paths", "rank", "MyDataset"} | {
    "train_step",
    "as_list",
    "open_slowly",
}
"""Names in copied code that stand for the user's own objects."""
Events = list[dict[str, Any]]


def events_of(name: str, **given: object) -> Events:
    """Run a view; check what every view promises, and return its events as the page gets them."""
    view = BY_NAME[name]
    values = view.read(given)
    events: Events = list(filter(None, Run(view, values).events())) if name not in INLINE else list(view.draw(**values))
    assert not [event for event in events if event["kind"] == "error"]
    if name not in INLINE:  # it says at once what it is doing
        assert next(event["kind"] for event in events if event["kind"] not in ("say", "code")) == "doing"
    for event in events:
        if event["kind"] == "code":
            check_names(event["text"])
    sentences = [event["text"] for event in events if event["kind"] == "say"]
    assert sentences
    for text in sentences:
        assert text.endswith(".")
        assert ". " not in text
        assert len(text.split()) <= 14, text
    drawn = [event for event in events if event["kind"] == "cells"]
    explained = {shade for event in drawn for _, shade in event["legend"]}
    assert {shade for event in drawn for _, boxes in event["rows"] for _, shade in boxes} <= explained
    as_page_gets: Events = json.loads(json.dumps(events, allow_nan=False))
    return as_page_gets


def check_names(code: str) -> None:
    """Fail if code imports a name that it does not use, or uses one that it does not define."""
    nodes = list(ast.walk(ast.parse(code)))
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in nodes
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    names = [node for node in nodes if isinstance(node, ast.Name)]
    used = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    assert imported <= used, f"{imported - used} imported but not used:\n{code}"
    unknown = used - imported - stored - set(dir(builtins)) - USERS
    assert not unknown, f"{unknown} not imported:\n{code}"


def figures_of(events: Events) -> dict[str, Any]:
    values: dict[str, Any] = [event for event in events if event["kind"] == "figures"][-1]["values"]
    return values


def picture(events: Events, name: str) -> dict[str, Any]:
    return [event for event in events if event.get("name") == name][-1]


def indices(event: dict[str, Any]) -> list[list[int]]:
    return [[int(text) for text, _ in boxes] for _, boxes in event["rows"]]


def test_views_have_unique_names_short_notices_and_something_to_look_for() -> None:
    assert len(BY_NAME) == len(VIEWS) == 10
    for view in VIEWS:
        assert len(view.notice) <= 90, view.name
        assert view.more


@pytest.mark.parametrize("name", INLINE)
def test_every_preset_shows_a_picture(name: str) -> None:
    for preset in BY_NAME[name].presets:
        assert {event["kind"] for event in events_of(name, **preset)} & {"cells", "lines", "bars", "table", "path"}


# -- batching, samplers, collate --------------------------------------------------------------------------------------


def test_forgetting_set_epoch_repeats_the_order_only_with_torchs_sampler() -> None:
    for forget in (True, False):
        first, second = indices(picture(events_of("samplers", ranks=2, forget=forget), "epochs"))
        assert (first == second) == forget


# -- views that start workers -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_pipeline_shows_the_memory_the_worker_wrote_to() -> None:
    events = events_of("pipeline")
    assert "memfd" in dict(picture(events, "journey")["stations"])["Collate"]
    figures = figures_of(events)
    assert figures["slots in use while you hold it"] == figures["slots in use after you drop it"] + 1
    assert "memfd" not in dict(picture(events_of("pipeline", workers=0), "journey")["stations"])["Collate"]


@pytest.mark.slow
def test_faults_lose_only_the_reported_sample() -> None:
    events = events_of("faults", happens="all of them")
    figures = figures_of(events)
    assert (figures["workers replaced"], figures["samples skipped"]) == (2, 1)
    assert figures["samples made again"] > 0
    assert "was killed by signal 9" in picture(events, "log")["rows"][0][1]
    assert "287 samples delivered, 0 repeated, 1 skipped by name" in events[-1]["text"]


@pytest.mark.real_time
@pytest.mark.parametrize("problem", ["big pickles", "leaking worker", "stragglers"])
def test_the_fix_of_each_problem_shows(problem: str) -> None:
    def is_seen() -> bool:
        figures = figures_of(events_of("bottlenecks", problem=problem))
        if problem == "leaking worker":
            return int(figures["workers replaced"].rpartition(" ")[2]) > 0
        return float(figures["times as fast"].rstrip("x")) > 1.2

    assert any(is_seen() for _ in range(3))  # other programs may use the cores during one of the runs


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: nothing recorded is shown")
def test_a_machine_without_a_gpu_shows_the_recorded_path_of_a_batch_and_says_so() -> None:
    for pin, middle in ((True, ["Pinned CPU memory"]), (False, ["Pageable CPU memory", "Staging buffer"])):
        events = events_of("transfer", pin=pin)
        assert {"kind": "say", "text": "This machine has no GPU: the lab shows a recorded run."} in events
        drawn = picture(events, "path")
        assert "recorded on" in drawn["title"]
        assert [name for name, _ in drawn["stations"]] == [*middle, "GPU memory"]


# -- the user's own dataset -------------------------------------------------------------------------------------------

DATASETS = """
import feedline
from torch.utils.data import DataLoader

class Steady:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return float(index)

def reversed_pairs(samples):
    return samples[::-1]

def make_loader():
    return DataLoader(Steady(), 8, collate_fn=reversed_pairs)

steady = dataset = Steady()
single = DataLoader(Steady(), batch_size=None)
ours = feedline.DataLoader(Steady(), 8)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    file = tmp_path / "mine.py"
    file.write_text(DATASETS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield file
    sys.modules.pop("mine", None)


def made_by(source: str, batch_size: int | None = None) -> tuple[Any, Any]:
    """Return the object that a source names, and the loader that the copied code makes of it."""
    opened = open_object(source)
    code = code_of(source, opened, target_of(opened, batch_size), {"num_workers": 0})
    check_names(code)
    made: dict[str, Any] = {}
    exec(code.replace("print(", "str("), made)
    return opened, made["loader"]


@pytest.mark.parametrize("name", ["Steady", "steady", "make_loader", "single", "ours"])
def test_copied_code_gives_the_batches_of_the_dataset_or_loader(file: Path, name: str) -> None:
    opened, loader = made_by(f"{file}:{name}")
    assert isinstance(loader, feedline.DataLoader)
    if isinstance(opened, (feedline.DataLoader, torch.utils.data.DataLoader)):
        assert str(list(loader)) == str(list(opened))
        assert not isinstance(loader.dataset, type(opened))
    else:
        assert sorted(value for batch in loader for value in batch.tolist()) == list(range(64))
