import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

from feedline.datasets.formats.tar.grouping import split_name

ODD = st.text(st.sampled_from(list("a.B/_-. ä\n")), max_size=12)


@given(ODD | st.builds("__{}__{}".format, ODD, ODD) | st.text(max_size=12))
def test_names_are_split_as_the_webdataset_package_does(name: str) -> None:
    key, field = base_plus_ext(name)
    skipped = re.match(r"__[^/]*__($|/)", name) is not None
    assert split_name(name) == (None if key is None or skipped else (key, field.lower()))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jpg", ("a", "jpg")),
        ("x/y.z/a.b.JPG", ("x/y.z/a", "b.jpg")),
        ("../../x.txt", ("../../x", "txt")),
        ("/etc/passwd.txt", ("/etc/passwd", "txt")),
        (".hidden", None),
        ("x/.hidden.txt", ("x/", "hidden.txt")),
        ("README", None),
        ("__meta__", None),
        ("__meta__/a.txt", None),
        ("__meta__.json", ("__meta__", "json")),
        ("a.", ("a", "")),
        ("", None),
    ],
)
def test_examples(name: str, expected: tuple[str, str] | None) -> None:
    assert split_name(name) == expected


@pytest.mark.parametrize(
    "name", ["a/" * 50_000, "a/" * 50_000 + ".b/", "a.b\n" + "/" * 100_000 + ".", "__" * 50_000 + "/"]
)
def test_long_names_are_split_in_linear_time(name: str) -> None:
    assert split_name(name) is None, "with the package's own pattern this test would run for hours and time out"
