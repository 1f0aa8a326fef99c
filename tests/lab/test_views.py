"""Every view: what its numbers must be."""

import json
import queue
from typing import Any

import pytest

from feedline.lab.controls import read
from feedline.lab.view import View
from feedline.lab.views import VIEWS

BY_NAME = {view.name: view for view in VIEWS}
INLINE = ("batching", "samplers", "collate")


def told_by(view: View, given: dict[str, Any], *actions: str) -> list[dict[str, Any]]:
    """Run a view, and return what it tells, as the page gets it."""
    clicked: queue.SimpleQueue[str] = queue.SimpleQueue()
    for action in actions:
        clicked.put(action)
    events = [event for event in view.run(read(view.controls, given), clicked) if event["kind"] != "still"]
    assert not [event for event in events if event["kind"] == "error"]
    told: list[dict[str, Any]] = json.loads(json.dumps(events, allow_nan=False))
    return told


def figures_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = [event for event in events if event["kind"] == "figures"][-1]["values"]
    return values


def picture(events: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return [event for event in events if event.get("name") == name][-1]


def indices(event: dict[str, Any]) -> list[list[int]]:
    return [[int(text) for text, _ in row["cells"]] for row in event["rows"]]


def flat(rows: list[list[int]]) -> list[int]:
    return [index for row in rows for index in row]


def test_views_have_names_of_their_own_and_code_that_is_python() -> None:
    assert len(BY_NAME) == len(VIEWS)
    for view in VIEWS:
        for preset in view.presets:
            compile(view.code(read(view.controls, preset)), view.name, "exec")


@pytest.mark.parametrize("name", INLINE)
def test_presets_tell_a_picture_and_a_sentence(name: str) -> None:
    for preset in BY_NAME[name].presets[::5]:  # all of them are run when the lab is exported
        kinds = {event["kind"] for event in told_by(BY_NAME[name], dict(preset))}
        assert "say" in kinds
        assert kinds & {"cells", "lines", "bars", "table", "lanes", "path"}


@pytest.mark.parametrize(
    ("samples", "size", "drop", "count", "last"),
    [(50, 8, False, 7, 2), (50, 8, True, 6, 8), (3, 8, True, 0, 0), (1, 1, False, 1, 1)],
)
def test_batching_counts_batches(samples: int, size: int, drop: bool, count: int, last: int) -> None:
    events = told_by(BY_NAME["batching"], {"samples": samples, "batch_size": size, "drop_last": drop})
    assert figures_of(events)["batches"] == count
    if count:
        drawn = indices(picture(events, "epoch 0"))
        assert len(drawn) == count
        assert len(drawn[-1]) == last
        assert len(flat(drawn)) == len(set(flat(drawn)))


def test_shuffled_epochs_differ_and_others_do_not() -> None:
    for shuffle in (True, False):
        events = told_by(BY_NAME["batching"], {"shuffle": shuffle})
        assert (indices(picture(events, "epoch 0")) != indices(picture(events, "epoch 1"))) == shuffle


def test_gradient_noise_falls_with_the_root_of_the_batch_size() -> None:
    measured = picture(told_by(BY_NAME["batching"], {}), "noise")["series"][0]["y"]
    assert measured[2] / measured[8] == pytest.approx(8, rel=0.3)


def test_ranks_share_an_epoch() -> None:
    events = told_by(BY_NAME["samplers"], {"ranks": 3, "batch_size": 8})
    seen = [set(flat(indices(picture(events, f"rank {rank}")))) for rank in range(3)]
    assert set.union(*seen) == set(range(96))
    assert sum(map(len, seen)) == 96


def test_strata_give_every_batch_the_mixture() -> None:
    spread = {}
    for sampler in ("random", "stratified"):
        rows = picture(told_by(BY_NAME["samplers"], {"sampler": sampler}), "spread")["rows"]
        spread[sampler] = sum(int(most) - int(fewest) for _, fewest, _, most in rows)
    assert spread["stratified"] <= 4 < spread["random"]


def test_a_forgotten_set_epoch_is_seen_with_torch_s_sampler_and_not_with_feedline_s() -> None:
    for forget in (True, False):
        first, second = indices(picture(told_by(BY_NAME["samplers"], {"ranks": 2, "forget": forget}), "epochs"))
        assert (first == second) == forget


def test_bucketing_saves_padding() -> None:
    events = told_by(BY_NAME["collate"], {"kind": "pad"})
    random, bucketed = (value for _, value, _, _ in picture(events, "waste")["bars"])
    assert bucketed < random
    drawn = indices(picture(events, "padded"))
    assert len({len(row) for row in drawn}) == 1


def test_samples_before_collate_are_those_of_the_batch_after_it() -> None:
    events = told_by(BY_NAME["collate"], {"kind": "filter", "batch_size": 8})
    none = [row for row in picture(events, "before")["rows"] if row[1] == "None"]
    assert figures_of(events)["samples in the batch"] == 8 - len(none)


@pytest.mark.slow
def test_pipeline_shows_the_memory_that_the_worker_wrote_to() -> None:
    events = told_by(BY_NAME["pipeline"], {})
    stations = dict(picture(events, "journey")["stations"])
    assert "memfd" in stations["Collate"]
    figures = figures_of(events)
    assert figures["slots in use while it is held"] == figures["and after it was dropped"] + 1


def test_a_killed_worker_loses_nothing() -> None:
    events = told_by(BY_NAME["faults"], {"happens": "kill"})
    assert figures_of(events)["workers replaced"] >= 1
    assert "samples made again" in figures_of(events)  # how many depends on where it was killed
    assert events[-1]["text"] == "The epoch is over: 288 samples delivered, 0 repeated, none missing."


@pytest.mark.slow
def test_every_fault_at_once_loses_only_what_is_named() -> None:
    events = told_by(BY_NAME["faults"], {"happens": "all of them"})
    assert "0 repeated, 1 skipped by name" in events[-1]["text"]


@pytest.mark.slow
def test_workers_are_drawn_as_they_worked() -> None:
    events = told_by(BY_NAME["workers"], {"workers": 3})
    for name in ("feedline", "torch"):
        drawn = picture(events, name)
        assert drawn["lanes"] == ["training", "worker 0", "worker 1", "worker 2"]
        assert {span[0] for span in drawn["spans"]} == {0, 1, 2, 3}
        for _, begin, end, _, _ in drawn["spans"]:
            assert 0 <= begin <= end
    assert figures_of(events)["samples/s"] > 0


@pytest.mark.slow
def test_a_list_grows_in_workers_and_share_does_not() -> None:
    growth = picture(told_by(BY_NAME["memory"], {}), "growth")["series"]
    grown = {one["name"]: one["y"][-1] for one in growth}
    assert grown["a Python list"] > 10
    assert grown["feedline.share"] < grown["a Python list"] / 4


@pytest.mark.slow
@pytest.mark.parametrize("disease", ["big pickles", "restarts every epoch", "leaking worker", "stragglers"])
def test_the_fix_of_a_disease_is_seen(disease: str) -> None:
    figures = figures_of(told_by(BY_NAME["bottlenecks"], {"disease": disease}))
    if disease == "leaking worker":
        assert int(figures["workers replaced"].rpartition(" ")[2]) > 0
    else:
        assert float(figures["times as fast"].rstrip("x")) > 1.2


@pytest.mark.slow
def test_a_machine_without_a_gpu_says_whose_run_is_shown() -> None:
    events = told_by(BY_NAME["transfer"], {"step_ms": 6})
    assert "no GPU" in events[-1]["text"] or "Measured just now" in events[-1]["text"]
    assert len([event for event in events if event["kind"] == "lanes"]) == 4
