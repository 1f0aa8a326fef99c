"""The figures, pictures and sentences of every view."""

import ast
import builtins
import importlib
import itertools
import json
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from feedline.tools.lab.controls import Choice, Control, Number, Switch, read
from feedline.tools.lab.view import View
from feedline.tools.lab.views import VIEWS, bottlenecks, faults, transfer, workers

BY_NAME = {view.name: view for view in VIEWS}
INLINE = ("batching", "samplers", "collate")
USERS = {"dataset", "dataset_of_arrays", "labels", "lengths", "paths", "rank", "epochs", "MyDataset", "train_step"} | {
    "as_list",
    "ready_slowly",
}
"""Names in copied code that stand for the user's own objects."""


def events_of(view: View, given: dict[str, Any], *actions: str) -> list[dict[str, Any]]:
    """Run a view, and return its events as the page gets them."""
    clicked: queue.SimpleQueue[str] = queue.SimpleQueue()
    for action in actions:
        clicked.put(action)
    events = [event for event in view.run(read(view.controls, given), clicked) if event["kind"] != "still"]
    assert not [event for event in events if event["kind"] == "error"]
    as_page_gets: list[dict[str, Any]] = json.loads(json.dumps(events, allow_nan=False))
    return as_page_gets


def figures_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = [event for event in events if event["kind"] == "figures"][-1]["values"]
    return values


