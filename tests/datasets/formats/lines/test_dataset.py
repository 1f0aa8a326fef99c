from __future__ import annotations

import functools
import json
import pickle
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import feedline
from feedline.datasets import JSONLines, TextLines
from feedline.datasets.formats.lines import index
from feedline.datasets.formats.lines import source as source_module
from feedline.datasets.storage import content
from feedline.datasets.storage.content import packing_of
from feedline.errors import BadOption, CorruptSource, SourceChanged, SourceError
from feedline.testing.asserting import assert_same
from tests.datasets.contract import SourceContract
from tests.datasets.formats.lines.writing import (
    BETWEEN,
    FORMS,
    VALUES,
    all_of,
    lines_of,
    packed,
    rows,
    touch_later,
    write,
)
from tests.sampling import examples

COUNT = 60


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks and units in small files."""
    for module in (index, source_module):
        monkeypatch.setattr(module, "BLOCK_BYTES", 200)
        monkeypatch.setattr(module, "PACKED_BYTES", 500)
    monkeypatch.setattr(index, "_LEAST_UNIT", 100)
    monkeypatch.setattr(index, "MOST_UNIT", 1 << 14)
    monkeypatch.setattr(source_module, "CACHE_BYTES", 0)
    monkeypatch.setattr(content, "_SLICE", 64)
    monkeypatch.setattr(content, "_ZSTD_SLICE", 64)
    monkeypatch.setattr("feedline.datasets.formats.lines.format.SECTION_BYTES", 300)


class TestJSONLines(SourceContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.path = write(tmp_path / "a.jsonl", lines_of(rows(COUNT)))

    def make_source(self, **options: Any) -> JSONLines:
        return JSONLines(self.path, ("number", "text"), cache=False, **options)

    def samples(self) -> list[Any]:
        return [(row["number"], row["text"]) for row in rows(COUNT)]


class TestTextLinesOfSeveralFiles(SourceContract):
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "data"
        self.folder.mkdir()
        write(self.folder / "part-9.txt.gz", "".join(f"ä {i}\n" for i in range(20)).encode(), is_split=True)
        write(self.folder / "part-10.txt", "".join(f"ä {i}\r\n" for i in range(20, 40)).encode()[:-2])
        write(self.folder / "part-11.txt.zst", "".join(f"ä {i}\n" for i in range(40, 60)).encode())
        (self.folder / "_left.txt").write_text("not this one\n")

    def make_source(self, **options: Any) -> TextLines:
        return TextLines(self.folder, cache=False, **options)

    def samples(self) -> list[Any]:
        return [f"ä {i}" for i in range(60)]


# -- the same samples in every way of reading ---


@settings(deadline=None, max_examples=examples(120))
@given(
    values=st.lists(st.tuples(VALUES, BETWEEN), max_size=25),
    form=st.sampled_from(FORMS),
    cuts=st.lists(st.integers(0, 1 << 20), max_size=6),
    has_mark=st.booleans(),
    has_end=st.booleans(),
    seed=st.integers(0, 99),
)
def test_json_lines_equal_the_results_of_json_loads(
    values: list[tuple[Any, str]],
    form: tuple[str, bool],
    cuts: list[int],
    has_mark: bool,
    has_end: bool,
    seed: int,
) -> None:
    text = "".join(json.dumps(value, ensure_ascii=seed % 2 == 0) + between for value, between in values)
    content = ("\ufeff" * has_mark + (text if has_end else text.rstrip())).encode("utf-8", "surrogatepass")
    expected = [json.loads(json.dumps(value)) for value, _ in values]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"a.jsonl{form[0]}")
        path.write_bytes(packed(content, form[0], cuts if form[1] else ()))
        dataset = JSONLines(path, cache=False)
        check_all_ways(dataset, expected, seed)


@settings(deadline=None, max_examples=examples(80))
@given(
    lines=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\ufeff")), max_size=25),
    form=st.sampled_from(FORMS),
    cuts=st.lists(st.integers(0, 1 << 20), max_size=6),
    seed=st.integers(0, 99),
)
@example(lines=["a\0b", "\0"], form=("", False), cuts=[], seed=1)
def test_text_lines_equal_the_lines_of_the_file(
    lines: list[str], form: tuple[str, bool], cuts: list[int], seed: int
) -> None:
    content = "".join(f"{line}\n" for line in lines).encode()
    expected = [line.removesuffix("\r") for line in lines]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"a.txt{form[0]}")
        path.write_bytes(packed(content, form[0], cuts if form[1] else ()))
        check_all_ways(TextLines(path, cache=False), expected, seed)


def check_all_ways(dataset: Any, expected: list[Any], seed: int) -> None:
    assert len(dataset) == len(expected)
    order = random.Random(seed).sample(range(len(expected)), len(expected))
    assert_same(dataset.__getitems__(order), [expected[i] for i in order])
    assert_same([dataset[i] for i in order[:5]], [expected[i] for i in order[:5]])
    assert_same(list(dataset.stream()), expected)
    assert_same(all_of(dataset.stream()), expected)
    shuffled = list(dataset.stream(shuffle=True, seed=seed, window=2))
    assert sorted(map(repr, shuffled)) == sorted(map(repr, expected))
    assert_same(all_of(dataset.stream(shuffle=True, seed=seed, window=2)), shuffled)
    dataset.close()


# -- fields, options and names ---


def test_fields(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines_of(rows(3)))
    for fields, expected in (
        ("number", 1),
        (("text", "number"), ("ä1", 1)),
        (("number",), (1,)),
        (["number"], {"number": 1}),
        ({"n": "number", "m": "number"}, {"n": 1, "m": 1}),
        (None, rows(3)[1]),
    ):
        assert JSONLines(path, fields)[1] == expected
    assert list(JSONLines(path, {"n": "number"}, transform=lambda row: row["n"] * 2).stream()) == [0, 2, 4]
    for wrong in (["a", "a"], 3, (), {"x": ["a", "b"]}):
        with pytest.raises(BadOption, match="fields="):
            JSONLines(path, wrong)  # type: ignore[arg-type]


def test_the_error_names_a_line_that_lacks_a_field(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n\n{"b": 2}\n[3]\n')
    dataset = JSONLines(path, "a")
    stream = iter(dataset.stream())
    assert dataset[0] == next(stream) == 1
    for place, line in ((1, 3), (2, 4)):
        for read in (functools.partial(next, stream), functools.partial(dataset.__getitem__, place)):
            with pytest.raises(SourceError, match=rf"a\.jsonl, line {line}") as caught:
                read()
            assert not isinstance(caught.value, CorruptSource)


@pytest.mark.parametrize(
    "options", [{"cache": 3}, {"part_bytes": 0}, {"max_line_bytes": "many"}, {"transform": 3}, {"remote": []}]
)
def test_bad_options_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match=next(iter(options))):
        JSONLines("a.jsonl", **options)


def test_bad_paths_and_options_of_streams_are_rejected(tmp_path: Path) -> None:
    for paths in ([], 3, [3], b"a.jsonl"):
        with pytest.raises(BadOption, match="paths="):
            JSONLines(paths)  # type: ignore[arg-type]
    stream: Any = JSONLines(write(tmp_path / "a.jsonl", b"1\n")).stream
    for options in ({"shuffle": 1}, {"shuffle": True, "window": 0}, {"window": 0}):
        with pytest.raises(BadOption):
            stream(**options)


def test_missing_files(tmp_path: Path) -> None:
    for missing in (tmp_path / "none.jsonl", f"{tmp_path}/*.jsonl", tmp_path):
        with pytest.raises(SourceError, match=str(tmp_path)):
            len(JSONLines(missing))
    stream = JSONLines(write(tmp_path / "a.jsonl", b"1\n2\n")).stream()
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(SourceError, match=r"a\.jsonl"):
        list(stream)


def test_reprs(tmp_path: Path) -> None:
    dataset = JSONLines(write(tmp_path / "a.jsonl", lines_of(rows(3))), ["number", "text"])
    assert "a.jsonl" in repr(dataset)
    assert "{'number': number, 'text': text}" in repr(dataset.stream())
    assert len(dataset) == 3
    assert repr(dataset) == "JSONLines(3 samples of {'number': number, 'text': text})"
    assert repr(dataset.stream(shuffle=True)).startswith("BlockStream(JSONLines(3 samples")


def test_empty_files(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", b"")
    write(tmp_path / "b.jsonl", b"\n \r\n")
    write(tmp_path / "c.jsonl.gz", b"")
    write(tmp_path / "d.jsonl", b"\xef\xbb\xbf")
    (tmp_path / "e.jsonl").write_bytes(b"7")
    check_all_ways(JSONLines(tmp_path), [7], 0)
    check_all_ways(JSONLines([tmp_path / "a.jsonl", tmp_path / "b.jsonl"]), [], 0)
    check_all_ways(TextLines([tmp_path / "b.jsonl", tmp_path / "d.jsonl"]), ["", " "], 0)


# -- damage ---


def ways(dataset: Any, place: int, stream: Iterator[Any], take: Callable[[], Any]) -> list[Callable[[], Any]]:
    """Return functions that each read a sample in a different way."""
    return [lambda: dataset[place], lambda: next(stream), take]


def test_the_error_names_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n\n{"a": \n"\xff"\n1 2\n"a\tb"\n' + b"[" * 5000 + b'\n{"a": 2}')
    dataset = JSONLines(path)
    assert len(dataset) == 7
    stream, several = iter(dataset.stream()), iter(dataset.stream())
    assert dataset[0] == next(stream) == {"a": 1}
    assert several.take(5) == [{"a": 1}]
    for place, line in enumerate(range(3, 8), 1):
        for read in ways(dataset, place, stream, lambda: several.take(5)):
            with pytest.raises(CorruptSource, match=rf"line {line}"):
                read()
    assert dataset[6] == next(stream) == {"a": 2}
    assert several.take(5) == [{"a": 2}]
    assert several.take(5) == []


@pytest.mark.parametrize("way", ["map", "stream", "shuffled"])
def test_a_bad_line_costs_one_sample(tmp_path: Path, way: str) -> None:
    lines = [b"%d\n" % number for number in range(50)]
    lines[17] = b"1-7\n"
    lines[40] = b"\xff\n"
    path = write(tmp_path / "a.jsonl.gz", b"".join(lines), is_split=True)
    dataset = JSONLines(path)
    source: Any = {"map": dataset, "stream": dataset.stream(), "shuffled": dataset.stream(shuffle=True)}[way]
    loader = feedline.Loader(source, 8, workers=2, engine="thread", on_error="skip")
    found = sorted(n for batch in loader for n in batch.tolist())
    assert found == [number for number in range(50) if number not in (17, 40)]


@settings(deadline=None, max_examples=examples(150))
@given(form=st.sampled_from(FORMS), place=st.integers(0, 1 << 20), byte=st.integers(1, 255), is_cut=st.booleans())
def test_damage_gives_an_error_or_a_different_line(form: tuple[str, bool], place: int, byte: int, is_cut: bool) -> None:
    """Compressed files have checksums. In plain files, the undamaged lines are unchanged."""
    content = lines_of(rows(40))
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder, f"a.jsonl{form[0]}"), content, is_split=form[1])
        damaged = bytearray(path.read_bytes())
        place %= len(damaged)
        damaged[place] ^= byte
        path.write_bytes(damaged[:place] if is_cut else damaged)
        dataset = JSONLines(path, cache=False)
        found, errors = [], 0
        stream = iter(dataset.stream())
        while True:
            try:
                found.append(next(stream))
            except StopIteration:
                break
            except CorruptSource as exc:
                assert str(path) in str(exc)  # noqa: PT017
                errors += 1
        stream = iter(dataset.stream())
        again = 0
        while again < len(found) + errors:
            assert stream.skip(1) == 1, "a failure counts as one sample"
            again += 1
        assert stream.skip(1) == 0
        if packing_of(path.read_bytes()[:8]) is None:
            missing = [row for row in rows(40) if row not in found]
            assert len(missing) <= (40 if form[0] or is_cut else 2)
        elif errors:
            with pytest.raises(CorruptSource):
                list(dataset)  # its last line may be cut off where a unit ends
        else:
            assert is_cut or found == rows(40)
            assert found == rows(40)[: len(found)]
        dataset.close()


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_lines_that_are_too_long_are_rejected(tmp_path: Path, ending: str) -> None:
    content = b"a" * 100 + b"\n" + b"b" * 101 + b"\nc\n" + b"\0" * 5000 + b"\nd\n" + b"e" * 5000
    path = write(tmp_path / f"a.txt{ending}", content)
    dataset = TextLines(path, max_line_bytes=100)
    assert len(dataset) == 6
    stream, batches = iter(dataset.stream()), iter(dataset.stream())
    for place, expected in enumerate(["a" * 100, None, "c", None, "d", None]):
        for read in ways(dataset, place, stream, lambda: batches.take(1)[0]):
            if expected is not None:
                assert read() == expected
            else:
                with pytest.raises(CorruptSource, match=rf"line {place + 1}: it is longer than 100 bytes"):
                    read()
    assert list(stream) == batches.take(3) == []


# -- files that change, the index, copies ---


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_file_that_changes_while_in_use_is_detected(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"a.jsonl{ending}", lines_of(rows(COUNT)))
    dataset = JSONLines(path, "number", cache=tmp_path / "cache")
    copy = pickle.loads(pickle.dumps(dataset))
    assert dataset[7] == 7
    write(path, lines_of(rows(COUNT + 1)))
    touch_later(path)
    with pytest.raises(SourceChanged, match=r"has changed since its index was made"):
        dataset[50]
    assert len(copy) == COUNT + 1
    again = JSONLines(path, "number", cache=tmp_path / "cache")
    assert len(again) == COUNT + 1, "an outdated index is not used"
    assert again[COUNT] == COUNT


def test_a_stream_in_order_needs_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl", lines_of(rows(COUNT)))
    monkeypatch.setattr(index, "scan", lambda blob: pytest.fail("an index was made"))
    stream = JSONLines(path, "number", cache=False).stream()
    assert [n for batch in feedline.Loader(stream, 8) for n in batch.tolist()] == list(range(COUNT))


# -- processes and threads ---


def test_pickling_keeps_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (ending, is_split) in enumerate(FORMS):
        values = [{"number": number * 20 + i} for i in range(20)]
        write(tmp_path / f"{number}.jsonl{ending}", lines_of(values), is_split=is_split)
    dataset, count = JSONLines(tmp_path, "number"), 20 * len(FORMS)
    assert len(dataset) == count
    copy = pickle.loads(pickle.dumps(dataset))
    monkeypatch.setattr(index, "scan", lambda blob: pytest.fail("an index was made"))
    assert list(copy) == list(range(count))
    assert list(pickle.loads(pickle.dumps(dataset.stream()))) == list(range(count))
    copy.close()
    dataset.close()


@pytest.mark.parametrize("size", [500, 200_000])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_long_blank_line_is_no_sample(tmp_path: Path, ending: str, size: int) -> None:
    path = write(tmp_path / f"a.jsonl{ending}", b"0\n" + b" " * size + b"\n2\n" + b" " * size)
    dataset = JSONLines(path, max_line_bytes=100, cache=tmp_path / "cache")
    assert [*dataset] == [*dataset.stream()] == [0, 2]
