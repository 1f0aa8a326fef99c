"""The demo trains, and compares."""

from __future__ import annotations

import io
import math
from argparse import Namespace
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import Subset

from feedline.tools.cli import demo
from feedline.tools.cli.demo import Epoch, count_batches, train, within
from feedline.tools.cli.main import main
from feedline.tools.cli.pictures import picture_folder, write_pictures
from feedline.types.terminal import open_screen


@pytest.mark.slow
def test_network_learns(tmp_path: Path) -> None:
    write_pictures(tmp_path, 160)
    pictures: Any = picture_folder(tmp_path)
    trained, held_out = Subset(pictures, range(128)), Subset(pictures, range(128, 160))
    reports: list[None] = []
    epochs = list(train(trained, held_out, epochs=5, worker_count=2, report=lambda: reports.append(None)))
    assert [epoch.number for epoch in epochs] == [1, 2, 3, 4, 5]
    assert len(reports) == 5 * count_batches(trained)
    assert epochs[-1].loss < epochs[0].loss / 2
    assert max(epoch.accuracy for epoch in epochs) > 0.5  # chance is 0.25


class Epochs:
    """Epochs that take so many seconds each on a clock of their own."""

    def __init__(self, *seconds: float) -> None:
        self.now_s = 100.0
        self.seconds = seconds
        self.is_closed = False

    def clock(self) -> float:
        return self.now_s

    def train(self) -> Generator[Epoch, None, None]:
        try:
            for number, seconds in enumerate(self.seconds, 1):
                self.now_s += seconds
                yield Epoch(number, 1.0, 0.5, 10.0)
        finally:
            self.is_closed = True


@pytest.mark.parametrize(
    ("seconds", "until_s", "count"),
    [
        ((1, 1, 1, 1), 200, 4),
        ((5, 5, 5, 5), 112, 2),  # a third one would end at 115
        ((5, 1, 1, 1), 110, 2),  # each could take as long as the first
        ((30, 30), 110, 1),
    ],
)
def test_training_ends_in_time_but_not_before_an_epoch(seconds: tuple[float, ...], until_s: float, count: int) -> None:
    epochs = Epochs(*seconds)
    assert [epoch.number for epoch in within(until_s, epochs.train(), epochs.clock)] == list(range(1, count + 1))
    assert epochs.is_closed


def test_drawing_ends_in_time_with_enough_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(demo, "write_picture", lambda folder, number: drawn.append(number))
    clock: Callable[[], float] = lambda: float(len(drawn))  # noqa: E731  # a second for each
    for until_s, count in ((10.0, demo.LEAST_IMAGES), (200.5, 201), (1000.0, demo.MOST_IMAGES)):
        drawn.clear()
        screen = open_screen(file=io.StringIO())
        found = demo.make_pictures(tmp_path, demo.MOST_IMAGES, screen, until_s=until_s, clock=clock)
        assert drawn == list(range(found)) == list(range(count))


@pytest.mark.parametrize("flags", [[], ["--epochs", "3"], ["--rounds", "2"], ["--epochs", "3", "--images", "50"]])
def test_time_is_bounded_unless_users_say_how_much_is_done(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def train(folder: Path, images: int, epochs: int, console: object, *, until_s: float) -> None:
        asked.update(epochs=epochs, trained_until_s=until_s)

    def compare(pictures: object, arguments: Namespace, *, until_s: float) -> None:
        asked.update(rounds=arguments.rounds, compared_until_s=until_s)

    def draw(folder: Path, images: int, console: object, *, until_s: float) -> int:
        asked.update(images=images, drawn_until_s=until_s)
        return images

    monkeypatch.setattr(demo, "make_pictures", draw)
    monkeypatch.setattr(demo, "train_on_pictures", train)
    monkeypatch.setattr(demo, "compare", compare)
    monkeypatch.setattr(demo, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    assert main(["demo", *flags]) == 0
    assert asked == {
        "images": 50 if "--images" in flags else demo.MOST_IMAGES,
        "drawn_until_s": math.inf if "--images" in flags else 1000.0 + demo.DRAWING_S,
        "epochs": 3 if "--epochs" in flags else demo.MOST_EPOCHS,
        "rounds": 2 if "--rounds" in flags else demo.MOST_ROUNDS,
        "trained_until_s": math.inf if "--epochs" in flags else 1000.0 + demo.TRAINING_S,
        "compared_until_s": math.inf if "--rounds" in flags else 1000.0 + demo.BUDGET_S,
    }
    assert demo.TRAINING_S < demo.BUDGET_S < 60


@pytest.mark.slow
def test_demo_from_pictures_to_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    flags = ["--images", "80", "--epochs", "2", "--folder", str(tmp_path), "--rounds", "1", "--seconds", "0.05"]
    assert main(["demo", *flags]) == 0
    out = capsys.readouterr().out
    assert len(list(tmp_path.iterdir())) == 80
    for part in ("80 JPEG pictures", "epoch  1", "epoch  2", "tiny", "JPEG", "x torch"):
        assert part in out