def picture(events: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return [event for event in events if event.get("name") == name][-1]


def indices(event: dict[str, Any]) -> list[list[int]]:
    return [[int(text) for text, _ in row["cells"]] for row in event["rows"]]


def flat(rows: list[list[int]]) -> list[int]:
    return [index for row in rows for index in row]


def test_views_have_unique_names_and_short_notices() -> None:
    assert len(BY_NAME) == len(VIEWS)
    for view in VIEWS:
        assert len(view.notice) <= 90, view.name


def test_every_view_has_questions_with_answers() -> None:
    for view in VIEWS:
        assert 1 <= len(view.questions) <= 2, view.name
        for question, answer in view.questions:
            assert question.endswith("?")
            assert answer.endswith(".")
        assert view.described()["questions"] == [list(one) for one in view.questions]


def check_sentences(events: list[dict[str, Any]]) -> None:
    """Fail if the run has no sentence above its pictures, or a long one."""
    sentences = [event["text"] for event in events if event["kind"] == "say"]
    assert sentences
    for text in sentences:
        assert text.endswith(".")
        assert ". " not in text
        assert len(text.split()) <= 14, text


@pytest.mark.parametrize("name", INLINE)
def test_results_are_short_sentences(name: str) -> None:
    for preset in BY_NAME[name].presets:
        check_sentences(events_of(BY_NAME[name], dict(preset)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [view.name for view in VIEWS if view.name not in INLINE])
def test_results_of_longer_runs_are_short_sentences(name: str) -> None:
    presets = BY_NAME[name].presets if name in ("bottlenecks", "faults", "transfer") else BY_NAME[name].presets[:1]
    for preset in presets:
        check_sentences(events_of(BY_NAME[name], dict(preset)))


def test_problems_and_their_fixes_are_short_sentences() -> None:
    for problem in bottlenecks._PROBLEMS.values():
        check_sentences([{"kind": "say", "text": problem.symptom}, {"kind": "say", "text": problem.fix}])


def test_the_sentence_of_the_workers_view_depends_on_the_waiting_time() -> None:
    for waited in (0.0, 0.34):
        check_sentences([{"kind": "say", "text": workers._result(waited)}])
    assert "hardly" in workers._result(0.01)
    assert "34%" in workers._result(0.34)


def settings_of(view: View) -> Iterator[dict[str, Any]]:
    """Yield every combination of choices and switches, with numbers at both ends of their range."""

    def values_of(control: Control) -> tuple[Any, ...]:
        if isinstance(control, Number):
            return (control.least, control.most)
        if isinstance(control, Choice):
            return control.options
        return (False, True) if isinstance(control, Switch) else ("",)

    names = [control.name for control in view.controls]
    for chosen in itertools.product(*map(values_of, view.controls)):
        yield dict(zip(names, chosen, strict=True))


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


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_copied_code_imports_what_it_uses_and_nothing_else(view: View) -> None:
    for code in {view.code(read(view.controls, given)) for given in settings_of(view)}:
        check_names(code)


@pytest.mark.parametrize("name", [view.name for view in VIEWS if view.name not in (*INLINE, "transfer")])
def test_slow_views_say_at_once_what_they_are_doing(name: str) -> None:
    view, module = BY_NAME[name], importlib.import_module(f"feedline.tools.lab.views.{name}")
    for run in (view.run, module._run):  # while its process starts, and in that process
        events: Any = run(read(view.controls, {}), queue.SimpleQueue())  # Any: a generator
        first = next(event for event in events if event["kind"] != "say")
        events.close()
        assert first["kind"] == "doing"
        assert first["text"]


@pytest.mark.parametrize("name", INLINE)
def test_the_legend_explains_every_colour(name: str) -> None:
    for preset in BY_NAME[name].presets[::3]:
        drawn = [event for event in events_of(BY_NAME[name], dict(preset)) if event["kind"] == "cells"]
        explained = {shade for event in drawn for _, shade in event["legend"]}
        assert {shade for event in drawn for row in event["rows"] for _, shade in row["cells"]} <= explained


def test_colours_of_batching_stand_for_parts_of_the_dataset() -> None:
    drawn = picture(events_of(BY_NAME["batching"], {"samples": 20}), "epoch 0")
    parts = {shade: text for text, shade in drawn["legend"]}
    assert parts["class-0"] == "samples 0 to 2"
    for index, shade in [cell for row in drawn["rows"] for cell in row["cells"]]:
        first, *_, last = [int(word) for word in parts[shade].split() if word.isdigit()]
        assert first <= int(index) <= last


def test_the_axis_shows_batch_sizes() -> None:
    noise = picture(events_of(BY_NAME["batching"], {}), "noise")
    assert noise["across"] == "batch size"
    assert noise["series"][0]["x"] == [2**power for power in range(10)]


@pytest.mark.parametrize("name", INLINE)
def test_presets_show_a_picture_and_a_sentence(name: str) -> None:
    for preset in BY_NAME[name].presets[::5]:  # exporting the lab runs all of them
        kinds = {event["kind"] for event in events_of(BY_NAME[name], dict(preset))}
        assert "say" in kinds
        assert kinds & {"cells", "lines", "bars", "table", "lanes", "path"}


@pytest.mark.parametrize(
    ("samples", "size", "drop", "count", "last"),
    [(50, 8, False, 7, 2), (50, 8, True, 6, 8), (3, 8, True, 0, 0), (1, 1, False, 1, 1)],
)
def test_batching_counts_batches(samples: int, size: int, drop: bool, count: int, last: int) -> None:
    events = events_of(BY_NAME["batching"], {"samples": samples, "batch_size": size, "drop_last": drop})
    assert figures_of(events)["batches"] == count
    if count:
        drawn = indices(picture(events, "epoch 0"))
        assert len(drawn) == count
        assert len(drawn[-1]) == last
        assert len(flat(drawn)) == len(set(flat(drawn)))


def test_only_shuffled_epochs_differ() -> None:
    for shuffle in (True, False):
        events = events_of(BY_NAME["batching"], {"shuffle": shuffle})
        assert (indices(picture(events, "epoch 0")) != indices(picture(events, "epoch 1"))) == shuffle


def test_gradient_noise_falls_with_the_root_of_the_batch_size() -> None:
    measured = picture(events_of(BY_NAME["batching"], {}), "noise")["series"][0]["y"]
    assert measured[2] / measured[8] == pytest.approx(8, rel=0.3)


def test_ranks_share_an_epoch() -> None:
    events = events_of(BY_NAME["samplers"], {"ranks": 3, "batch_size": 8})
    seen = [set(flat(indices(picture(events, f"rank {rank}")))) for rank in range(3)]
    assert set.union(*seen) == set(range(96))
    assert sum(map(len, seen)) == 96


def test_stratified_batches_have_the_mixture_of_the_dataset() -> None:
    spread = {}
    for sampler in ("random", "stratified"):
        rows = picture(events_of(BY_NAME["samplers"], {"sampler": sampler}), "spread")["rows"]
        spread[sampler] = sum(int(most) - int(fewest) for _, fewest, _, most in rows)
    assert spread["stratified"] <= 4 < spread["random"]


def test_forgetting_set_epoch_repeats_the_order_only_with_torchs_sampler() -> None:
    for forget in (True, False):
        first, second = indices(picture(events_of(BY_NAME["samplers"], {"ranks": 2, "forget": forget}), "epochs"))
        assert (first == second) == forget


def test_a_subset_is_drawn_in_another_order_in_each_epoch() -> None:
    events = events_of(BY_NAME["samplers"], {"sampler": "subset random", "batch_size": 24})
    assert sorted(flat(indices(picture(events, "rank 0")))) == list(range(0, 96, 4))
    assert figures_of(events)["never seen"] == 72
    first, second = indices(picture(events, "epochs"))
    assert first != second
    assert sorted(first) == sorted(second)


def test_a_batch_sampler_drops_an_incomplete_batch() -> None:
    events = events_of(BY_NAME["samplers"], {"sampler": "batch sampler", "batch_size": 13})
    assert [len(row) for row in indices(picture(events, "rank 0"))] == [13] * 7
    assert figures_of(events)["never seen"] == 96 - 7 * 13


def test_bucketing_saves_padding() -> None:
    events = events_of(BY_NAME["collate"], {"kind": "pad"})
    random, bucketed = (value for _, value, _, _ in picture(events, "waste")["bars"])
    assert bucketed < random
    drawn = indices(picture(events, "padded"))
    assert len({len(row) for row in drawn}) == 1


def test_the_samples_shown_before_collate_are_those_of_the_batch() -> None:
    events = events_of(BY_NAME["collate"], {"kind": "filter", "batch_size": 8})
    none = [row for row in picture(events, "before")["rows"] if row[1] == "None"]
    assert figures_of(events)["samples in the batch"] == 8 - len(none)


@pytest.mark.slow
def test_pipeline_shows_the_memory_the_worker_wrote_to() -> None:
    events = events_of(BY_NAME["pipeline"], {})
    stations = dict(picture(events, "journey")["stations"])
    assert "memfd" in stations["Collate"]
    figures = figures_of(events)
    assert figures["slots in use while you hold it"] == figures["slots in use after you drop it"] + 1


class Replacing:
    """A loader that has replaced two workers and skipped a sample; it delivers the same batch twice."""

    sampler = range(8)

    def __init__(self) -> None:
        self.faults = [type("Skip", (), {"action": "skip"})]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.tensor([[index, 1] for index in range(4)])] * 2)

    def stats(self) -> dict[str, int]:
        return {"restarted_workers": 2}

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None: ...

    def close(self) -> None: ...


