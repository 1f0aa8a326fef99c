"""Files as samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.datasets import FileDataset
from feedline.datasets.derived.cache.fingerprint import fingerprint
from feedline.errors import BadOption, CorruptSource, SourceError
from feedline.testing.asserting import assert_same
from tests.datasets.contract import SourceContract

COUNT = 24


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(
        tmp_path / "root",
        {"cat/1.txt": b"meow", "dog/b/2.txt": b"woof", "dog/a.txt": b"wau", "3.TXT": b"", "x.md": b"#"},
    )


class TestContract(SourceContract):
    @pytest.fixture(autouse=True)
    def store(self, tmp_path: Path) -> None:
        self.root = write(
            tmp_path, {f"{number % 3}/{number:02d}.bin": bytes([number]) * number for number in range(COUNT)}
        )

    def make_source(self, **options: Any) -> FileDataset:
        return FileDataset(self.root, labels="folder", **options)

    def samples(self) -> list[Any]:
        return [
            {"data": bytes([number]) * number, "label": label, "path": f"{self.root}/{label}/{number:02d}.bin"}
            for label in range(3)
            for number in range(label, COUNT, 3)
        ]


def test_a_folder_and_its_fields(root: Path) -> None:
    dataset = FileDataset(root, extensions=".txt", read="text")
    assert [sample["data"] for sample in dataset] == ["", "meow", "wau", "woof"]
    assert dataset[1] == {"data": "meow", "path": str(root / "cat/1.txt")}
    assert FileDataset(root, extensions=("md",), fields=("path", "data"))[0] == (str(root / "x.md"), b"#")
    assert len(FileDataset(root)) == 5
    assert (dataset.targets, dataset.classes, dataset.class_to_idx) == (None, None, None)
    assert dataset.samples[1] == (str(root / "cat/1.txt"), None)
    with pytest.raises(BadOption, match="'label'"):
        FileDataset(root, fields="label")


def test_a_list_of_paths_keeps_its_order(root: Path) -> None:
    paths = [root / "dog/a.txt", root / "cat/1.txt", root / "dog/a.txt"]
    dataset = FileDataset(paths, fields="data")
    assert list(dataset) == [b"wau", b"meow", b"wau"]
    assert [path for path, _ in dataset.samples] == list(map(str, paths))
    assert FileDataset(iter(paths), labels="folder").classes == ["cat", "dog"]
    chosen = FileDataset(paths, labels=[5, 6, 7], extensions="1.txt", fields=("data", "label"))
    assert list(chosen) == [(b"meow", 6)]


def test_labels_from_a_function(root: Path) -> None:
    dataset = FileDataset(root, extensions=".txt", labels=lambda path: Path(path).stem, fields="label")
    assert dataset.classes == ["1", "2", "3", "a"]
    assert list(dataset) == [2, 0, 3, 1]
    assert dataset.targets is not None
    assert dataset.targets.dtype == np.int64
    assert list(FileDataset(root, labels=lambda path: len(path) / 2, fields="label")) == [
        len(path) / 2 for path, _ in FileDataset(root).samples
    ]
    assert list(FileDataset(root, labels=lambda path: 255, fields="label")) == [255] * 5
    assert list(FileDataset(root, labels=lambda path: -1, fields="label")) == [-1] * 5


@pytest.mark.parametrize(
    ("paths", "labels", "named"),
    [
        (None, lambda path: None, r"None for \S+3\.TXT"),
        (None, lambda path: Path(path).suffix.replace(".md", ""), r"'' for \S+x\.md"),
        (["a/a", "b"], "folder", "'' for b"),
        (["a", "b"], ["1", " "], "' ' for b"),
        (None, [1, 2, 3, 4, 5], "files of a folder"),
        (["a", "b", "c"], [1, 2], "2 labels for 3 paths"),
        (["a"], "labels.csv", "needs a folder"),
    ],
)
def test_labels_that_are_rejected(root: Path, paths: Any, labels: Any, named: str) -> None:
    with pytest.raises(BadOption, match=named):
        FileDataset(paths or root, labels=labels)


def table(root: Path, text: str, name: str = "labels.csv") -> Path:
    (root.parent / name).write_text(text, encoding="utf-8")
    return root.parent / name


def test_labels_from_a_table(root: Path) -> None:
    lines = f"file,label\ncat/1.txt,x\n./dog/a.txt,y\n{root}/dog/b/2.txt,x\n3.TXT,z\n"
    dataset = FileDataset(root, extensions=".txt", labels=table(root, lines), fields=("path", "label"))
    assert dataset.classes == ["x", "y", "z"]
    assert [label for _, label in dataset] == [2, 0, 1, 0]
    lines = 'id;n,label,"who, what",file\n1,10,"x, y",cat/1.txt\n2,20,z,dog/a.txt\n\n'
    chosen = FileDataset(root, labels=table(root, lines), unlabelled="skip", fields=("data", "label", "path"))
    assert list(chosen) == [(b"meow", 10, str(root / "cat/1.txt")), (b"wau", 20, str(root / "dog/a.txt"))]
    assert chosen.classes is None
    assert chosen.targets is not None
    assert chosen.targets.tolist() == [10, 20]
    floats = FileDataset(
        root, labels=table(root, "\ufefflabel,file\n0.5,cat/1.txt\n1,3.TXT\n"), unlabelled="skip", fields="label"
    )
    assert list(floats) == [1.0, 0.5]


def test_numbers_stay_numbers_beside_an_empty_label(tmp_path: Path) -> None:
    root = write(tmp_path / "root", {f"{number}.bin": b"" for number in (1, 2, 10, 20)})
    labels = table(root, "file,label\n1.bin,1\n2.bin,2\n10.bin,10\n20.bin,\n")
    with pytest.raises(SourceError, match=r"line 5, has no label for '20\.bin'"):
        FileDataset(root, labels=labels)
    dataset = FileDataset(root, labels=labels, unlabelled="skip", fields=("path", "label"))
    assert [(Path(path).name, label) for path, label in dataset] == [("1.bin", 1), ("10.bin", 10), ("2.bin", 2)]
    assert (dataset.classes, dataset.left_out) == (None, 1)


@pytest.mark.parametrize(
    ("text", "kind", "named"),
    [
        ("", CorruptSource, "'file' and 'label'"),
        ("name,label\na,1\n", CorruptSource, "'name', 'label'"),
        ("file,label\ncat/1.txt,1\nx.md,2\nx.md,3\n", CorruptSource, "'x.md' twice, in lines 3 and 4"),
        ("file,label\ncat/1.txt,1\ncat/9.txt,1\n", CorruptSource, "line 3, names 'cat/9.txt', but 1 of its 2 files"),
        ("file,label\ncat/1.txt,1\nx.md\n", CorruptSource, "line 3"),
        ("file,label\ncat/1.txt,1\nx.md, \n3.TXT,\n", SourceError, "line 3.*'x.md'.*2 of 3 "),
        ("file;label\ncat/1.txt;1\n", CorruptSource, "'file;label'"),
        ("file,label\ncat/1.txt,1\n", SourceError, "'3.TXT', 'x.md', .*unlabelled"),
    ],
)
def test_label_tables_that_do_not_match_the_files(root: Path, text: str, kind: type[Exception], named: str) -> None:
    with pytest.raises(kind, match=named):
        FileDataset(root, labels=table(root, text))


def test_label_tables_that_cannot_be_read(root: Path) -> None:
    (root.parent / "x.csv").write_bytes(b"file,label\n\xff\xfe,1\n")
    for labels, named in (
        (root / "nothing.csv", r"nothing\.csv"),
        ("folders", "'folders'"),
        (root.parent / "x.csv", "UTF-8"),
    ):
        with pytest.raises(SourceError, match=named):
            FileDataset(root, labels=labels)


def test_reading_arrays_and_with_a_function(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    dataset = FileDataset(tmp_path, read="npy", fields="data")
    assert_same(dataset[0], np.arange(3))
    dataset[0][:] = 0
    assert FileDataset(tmp_path, read=len, fields="data")[0] == len(str(tmp_path / "a.npy"))
    np.save(tmp_path / "b.npy", np.array([object()]), allow_pickle=True)
    dataset = FileDataset(tmp_path, read="npy", fields="data")
    for content in ((tmp_path / "b.npy").read_bytes(), b"", b"nothing", (tmp_path / "a.npy").read_bytes()[:-1]):
        (tmp_path / "b.npy").write_bytes(content)
        with pytest.raises(CorruptSource, match=r"b\.npy"):
            dataset[1]


def test_errors_name_the_file(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"\xff"})
    with pytest.raises(CorruptSource, match=f"{tmp_path}/a is not text"):
        FileDataset(tmp_path, read="text")[0]
    with pytest.raises(ZeroDivisionError) as caught:
        FileDataset(tmp_path, read=lambda path: 1 / 0)[0]
    assert f"{tmp_path}/a" in str(getattr(caught.value, "__notes__", ""))
    dataset = FileDataset(tmp_path)
    (tmp_path / "a").unlink()
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/a"):
        dataset[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"read": "jpeg"}, "read='jpeg'"),
        ({"extensions": ()}, "extensions"),
        ({"unlabelled": "drop"}, "unlabelled"),
        ({"fields": "image"}, "'image'"),
        ({"cache": 3}, "cache"),
    ],
)
def test_bad_options_are_rejected(root: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        FileDataset(root, **options)


def test_rejects_folders_and_lists_without_files(root: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="empty has no files, so"):
        FileDataset(tmp_path / "empty")
    with pytest.raises(SourceError, match=r"that end in \.jpg or \.png"):
        FileDataset(root, extensions=[".png", ".JPG"])
    with pytest.raises(SourceError, match="The list has no files"):
        FileDataset([])


def test_files_that_are_left_out_are_counted(root: Path, tmp_path: Path) -> None:
    everything = FileDataset(root)
    assert everything.left_out == 0
    assert repr(everything) == "FileDataset(5 samples of {'data': file, 'path': str})"
    for cache in (False, tmp_path / "cache", tmp_path / "cache"):
        assert FileDataset(root, extensions=".md", cache=cache).left_out == 4
    assert FileDataset(root, extensions=".txt", labels="folder").left_out == 2  # one of them is not in a directory
    listed = FileDataset(["a.txt", "b.md"], extensions=".txt", fields="data")
    assert repr(listed) == "FileDataset(1 samples of file, 1 other file left out)"
    with pytest.raises(SourceError, match=r"no files that end in \.jpg \(5 others were left out\)"):
        FileDataset(root, extensions=".jpg")


def test_a_cache_stays_valid_when_another_file_is_left_out(root: Path) -> None:
    before = fingerprint(FileDataset(root, extensions=".txt"))
    (root / "y.md").write_bytes(b"")
    dataset = FileDataset(root, extensions=".txt")
    assert dataset.left_out == 2
    assert fingerprint(dataset) == before


def test_samples_look_like_torchvisions(root: Path) -> None:
    samples = FileDataset(root, labels="folder", extensions=".txt").samples
    expected = [(str(root / "cat/1.txt"), 0), (str(root / "dog/a.txt"), 1), (str(root / "dog/b/2.txt"), 1)]
    assert list(samples) == samples[:] == expected
    assert samples[-1] == expected[-1]
    assert "3" in repr(samples)
    with pytest.raises(IndexError, match="3 samples"):
        samples[3]


def test_a_large_listing_takes_a_few_bytes_per_file(tmp_path: Path) -> None:
    paths = [f"/data/images/train/class-{number // 1000:04d}/image-{number:08d}.jpg" for number in range(20_000)]
    dataset = FileDataset(paths, labels="folder")
    assert dataset._paths.nbytes < 20_000 * 12
    assert dataset.path_of(12_345) == paths[12_345]
