"""Fields of samples in any container."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from feedline.collate import fields


class Pair(NamedTuple):
    a: int
    b: int


@dataclass
class Record:
    a: int
    b: int


SAMPLES = [{"a": 1, "b": 2}, (1, 2), [1, 2], Pair(1, 2), Record(1, 2)]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_samples_can_be_taken_apart_and_rebuilt(sample: Any) -> None:
    names = fields.names_of(sample)
    assert names is not None
    values = {name: fields.column([sample, sample], name)[0] for name in names}
    rebuilt = fields.build(sample, values)
    assert rebuilt == sample
    assert type(rebuilt) is type(sample)
    assert rebuilt is not sample


def test_a_string_is_a_key_of_a_mapping_even_if_it_names_an_attribute() -> None:
    assert fields.column([{"keys": 1}], "keys") == [1]
