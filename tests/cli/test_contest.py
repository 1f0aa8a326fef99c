from __future__ import annotations

import sys

import pytest
import torch
from torch.utils.data import TensorDataset

from feedline.cli import contest
from feedline.cli.contest import Case, Comparison, LoadMeter, Round, compare
from feedline.errors import InternalError


@pytest.fixture
def case() -> Case:
    return Case("tiny", TensorDataset(torch.randn(400, 3), torch.arange(400)), 8, 0, "samples", 8)


def test_both_loaders_are_measured_in_turns(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    for name, build in list(contest.LOADERS.items()):

        def spy(*args: object, name: str = name, build: type = build, **kwargs: object) -> object:  # type: ignore[assignment]
            order.append(name)
            return build(*args, **kwargs)

        monkeypatch.setitem(contest.LOADERS, name, spy)
    reports: list[None] = []
    result = compare(case, rounds=3, seconds=0.001, report=lambda: reports.append(None))
    assert order == ["torch", "feedline"] * 4  # the first pair compares batches
    assert len(reports) == 6
    assert len(result.torch) == len(result.feedline) == len(result.ratios) == 3
    assert all(item.rate > 0 and item.first_batch_ms > 0 for item in result.torch + result.feedline)


def test_epoch_that_ends_early_is_counted_to_its_end(case: Case) -> None:
    measured = contest.measure(case, contest.LOADERS["torch"], seed=0, seconds=60)
    assert measured.rate > 0


def test_too_short_a_case_is_refused() -> None:
    case = Case("short", TensorDataset(torch.arange(contest.WARM_BATCHES + 1)), 1, 0, "samples", 1)
    with pytest.raises(InternalError, match="too few batches"):
        contest.measure(case, contest.LOADERS["torch"], seed=0, seconds=1)


def test_different_batches_are_not_compared(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [torch.zeros(8, 3), torch.zeros(8)]
    monkeypatch.setitem(contest.LOADERS, "feedline", lambda *_, **__: [wrong])
    with pytest.raises(InternalError, match="tiny, inline"):
        compare(case, rounds=1, seconds=0.001, report=lambda: None)


def test_ratio_pairs_neighbouring_rounds(case: Case) -> None:
    # The machine slowed down threefold between the rounds; the ratio does not notice.
    torch_rounds = (Round(30, 1), Round(10, 1), Round(10, 1))
    feedline_rounds = (Round(60, 1), Round(20, 1), Round(30, 1))
    comparison = Comparison(case, torch_rounds, feedline_rounds, None)
    assert comparison.ratios == [2, 2, 3]
    assert comparison.ratio == 2


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc/stat")
def test_own_work_is_not_other_load(monkeypatch: pytest.MonkeyPatch) -> None:
    # The clocks of the fakes: the machine was busy for 5 s, 4 of them ours, in 2 s on the wall.
    others, wall = iter([100.0, 101.0]), iter([10.0, 12.0])
    monkeypatch.setattr(LoadMeter, "_other_seconds", staticmethod(lambda: next(others)))
    monkeypatch.setattr("time.perf_counter", lambda: next(wall))
    assert LoadMeter().read() == pytest.approx(0.5)


def test_load_is_unknown_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoadMeter, "_other_seconds", staticmethod(lambda: None))
    assert LoadMeter().read() is None