def test_workers_replaced_before_an_interruption_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(faults._Epoch, "_new_loader", lambda epoch: Replacing())
    clicked: queue.SimpleQueue[str] = queue.SimpleQueue()
    clicked.put("cut")
    values = read(faults.VIEW.controls, {"happens": "nothing"})
    found = figures_of(list(faults._Epoch(values, tmp_path).run(clicked)))
    assert found["workers replaced"] == 4
    assert found["samples skipped"] == 2


@pytest.mark.slow
def test_a_killed_worker_loses_nothing() -> None:
    events = events_of(BY_NAME["faults"], {"happens": "kill"})
    assert figures_of(events)["workers lost"] == figures_of(events)["workers replaced"] == 1
    assert figures_of(events)["samples made again"] > 0
    assert events[-1]["text"] == "The epoch is over: 288 samples delivered, 0 repeated, none missing."


@pytest.mark.slow
def test_all_faults_at_once_lose_only_the_reported_sample() -> None:
    events = events_of(BY_NAME["faults"], {"happens": "all of them"})
    assert figures_of(events)["workers lost"] == figures_of(events)["workers replaced"] == 2
    assert "0 repeated, 1 skipped by name" in events[-1]["text"]


@pytest.mark.slow
def test_the_timeline_shows_every_worker() -> None:
    events = events_of(BY_NAME["workers"], {"workers": 3})
    for name in ("feedline", "torch"):
        drawn = picture(events, name)
        assert drawn["lanes"] == ["training", "worker 0", "worker 1", "worker 2"]
        assert {span[0] for span in drawn["spans"]} == {0, 1, 2, 3}
        for _, begin, end, _, _ in drawn["spans"]:
            assert 0 <= begin <= end
    assert figures_of(events)["samples/s"] > 0


