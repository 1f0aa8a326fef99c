from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline
from feedline.datasets import JSONLines
from feedline.datasets.formats.lines import format as format_module
from feedline.errors import BadState, CorruptSource, SourceChanged
from tests.datasets.formats.lines.writing import FORMS, all_of, lines_of, packed, rows, taken, write
from tests.sampling import examples

COUNT = 40


@pytest.fixture(autouse=True)
def small_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make small files have many sections, and pieces that end anywhere."""
    monkeypatch.setattr(format_module, "SECTION_BYTES", 150)
    monkeypatch.setattr("feedline.datasets.storage.content._SLICE", 32)
    monkeypatch.setattr("feedline.datasets.storage.content._ZSTD_SLICE", 32)
    monkeypatch.setattr("feedline.datasets.framework.shard_pass._MOST", 3)
    monkeypatch.setattr("feedline.datasets.storage.ahead.LOCAL_CHUNK", 100)


# Any, throughout: samples and states of any kind.
def resumed(stream: Any, state: Any) -> Any:
    """Continue in a new pass with a state that went through JSON."""
    iterator = iter(stream)
    iterator.load_state_dict(json.loads(json.dumps(state)))
    return iterator


@settings(deadline=None, max_examples=examples(60))
@given(
    texts=st.lists(st.sampled_from(["1", "[2, 3]", '"ä"', "", "  ", "{}", "?"]), max_size=25),
    forms=st.lists(st.sampled_from(FORMS), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 1 << 20), max_size=5),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_streams_resume_at_every_step(
    texts: list[str], forms: list[tuple[str, bool]], cuts: list[int], end: str
) -> None:
    """Even if lines are damaged: each fails again or stays skipped, as before."""
    content = "".join(text + end for text in texts).encode()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{number}.jsonl{ending}") for number, (ending, _) in enumerate(forms)]
        for path, (ending, is_split) in zip(paths, forms, strict=True):
            path.write_bytes(packed(content, ending, cuts if is_split else ()))
        stream = JSONLines(paths).stream()
        outcomes, states = outcomes_of(iter(stream))
        assert [outcome for outcome in outcomes if outcome != "bad"] == [
            json.loads(text) for text in texts * len(forms) if text.strip() not in ("", "?")
        ]
        for place, state in enumerate(states):
            assert outcomes_of(resumed(stream, state))[0] == outcomes[place:]
            iterator = iter(stream)
            assert iterator.skip(place) == place
            assert outcomes_of(iterator)[0] == outcomes[place:]


def outcomes_of(iterator: Any) -> tuple[list[Any], list[Any]]:
    """Return all samples, with "bad" for those that fail, and the states before each of them and at the end."""
    outcomes, states = [], [iterator.state_dict()]
    while True:
        try:
            outcomes.append(next(iterator))
        except StopIteration:
            return outcomes, states
        except CorruptSource:
            outcomes.append("bad")
        states.append(iterator.state_dict())


def test_a_state_is_small_and_says_where_to_decompress_from(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", lines_of(rows(2000)), is_split=True)
    stream = JSONLines(path, "number").stream()
    iterator = iter(stream)
    assert iterator.skip(1900) == 1900
    state = iterator.state_dict()
    assert len(json.dumps(state)) < 300
    at, offset = state["entry"][:2]
    assert at > path.stat().st_size * 0.8
    content = lines_of(rows(2000))
    assert gzip.decompress(path.read_bytes()[at:]) == content[offset:]
    assert next(resumed(stream, state)) == 1900


def test_skipped_lines_are_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl", b"?\n" * 30 + b"30\n31\n")
    iterator = iter(JSONLines(path).stream())
    monkeypatch.setattr(format_module.JSONFormat, "parse", lambda *_: pytest.fail("a line was parsed"))
    assert iterator.skip(30) == 30
    monkeypatch.undo()
    assert taken(iterator, 5) == [30, 31]
    assert iterator.skip(5) == 0


@pytest.mark.parametrize("is_shuffled", [False, True])
def test_take_and_next_and_skip_in_any_order(tmp_path: Path, is_shuffled: bool) -> None:
    write(tmp_path / "a.jsonl", lines_of(range(30)))
    write(tmp_path / "b.jsonl.gz", lines_of(range(30, 60)), is_split=True)
    stream = JSONLines(tmp_path, part_bytes=40).stream(shuffle=is_shuffled, window=2)
    expected = list(stream)
    assert sorted(expected) == list(range(60))
    for first in range(0, 60, 7):
        for count in (0, 1, 5, 29, 100):
            iterator: Any = iter(stream)
            assert iterator.skip(first) == first
            assert taken(iterator, count) == expected[first : first + count]
            assert iterator.skip(2) == len(expected[first + count :][:2])
            state = iterator.state_dict()
            rest = expected[first + count + 2 :]
            assert list(iterator) == rest
            assert list(resumed(stream, state)) == rest


@pytest.mark.parametrize("is_shuffled", [False, True])
def test_take_raises_only_if_the_first_sample_fails(tmp_path: Path, is_shuffled: bool) -> None:
    path = write(tmp_path / "a.jsonl", b"0\n1\n?\n3\n4\n")

    def checked(number: int) -> int:
        if number == 4:
            raise KeyError(number)
        return number * 10

    dataset = JSONLines(path, transform=checked)
    iterator: Any = iter(dataset.stream(shuffle=is_shuffled, window=1))
    outcomes: list[Any] = []
    failures = 0
    while True:
        place = iterator.state_dict()
        try:
            made = iterator.take(2)
        except (CorruptSource, KeyError):
            assert iterator.state_dict() != place
            failures += 1
            assert iterator.try_again()
            with pytest.raises((CorruptSource, KeyError)):
                iterator.take(2)
            continue
        if not made:
            break
        outcomes += made
    assert sorted(outcomes) == [0, 10, 30]
    assert failures == 2


def test_a_state_of_other_files_is_rejected(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines_of(range(COUNT)))
    stream = JSONLines(path).stream()
    iterator = iter(stream)
    iterator.skip(20)
    state = iterator.state_dict()
    (tmp_path / "moved").mkdir()
    path.rename(tmp_path / "moved" / "a.jsonl")
    assert next(resumed(JSONLines(tmp_path / "moved").stream(), state)) == 20, "a folder may be renamed"
    write(tmp_path / "b.jsonl", lines_of(range(COUNT)))
    with pytest.raises(BadState, match="files"):
        resumed(JSONLines(tmp_path / "b.jsonl").stream(), state)
    write(path, lines_of(range(COUNT + 1)))
    with pytest.raises(SourceChanged, match=r"a\.jsonl has changed since it was looked at"):
        next(resumed(stream, state))
    with pytest.raises(BadState, match="This is not the state"):
        resumed(stream, {"place": 3})


@pytest.mark.parametrize("is_shuffled", [False, True])
def test_a_loader_resumes_with_workers(tmp_path: Path, is_shuffled: bool) -> None:
    write(tmp_path / "a.jsonl.gz", lines_of(range(25)), is_split=True)
    write(tmp_path / "b.jsonl", lines_of(range(25, COUNT)))
    stream = JSONLines(tmp_path, part_bytes=30).stream(shuffle=is_shuffled)
    whole = [batch.tolist() for batch in feedline.Loader(stream, 3)]
    assert sorted(number for batch in whole for number in batch) == list(range(COUNT))
    for workers in (0, 2):
        loader = feedline.Loader(stream, 3, workers=workers)
        batches = iter(loader)
        begun = [next(batches).tolist() for _ in range(5)]
        state = loader.state_dict()
        del batches
        again = feedline.Loader(stream, 3, workers=workers)
        again.load_state_dict(state)
        assert begun + [batch.tolist() for batch in again] == whole


def test_every_epoch_has_its_own_order(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines_of(range(COUNT)))
    stream = JSONLines(path, part_bytes=20).stream(shuffle=True, seed=3)
    first = all_of(stream)
    stream.set_epoch(1)
    second = all_of(stream)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(COUNT))
    assert list(JSONLines(path).stream()) == list(range(COUNT))
