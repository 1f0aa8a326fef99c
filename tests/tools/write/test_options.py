from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.framework.checksums import sealed
from feedline.errors import BadOption
from feedline.tools.write.options import Options, as_fields, as_names, as_path, check_apart, check_place, is_name
from feedline.tools.write.writers.contract import FORMATS

pytestmark = pytest.mark.sample(5)


@pytest.mark.parametrize(
    ("given_", "fields"),
    [
        (None, None),
        (["a", "b"], (("a", "a"), ("b", "b"))),
        (("a",), (("a", "a"),)),
        ({"new": "old", "b": "b"}, (("new", "old"), ("b", "b"))),
        ({"x": "group/x", "key": "__key__"}, (("x", "group/x"), ("key", "__key__"))),
        (iter(["a"]), (("a", "a"),)),
    ],
)
def test_fields_are_normalised(given_: Any, fields: Any) -> None:
    assert as_fields(given_) == fields


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ("label", "not a list of names"),
        (b"label", "not a list of names"),
        (3, "not a list of names"),
        ([1, 2], "not a list of names"),
        ({"a": 1}, "not a list of names"),
        ([], "names no field"),
        ({}, "names no field"),
        (["a", "a"], "twice"),
        (["group/x"], r"--fields x=group/x \(fields={'x': 'group/x'} in Python\)"),
        ([".."], "allows the field name"),
        (["__key__"], "--fields x=__key__"),
        ([""], "allows the field name"),
        ({"../../x": "a"}, "--fields x=a"),
        ({"a\nb": "a"}, "allows the field name"),
    ],
)
def test_rejects_impossible_fields(given_: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        as_fields(given_)


@given(st.text())
def test_accepted_names_stay_within_the_folder(name: str) -> None:
    if is_name(name):
        assert Path(name).name == name
        assert (Path("/folder") / f"{name}.npy").parent == Path("/folder")


def test_lists_of_names() -> None:
    assert as_names(["a"], "ragged") == ("a",)
    for wrong in ("a", None, [1]):
        with pytest.raises(BadOption, match=r"ragged=.*is not a list of names"):
            as_names(wrong, "ragged")


@pytest.mark.parametrize("out", [3, None, "/", b"a.h5", "s3://bucket/tokens.bin", "s3:/bucket/train"])
def test_rejects_outputs_that_are_not_local_paths(out: Any) -> None:
    with pytest.raises(BadOption):
        as_path(out)


def test_which_outputs_may_be_written_and_replaced(tmp_path: Path) -> None:
    (tmp_path / "file.tar").touch()
    (tmp_path / "folder.tar").mkdir()
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "feedline.json").write_text(json.dumps(sealed({"feedline": "1.0"})))
    (tmp_path / "link.tar").symlink_to(tmp_path / "file.tar")
    tar, npy, plain = FORMATS["tar"], FORMATS["npy"], Options()
    assert check_place(tmp_path / "new", tar, plain, overwrite=False)
    assert not check_place(tmp_path / "none" / "yet" / "new.tar", tar, plain, overwrite=False)
    assert (tmp_path / "none" / "yet").is_dir()
    assert check_place(tmp_path / "a.b", tar, plain, overwrite=False)
    assert not check_place(tmp_path / "new.tar", tar, plain, overwrite=False)
    assert not check_place(tmp_path / "file.tar", tar, plain, overwrite=True)
    assert check_place(tmp_path / "ours", tar, plain, overwrite=True)
    for name, format_, message in (
        ("file.tar", tar, "exists already"),
        ("ours", npy, "exists already"),
        ("file.tar/new.tar", tar, "cannot be written"),
    ):
        with pytest.raises(BadOption, match=message):
            check_place(tmp_path / name, format_, plain, overwrite=False)
    for name, format_, message in (
        ("folder.tar", tar, "is a folder, but would become a file"),
        ("file.tar", npy, "is a file, but would become a folder"),
        ("ours", FORMATS["lmdb"], "is a folder, but would become a file"),
        ("link.tar", tar, "exists already"),
    ):
        with pytest.raises(BadOption, match=message):
            check_place(tmp_path / name, format_, plain, overwrite=True)


def test_rejects_an_output_inside_its_source(tmp_path: Path) -> None:
    (tmp_path / "photos" / "a").mkdir(parents=True)
    (tmp_path / "other").symlink_to(tmp_path / "photos")
    check_apart(str(tmp_path / "photos"), tmp_path / "out.tar")
    check_apart(str(tmp_path / "photos"), tmp_path / "photos.tar")
    for out in ("photos/out.tar", "photos/a/out.tar", "photos", "other/out.tar", "photos/../photos/out.tar"):
        with pytest.raises(BadOption, match="lies in"):
            check_apart(str(tmp_path / "photos"), tmp_path / out)