@pytest.mark.slow
def test_a_python_list_grows_in_workers_and_a_shared_one_does_not() -> None:
    growth = picture(events_of(BY_NAME["memory"], {}), "growth")["series"]
    grown = {one["name"]: one["y"][-1] for one in growth}
    assert grown["a Python list"] > 10
    assert grown["feedline.share"] < grown["a Python list"] / 4


@pytest.mark.real_time
@pytest.mark.parametrize("problem", ["big pickles", "restarts every epoch", "leaking worker", "stragglers"])
def test_the_fix_of_each_problem_shows(problem: str) -> None:
    def is_seen() -> bool:
        figures = figures_of(events_of(BY_NAME["bottlenecks"], {"problem": problem}))
        if problem == "leaking worker":
            return int(figures["workers replaced"].rpartition(" ")[2]) > 0
        return float(figures["times as fast"].rstrip("x")) > 1.2

    assert any(is_seen() for _ in range(3))  # other programs may use the cores during one of the runs


def test_a_machine_without_a_gpu_shows_a_recorded_run_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    events = recorded_transfer(pin=True)
    assert events[0] == {"kind": "say", "text": "This machine has no GPU: the lab shows a recorded run."}
    for name in ("path", "rates"):
        assert "recorded on" in picture(events, name)["title"]


def test_the_pin_switch_chooses_the_path_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    paths = {pin: picture(recorded_transfer(pin=pin), "path") for pin in (True, False)}
    names = {pin: [name for name, _ in drawn["stations"]] for pin, drawn in paths.items()}
    assert names[True] == ["Pinned CPU memory", "GPU memory"]
    assert names[False] == ["Pageable CPU memory", "Staging buffer", "GPU memory"]
    for pin, ways in ((True, ["pinned", "non_blocking", "device="]), (False, ["pageable", "device="])):
        assert [one["name"] for one in recorded_transfer(pin=pin) if one["kind"] == "lanes"] == ways
        assert paths[pin]["reached"] == len(names[pin]) - 1  # the whole path is drawn


def test_the_copy_time_is_the_median_of_the_copies_on_the_device() -> None:
    copies = [(1, at, at + seconds, "transfer", "") for at, seconds in ((0.0, 0.25), (1.0, 0.5), (2.0, 1.0))]
    others = [(0, 0.0, 9.0, "transfer", ""), (1, 3.0, 9.0, "compute", "")]
    assert transfer._copy_s(copies + others) == 0.5
    assert transfer._stations("pinned", transfer._BATCH_BYTES / 4e9)[-1][1].endswith("ms: 4 GB/s")


def recorded_transfer(*, pin: bool) -> list[dict[str, Any]]:
    return list(transfer._run(read(transfer.VIEW.controls, {"pin": pin}), queue.SimpleQueue()))


@pytest.mark.slow
def test_every_setting_of_transfer_is_shown() -> None:
    for pin, count in ((True, 3), (False, 2)):
        events = events_of(BY_NAME["transfer"], {"pin": pin})
        assert len([event for event in events if event["kind"] == "lanes"]) == count
        assert events[-1]["kind"] == "say"
