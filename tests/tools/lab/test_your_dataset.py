"""The user's own datasets in the lab: what is found and tried, and how datasets that do not work are reported."""

import queue
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import feedline
from feedline.datasets.derived.objects import open_object
from feedline.tools.advise.finding import Finding
from feedline.tools.lab.controls import read
from feedline.tools.lab.pictures import Event
from feedline.tools.lab.views.your_dataset import EXAMPLE, VIEW, _Curve, _findings, arguments_of, code_of, offers_of
from feedline.tools.measure.choice import Choice, Setting
from feedline.tools.measure.target import target_of
from tests.tools.lab.test_views import check_names, events_of, picture

DATASETS = """
import signal
import feedline
from torch.utils.data import DataLoader

class Steady:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return float(index)

class Raising(Steady):
    def __getitem__(self, index):
        raise ValueError("no picture of mine")

class Spotty(Steady):
    def __getitem__(self, index):
        return 1 / (index % 7)

class Hanging(Steady):
    def __getitem__(self, index):
        signal.pause()

def reversed_pairs(samples):
    return samples[::-1]

def make_loader():
    return DataLoader(Steady(), 8, collate_fn=reversed_pairs)

steady = dataset = Steady()
loader = DataLoader(Steady(), 8, num_workers=1)
single = DataLoader(Steady(), batch_size=None)
ours = feedline.DataLoader(Steady(), 8)
number = 3
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    file = tmp_path / "mine.py"
    file.write_text(DATASETS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield file
    sys.modules.pop("mine", None)


def failure_of(source: str) -> Event:
    """Return the error event for a dataset that cannot be tried."""
    events = list(VIEW.run(read(VIEW.controls, {"source": source}), queue.SimpleQueue()))
    assert events[-1]["kind"] == "error"
    return events[-1]


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        ('DataLoader(dataset, engine="thread", num_workers=8)', {"engine": "thread", "num_workers": 8}),
        ("DataLoader(dataset, collate_fn=feedline.collate.pad())", {}),
        ("self.names = feedline.share(names)", {}),
        ("ulimit -n 4096", {}),
        (None, {}),
    ],
)
def test_only_findings_about_arguments_can_be_tried(code: str | None, arguments: dict[str, object]) -> None:
    assert arguments_of(Finding("name", "evidence", "fix", code)) == arguments


FINDINGS = [
    Finding("reopened file", "It is opened for every sample.", "Open it once.", "self.file = open(path)"),
    Finding("waiting", "Samples wait.", "Use threads.", 'DataLoader(dataset, engine="thread", num_workers=8)'),
]


def test_a_button_has_the_number_and_name_of_its_finding() -> None:
    choice = Choice(Setting("process", 4), [])
    offers = offers_of(FINDINGS, {"num_workers": 0}, choice)
    buttons = {action: offer.button for action, offer in offers.items()}
    assert buttons == {"try-2": "Try finding 2: waiting", "tuned": "Try the tuner's choice"}
    assert offers["try-2"].arguments == {"num_workers": 8, "engine": "thread"}
    rows = _findings(FINDINGS)["rows"]
    assert [row[0] for row in rows] == ["1", "2"]
    assert rows[1][1].startswith("waiting")
    assert offers_of(FINDINGS[:1], {}, None) == {}


def test_the_code_is_valid_python_for_any_text_as_source() -> None:
    for source in ("", "my.module:dataset", "a/file.py:dataset", "'); import os\n#"):
        compile(VIEW.code(read(VIEW.controls, {"source": source})), "code", "exec")


@pytest.mark.parametrize("name", ["Steady", "steady", "dataset", "loader", "make_loader", "single", "ours"])
def test_copied_code_gives_the_batches_of_the_dataset_or_loader(file: Path, name: str) -> None:
    source = f"{file}:{name}"
    opened = open_object(source)
    target = target_of(opened)
    code = code_of(source, opened, target, {"num_workers": 0})
    check_names(code)
    made: dict[str, Any] = {}
    exec(code, made)
    loader = made["loader"]
    assert isinstance(loader, feedline.DataLoader)
    if target.is_loader:
        assert str(list(loader)) == str(list(opened))
        assert not isinstance(loader.dataset, (feedline.DataLoader, type(opened)))
    else:
        assert sorted(value for batch in loader for value in batch.tolist()) == list(range(64))


def test_copied_code_has_the_chosen_batch_size(file: Path) -> None:
    opened = open_object(f"{file}:loader")
    code = code_of(f"{file}:loader", opened, target_of(opened, 5), {"num_workers": 0})
    made: dict[str, Any] = {}
    exec(code, made)
    assert [len(batch) for batch in made["loader"]] == [5] * 12 + [4]


class Once:
    """A stream that is empty the second time."""

    def __init__(self) -> None:
        self.left = iter(range(20))

    def __iter__(self) -> Iterator[int]:
        return self.left


def test_a_stream_that_ends_before_it_can_be_measured_has_no_rate() -> None:
    curve = _Curve(target_of(Once()), 0.0)
    assert curve._rate(Setting("inline", 0, 2)) is None


@pytest.mark.slow
def test_bad_datasets_are_reported_with_the_users_traceback(file: Path) -> None:
    assert "no module 'no_such_module'" in failure_of("no_such_module:dataset")["text"]
    assert "has no 'Missing'" in failure_of(f"{file}:Missing")["text"]
    assert "is not a dataset" in failure_of(f"{file}:number")["text"]
    raising = failure_of(f"{file}:Raising")
    assert "no picture of mine" in raising["more"]
    assert "in __getitem__" in raising["more"]
    hanging = failure_of(f"{file}:Hanging")
    assert "did not finish" in hanging["text"]
    assert "in __getitem__" in hanging["more"]
    file.write_text("import json\njson.loads('{')")
    assert "JSONDecodeError" in failure_of(f"{file}:dataset")["text"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_example_has_a_problem_and_its_fix_helps() -> None:
    for _ in range(3):  # other programs may use the cores during one of the runs
        events = events_of(VIEW, {"try_all": True})
        times = float(picture(events, "tried")["rows"][1][3].rstrip("x"))
        if times > 2:
            break
    assert times > 2
    assert picture(events, "findings")["rows"][0][1].startswith("waiting")
    assert len(picture(events, "curve")["series"]) == 2
    assert picture(events, "waits")["bars"]
    rows = picture(events, "tried")["rows"]
    assert [row[0] for row in rows] == ["as it is", "waiting", "the tuner's choice"]
    assert EXAMPLE.rpartition(":")[0] in VIEW.code(read(VIEW.controls, {}))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_loader_is_tried_as_it_is_and_samples_that_fail_are_skipped(file: Path) -> None:
    events = events_of(VIEW, {"source": f"{file}:Spotty", "try_all": True})
    before, after = picture(events, "tried")["rows"]
    assert "ZeroDivisionError" in before[2]
    assert int(after[2].replace(",", "")) > 0
    events = events_of(VIEW, {"source": f"{file}:loader", "try_all": True})
    assert "num_workers=1" in picture(events, "tried")["rows"][0][1]
