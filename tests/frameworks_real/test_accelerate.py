"""Loaders prepared by Accelerate: they are still feedline's, and each sample comes once over all ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from feedline import DataLoader
from tests.frameworks_real.conftest import need
from tests.frameworks_real.ranks import ROOT, outputs_of, run_ranks

need("accelerate")

SCRIPT = Path(__file__).with_name("accelerate_ranks.py")
SIZE = 24
ONCE = [
    "sequential",
    "shuffled",
    "seedable",
    "seeded",
    "seeded and seedable",
    "processes",
    "threads",
    "batch sampler",
    "distributed",
    "torch's distributed",
    "distributed, batches split",
    "tar",
    "tar, workers",
    "sharded",
    "sharded, workers",
    "sharded, batches split",
    "stream",
    "stream, not dispatched",
    "batches split",
    "dispatched",
    "stateful",
    "function",
]


@pytest.fixture(scope="module", params=[1, 2, 3])
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank reported about all loaders."""
    folder = tmp_path_factory.mktemp("ranks")
    return run_ranks(SCRIPT, request.param, folder=folder)


def seen(answers: list[dict[str, Any]], name: str, epoch: int) -> list[int]:
    return [index for rank in answers for batch in rank[name]["epochs"][epoch] for index in batch]


@pytest.mark.parametrize("name", ONCE)
def test_every_sample_comes_once_over_all_ranks(answers: list[dict[str, Any]], name: str) -> None:
    for epoch in range(2):
        assert sorted(seen(answers, name, epoch)) == list(range(SIZE))


@pytest.mark.parametrize("name", [*ONCE, "broken", "uneven", "uneven batches", "skipped", "skipped stream"])
def test_feedline_delivers_the_batches(answers: list[dict[str, Any]], name: str) -> None:
    for rank in answers:
        assert rank[name]["loader"] == "feedline.loader.torch.DataLoader"
        assert set(rank[name]["iterators"]) <= {"TorchBatches"}  # with dispatched batches, only rank 0 reads any
    assert answers[0][name]["iterators"]["TorchBatches"] > 0


def test_the_engine_is_kept(answers: list[dict[str, Any]]) -> None:
    assert [rank["threads"]["engine"] for rank in answers] == ["thread"] * len(answers)


def test_the_error_policy_is_kept(answers: list[dict[str, Any]]) -> None:
    assert sorted(set(seen(answers, "broken", 0))) == sorted(set(range(SIZE)) - {5})
    assert 5 in {index for rank in answers for index in rank["broken"]["faults"]}


def test_order_of_a_seeded_loader_is_the_same_for_any_number_of_ranks(answers: list[dict[str, Any]]) -> None:
    # Accelerate deals the batches out to the ranks in turn.
    for name in ("seeded", "seeded and seedable"):
        for epoch in range(2):
            turns = zip(*(rank[name]["epochs"][epoch] for rank in answers), strict=True)
            loader = DataLoader(range(SIZE), 4, shuffle=True, seed=1)
            loader.set_epoch(epoch)
            assert [batch for turn in turns for batch in turn] == [batch.tolist() for batch in loader]


def test_ranks_end_together_and_repeat_no_more_than_necessary(answers: list[dict[str, Any]]) -> None:
    counts = Counter(seen(answers, "uneven", 0))
    assert set(counts) == set(range(SIZE + 2))
    assert len({len(rank["uneven"]["epochs"][0]) for rank in answers}) == 1
    assert sorted(seen(answers, "uneven batches", 0)) == list(range(SIZE + 2))


def test_batches_are_split_with_split_batches(answers: list[dict[str, Any]]) -> None:
    for name in ("batches split", "sharded, batches split", "distributed, batches split"):
        assert {len(batch) for rank in answers for batch in rank[name]["epochs"][0]} == {6 // len(answers)}


def test_first_batches_are_skipped(answers: list[dict[str, Any]]) -> None:
    for name in ("skipped", "skipped stream"):
        assert sorted(seen(answers, name, 0)) == list(range(4 * len(answers), SIZE))
    assert answers[0]["skipped bare"]["epochs"][0] == [[*range(first, first + 4)] for first in range(4, SIZE, 4)]
    assert answers[0]["skipped bare"]["loader"] == "feedline.loader.torch.DataLoader"


def test_the_wrapper_knows_whether_it_has_a_state(answers: list[dict[str, Any]]) -> None:
    assert answers[0]["stateful"]["stateful"] is True
    assert answers[0]["sequential"]["stateful"] is False


def test_metrics_are_computed_from_every_sample_once(answers: list[dict[str, Any]]) -> None:
    for rank in answers:
        assert sorted(rank["gathered"]) == list(range(SIZE + 2))
        assert sorted(rank["gathered stream"]) == list(range(SIZE))


def test_example_sees_every_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")  # what `accelerate launch --cpu` says
    first, second = outputs_of(ROOT / "examples" / "accelerate_training.py", 2, folder=tmp_path)
    assert [line.split(",")[0] for line in first.splitlines()] == [f"epoch {epoch}: 256 samples" for epoch in range(3)]
    assert second == ""


def test_accelerate_may_be_imported_after_the_loader_is_created(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(
        "import json, feedline\n"
        "loader = feedline.DataLoader(range(6), 2, on_error='skip')\n"
        "from accelerate import Accelerator\n"
        "prepared = Accelerator(cpu=True).prepare(loader)\n"
        "print(json.dumps([type(prepared.base_dataloader).__module__, prepared.on_error, len(list(prepared))]))\n"
    )
    assert run_ranks(script, 1, folder=tmp_path) == [["feedline.loader.torch", "skip", 3]]


def test_impossible_options_are_explained(tmp_path: Path) -> None:
    script = tmp_path / "refused.py"
    script.write_text(REFUSED)
    ((warned, split, state, asked),) = run_ranks(script, 1, folder=tmp_path)
    assert "dispatch_batches=True" in warned
    assert "shard=False" in warned
    assert "multiple" in split
    assert "use_stateful_dataloader=True" in state
    assert asked[0] == asked[1]  # how often the dataset's state was saved, in a bare loader and a prepared one


REFUSED = """
import json, warnings
import feedline
from accelerate.data_loader import prepare_data_loader
from feedline.errors import BadOption, OptionWarning
from tests.frameworks_real.accelerate_ranks import Stream

loader = feedline.DataLoader(Stream(), 4, shard=True)

def said(**options):
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            prepared = prepare_data_loader(loader, num_processes=3, process_index=0, put_on_device=True, **options)
    except BadOption as error:
        return str(error)
    assert type(prepared).__name__ == "DataLoaderShard"
    (warning,) = [one for one in caught if one.category is OptionWarning]
    return str(warning.message)

class Stateful(Stream):
    asked = 0
    def state_dict(self):
        Stateful.asked += 1
        return {}
    def load_state_dict(self, state):
        pass

list(feedline.DataLoader(Stateful(), 4))
bare, Stateful.asked = Stateful.asked, 0
prepared = prepare_data_loader(feedline.DataLoader(Stateful(), 4))
list(prepared)
try:
    prepared.state_dict()
except BadOption as error:
    state = str(error)
answers = [said(dispatch_batches=True), said(split_batches=True)]
print(json.dumps([*answers, state, [bare, Stateful.asked]]))
"""
