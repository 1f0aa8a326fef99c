from __future__ import annotations

import asyncio
import dataclasses
import enum
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

import feedline
from feedline.errors import PackError
from feedline.tools.write.options import as_fields
from feedline.tools.write.prepare import named_fields, plain
from tests.tools.write.stores import read

Point = namedtuple("Point", ["x", "y"])


@dataclasses.dataclass
class Place:
    x: int
    name: str


class Colour(str, enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("sample", "fields", "form", "named"),
    [
        ({"a": 1, "b": 2}, None, "dict", {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, {"new": "b", "a": "a"}, "dict", {"new": 2, "a": 1}),
        ({"group/x": 1, "..": 2, 7: 3}, {"x": "group/x"}, "dict", {"x": 1}),
        ({"jpg": 1, "__key__": "a", "__url__": "b"}, None, "dict", {"jpg": 1}),
        ((1, 2), None, "tuple", {"0": 1, "1": 2}),
        ([1, 2], ["x", "y"], "tuple", {"x": 1, "y": 2}),
        (Point(1, 2), None, "dict", {"x": 1, "y": 2}),
        (Place(1, "a"), None, "dict", {"x": 1, "name": "a"}),
        (7, None, "one", {"value": 7}),
        (7, ["x"], "one", {"x": 7}),
    ],
)
def test_fields_are_named_and_selected(sample: Any, fields: Any, form: str, named: dict[str, Any]) -> None:
    found_form, found = named_fields(sample, as_fields(fields))
    assert (found_form, list(found.items())) == (form, list(named.items()))


@pytest.mark.parametrize(
    ("sample", "fields", "message"),
    [
        *(
            ({"good": 1, name: 2}, None, r"cannot be part of a file name. .*--fields x=")
            for name in ("a/b", "..", ".hidden", "__key", "", 7)
        ),
        ({"a": 1}, ["b"], "it has no field 'b', only the fields 'a'"),
        ((1, 2), ["x"], "it has 2 values, but fields= names 1"),
    ],
)
def test_rejects_missing_fields_and_names_that_cannot_be_part_of_a_file_name(
    sample: Any, fields: list[str] | None, message: str
) -> None:
    with pytest.raises(PackError, match=message):
        named_fields(sample, as_fields(fields))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.tensor([1, 2]), np.array([1, 2])),
        (torch.tensor(3.5), 3.5),
        (np.array(7), 7),
        (np.arange(3, dtype=">i4"), np.arange(3, dtype="<i4")),
        (np.str_("a"), "a"),
        (np.bytes_(b"a"), b"a"),
        (bytearray(b"a"), b"a"),
        (Path("a") / "b", "a/b"),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        ((1, [torch.tensor(2)]), [1, [2]]),
        ({"a": np.float32(1)}, {"a": 1}),
        ({np.str_("a"): 1, Colour.RED: 2}, {"a": 1, "red": 2}),
        (None, None),
    ],
)
def test_values_become_plain(value: Any, expected: Any) -> None:
    found = plain(value, "x")
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        assert found.tolist() == expected.tolist()
    else:
        assert found == expected
        assert not isinstance(found, (enum.Enum, np.str_, torch.Tensor))


MASKED = np.ma.masked_array([1.5, 7], [False, True])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        *((one, "no format holds") for one in (object(), {1, 2}, np.array([None]), np.zeros(2, "i4,f4"), [object()])),
        *((one, r"is a masked array.*filled\(\)") for one in (MASKED, MASKED[1], [MASKED], {"a": MASKED})),
        *(
            (one, r"is a dict with the key .*not a string.*Turn it into")
            for one in ({1: "a", "1": "b"}, [{"a": {None: 1, "None": 2}}], {("a",): 1})
        ),
        (torch.zeros(2, dtype=torch.bfloat16), "bfloat16, which NumPy lacks.*float32"),
        (1 << 9000, "an integer of 9,001 bits"),
    ],
)
def test_rejects_values_that_no_format_can_store(value: Any, message: str) -> None:
    with pytest.raises(PackError, match=rf"its field 'x' is .*{message}|{message}"):
        plain(value, "x")


class Awaited:
    """A dataset with an asynchronous `__getitem__`."""

    def __len__(self) -> int:
        return 20

    async def __getitem__(self, index: int) -> dict[str, int]:
        await asyncio.sleep(0)
        if index == 7:
            raise ValueError("seven")
        return {"x": index}


def test_asynchronous_datasets_are_packed(tmp_path: Path) -> None:
    packed = feedline.pack(Awaited(), tmp_path / "out.lmdb", workers=1, on_error="skip")
    assert (packed.count, packed.skipped) == (19, 1)
    assert "ValueError: seven" in packed.reasons[0]
    assert [sample["x"] for sample in read(packed)] == [*range(7), *range(8, 20)]
    few: Any = Subset(Awaited(), range(5))  # type: ignore[arg-type]  # torch wants its own class
    assert feedline.pack(few, tmp_path / "few.lmdb", workers=1).count == 5
