from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline
from feedline.datasets import JSONLines, TextLines, open_dataset
from feedline.datasets.formats.lines import dataset as dataset_module
from feedline.datasets.formats.lines import index
from feedline.datasets.formats.lines import source as source_module
from feedline.datasets.storage import content
from feedline.datasets.storage.content import packing_of
from feedline.errors import BadOption, CorruptSource, DataWarning, SourceChanged, SourceError
from feedline.testing.asserting import assert_same
from tests.datasets.contract import SourceContract
from tests.datasets.formats.lines.writing import (
    BETWEEN,
    FORMS,
    PACKS,
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


@pytest.mark.sample(3)
@pytest.mark.parametrize(("ending", "is_split"), FORMS)
def test_batches_of_a_loader(tmp_path: Path, ending: str, is_split: bool) -> None:
    path = write(tmp_path / f"a.jsonl{ending}", lines_of(rows(COUNT)), is_split=is_split)
    dataset = JSONLines(path, "number")
    for workers in (0, 2):
        for source in (dataset, dataset.stream(), dataset.stream(shuffle=True)):
            found = [n for batch in feedline.Loader(source, 7, workers=workers) for n in batch.tolist()]
            assert (sorted(found) if source is not dataset else found) == list(range(COUNT))
    found = [n for batch in feedline.Loader(dataset.stream(), 7, workers=2) for n in batch.tolist()]
    assert found == list(range(COUNT)), "a stream must keep the order"


# -- fields, options and names ---


def test_fields(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines_of(rows(3)))
    assert JSONLines(path, "number")[1] == 1
    assert JSONLines(path, ("text", "number"))[1] == ("ä1", 1)
    assert JSONLines(path, ("number",))[1] == (1,)
    assert JSONLines(path, ["number"])[1] == {"number": 1}
    assert JSONLines(path, {"n": "number", "m": "number"})[2] == {"n": 2, "m": 2}
    assert JSONLines(path)[1] == rows(3)[1]
    assert list(JSONLines(path, {"n": "number"}, transform=lambda row: row["n"] * 2).stream()) == [0, 2, 4]
    for wrong in (["a", "a"], 3, (), {"x": ["a", "b"]}):
        with pytest.raises(BadOption, match="fields="):
            JSONLines(path, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_error_names_a_line_that_lacks_a_field(tmp_path: Path, is_streamed: bool) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n\n{"b": 2}\n[3]\n')
    dataset = JSONLines(path, "a")
    stream, places = iter(dataset.stream()), iter(range(3))

    def one() -> Any:
        return next(stream) if is_streamed else dataset[next(places)]

    assert one() == 1
    with pytest.raises(SourceError, match=r"a\.jsonl, line 3: it has no field 'a', but 'b'\.") as caught:
        one()
    assert not isinstance(caught.value, CorruptSource)
    with pytest.raises(SourceError, match=r"line 4: it holds a JSON array, and fields= selects"):
        one()


def test_bad_options_are_rejected(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b"1\n")
    wrong: list[dict[str, Any]] = [
        {"cache": 3},
        {"cache": 3},
        {"part_bytes": 0},
        {"max_line_bytes": "many"},
        {"transform": 3},
        {"remote": []},
    ]
    for options in wrong:
        with pytest.raises(BadOption, match=next(iter(options))):
            JSONLines(path, **options)
    for paths in ([], 3, [3], b"a.jsonl"):
        with pytest.raises(BadOption, match="paths= names no files"):
            JSONLines(paths)  # type: ignore[arg-type]
    stream: Any = JSONLines(path).stream
    for options in ({"shuffle": 1}, {"shuffle": True, "window": 0}, {"window": 0}):
        with pytest.raises(BadOption):
            stream(**options)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be opened"):
        len(JSONLines(tmp_path / "none.jsonl"))
    with pytest.raises(SourceError, match="No file matches the pattern"):
        len(JSONLines(f"{tmp_path}/*.jsonl"))
    with pytest.raises(SourceError, match=r"has no files that end in \.jsonl or"):
        list(JSONLines(tmp_path).stream())
    dataset = JSONLines(write(tmp_path / "a.jsonl", b"1\n2\n"))
    stream = dataset.stream()
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(SourceError, match="cannot be opened"):
        list(stream)


def test_open_dataset(tmp_path: Path) -> None:
    dataset: Any
    for name, kind, expected in (
        *((f"a.jsonl{ending}", JSONLines, 1) for ending in PACKS),
        ("a.ndjson", JSONLines, 1),
        *((f"a.txt{ending}", TextLines, "1") for ending in PACKS),
    ):
        dataset = open_dataset(write(tmp_path / name, b"1\n"))
        assert type(dataset).__name__ == kind.__name__
        assert list(dataset) == [expected]
        dataset.close()
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(3):
        write(folder / f"{number}.jsonl.gz", b"%d\n" % number)
    (folder / "README.md").write_text("what this is")
    assert list(open_dataset(folder)) == [0, 1, 2]
    assert list(open_dataset(f"{folder}/*.jsonl.gz")) == [0, 1, 2]


def test_reprs(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines_of(rows(3)))
    dataset = JSONLines(path, ["number", "text"])
    assert repr(dataset) == f"JSONLines({str(path)!r}, each sample {{'number': number, 'text': text}}, not read yet)"
    assert repr(dataset.stream()) == "CommonShardStream(1 files of lines, each sample {'number': number, 'text': text})"
    assert len(dataset) == 3
    assert repr(dataset) == "JSONLines(3 samples of {'number': number, 'text': text})"
    assert repr(TextLines([path, path])) == "TextLines(2 paths, each sample text, not read yet)"
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
    messages = [
        r"line 3: it is not valid JSON: Expecting value.* The line begins with '\{\"a\": '\.",
        r"line 4: byte 2 of the line \(0xff\) is not UTF-8",
        r"line 5: it is not valid JSON: Extra data",
        r"line 6: it is not valid JSON: Invalid control character",
        r"line 7: it is not valid JSON: .* and more\.",
    ]
    dataset = JSONLines(path)
    assert len(dataset) == 7
    stream = iter(dataset.stream())
    shuffled = iter(dataset.stream())
    assert dataset[0] == next(stream) == {"a": 1}
    assert shuffled.take(5) == [{"a": 1}]
    for place, message in enumerate(messages, 1):
        for read in ways(dataset, place, stream, lambda: shuffled.take(5)):
            with pytest.raises(CorruptSource, match=message):
                read()
    assert dataset[6] == next(stream) == {"a": 2}
    assert shuffled.take(5) == [{"a": 2}]
    assert shuffled.take(5) == []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", ["map", "stream", "shuffled"])
def test_a_bad_line_costs_one_sample(tmp_path: Path, way: str, workers: int) -> None:
    lines = [b"%d\n" % number for number in range(50)]
    lines[17] = b"1-7\n"
    lines[40] = b"\xff\n"
    path = write(tmp_path / "a.jsonl.gz", b"".join(lines), is_split=True)
    dataset = JSONLines(path)
    source: Any = {"map": dataset, "stream": dataset.stream(), "shuffled": dataset.stream(shuffle=True)}[way]
    loader = feedline.Loader(source, 8, workers=workers, on_error="skip")
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


def test_lines_before_the_damage_are_delivered(tmp_path: Path) -> None:
    content = lines_of(range(3000))
    whole = gzip.compress(content)
    first, second = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl"
    first.write_bytes(whole[: len(whole) // 2])
    second.write_text("-1\n-2\n")
    stream = JSONLines([first, second]).stream()
    found, iterator = list[int](), iter(stream)
    with pytest.raises(CorruptSource, match=r"a\.jsonl\.gz cannot be unpacked: it ends within a compressed stream"):
        found.extend(iterator)
    assert found == list(range(len(found)))
    assert len(found) > 1000
    assert iterator.take(50) == [-1, -2], "the next file follows"
    for workers in (0, 2):
        loader = feedline.Loader(stream, 16, workers=workers, on_error="skip")
        assert [n for batch in loader for n in batch.tolist()] == [*found, -1, -2]


def test_bytes_after_compressed_content(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"1\n") + b"\0" * 100)
    assert list(JSONLines(path, cache=False).stream()) == [1]
    path.write_bytes(gzip.compress(b"1\n") + b"rest")
    stream = iter(JSONLines(path, cache=False).stream())
    assert next(stream) == 1
    with pytest.raises(CorruptSource, match="something follows what was compressed"):
        next(stream)


def test_empty_frames_are_skipped(tmp_path: Path) -> None:
    """Seekable zstd files end with such a frame, and pzstd writes one before every frame."""
    skippable = b"\x5e\x2a\x4d\x18" + (9).to_bytes(4, "little") + b"123456789"
    content = lines_of(range(500))
    frames = [PACKS[".zst"](content[start : start + 300]) for start in range(0, len(content), 300)]
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(b"".join(skippable + frame for frame in frames) + skippable)
    check_all_ways(JSONLines(path, cache=False), list(range(500)), 3)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorruptSource, match="ends within a compressed stream"):
        len(JSONLines(path, cache=False))


def test_utf_16_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("hello\n", encoding="utf-16")
    with pytest.raises(CorruptSource, match=r"a\.txt is in UTF-16"):
        len(TextLines(path))
    with pytest.raises(CorruptSource, match="iconv"):
        list(TextLines(path).stream())


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


def test_zero_bytes_are_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"a\0b\n\0\n")
    check_all_ways(TextLines(path), ["a\0b", "\0"], 1)


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


def test_the_index_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl.gz", lines_of(rows(COUNT)), is_split=True)
    folder = tmp_path / "cache"
    assert len(JSONLines(path, cache=folder)) == COUNT
    (file,) = folder.glob("*.line-index")
    scanned: list[str] = []
    scan = index.scan

    def noted(blob: Any) -> Any:
        scanned.append(blob.name)
        return scan(blob)

    monkeypatch.setattr(index, "scan", noted)
    assert list(JSONLines(path, "number", cache=folder)) == list(range(COUNT))
    assert list(TextLines(path, cache=folder))[3] == lines_of(rows(COUNT)).decode().splitlines()[3]
    assert not scanned, "one index serves both"
    stored = bytearray(file.read_bytes())
    stored[len(stored) // 2] ^= 1
    file.write_bytes(stored)
    with pytest.warns(DataWarning, match="is damaged"):
        assert list(JSONLines(path, "number", cache=folder)) == list(range(COUNT))
    assert scanned == [str(path)]


def test_a_stream_in_order_needs_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl", lines_of(rows(COUNT)))
    monkeypatch.setattr(index, "scan", lambda blob: pytest.fail("an index was made"))
    stream = JSONLines(path, "number", cache=False).stream()
    assert [n for batch in feedline.Loader(stream, 8) for n in batch.tolist()] == list(range(COUNT))


def test_nothing_is_opened_before_the_first_use(tmp_path: Path) -> None:
    for dataset in (JSONLines(tmp_path / "none.jsonl"), TextLines("s3://bucket/none.txt")):
        pickle.loads(pickle.dumps(dataset)).close()
        assert "none" in repr(dataset)


# -- processes and threads ---


@pytest.fixture
def many(tmp_path: Path) -> Iterator[JSONLines]:
    for number, (ending, is_split) in enumerate(FORMS):
        values = [{"number": number * 20 + i} for i in range(20)]
        write(tmp_path / f"{number}.jsonl{ending}", lines_of(values), is_split=is_split)
    dataset = JSONLines(tmp_path, "number")
    yield dataset
    dataset.close()


def test_a_forked_process_reads_after_its_parent_did(many: JSONLines) -> None:
    count = 20 * len(FORMS)
    assert many.__getitems__(range(0, count, 3)) == list(range(0, count, 3))
    pid = os.fork()
    if pid == 0:
        try:
            is_same = many.__getitems__(range(1, count, 3)) == list(range(1, count, 3))
            is_same = is_same and list(many.stream()) == list(range(count))
            os._exit(0 if is_same else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert many.__getitems__(range(2, count, 3)) == list(range(2, count, 3))


def test_pickling_keeps_the_index(many: JSONLines, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(many) == 20 * len(FORMS)
    copy = pickle.loads(pickle.dumps(many))
    monkeypatch.setattr(index, "scan", lambda blob: pytest.fail("an index was made"))
    assert list(copy) == list(range(20 * len(FORMS)))
    stream = pickle.loads(pickle.dumps(many.stream()))
    assert list(stream) == list(range(20 * len(FORMS)))
    copy.close()


def test_options_are_documented() -> None:
    for kind in (dataset_module.JSONLines, dataset_module.TextLines):
        names = [name for name in kind.__init__.__annotations__ if name != "return"]
        assert [name for name in names if f"\n        {name}: " not in str(kind.__doc__)] == []


def test_a_long_line_of_spaces_is_an_error_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b"0\n" + b" " * 500 + b"1\n2\n")
    dataset = JSONLines(path, max_line_bytes=100, cache=False)
    for source in (dataset, dataset.stream()):
        loader = feedline.Loader(source, 1, on_error="skip")
        assert [int(batch[0]) for batch in loader] == [0, 2]
        assert "longer than 100 bytes" in str(loader.faults[0].message)


@pytest.mark.parametrize("size", [500, 200_000, 2_500_000])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_long_blank_line_is_no_sample(tmp_path: Path, ending: str, size: int) -> None:
    path = write(tmp_path / f"a.jsonl{ending}", b"0\n" + b" " * size + b"\n2\n" + b" " * size)
    dataset = JSONLines(path, max_line_bytes=100, cache=tmp_path / "cache")
    assert [*dataset] == [*dataset.stream()] == [0, 2]
