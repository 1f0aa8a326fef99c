from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.datasets import JSONLines
from feedline.datasets.formats.lines import format as format_module
from feedline.errors import CorruptSource
from tests.datasets.formats.lines.writing import FORMS, lines_of, packed, rows, taken, write
from tests.sampling import examples


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
