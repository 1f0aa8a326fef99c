"""What the training loop waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.insight.attribution import CAUSES, causes_of
from feedline.insight.batch_rows import DURATIONS, MOMENTS, columns_of, row

MOMENT = st.integers(-(10**15), 10**15)
DURATION = st.integers(0, 10**12)
ROWS = st.lists(
    st.builds(
        row,
        **dict.fromkeys(MOMENTS, MOMENT),
        **dict.fromkeys(DURATIONS, DURATION),
        worker=st.integers(-1, 3),
        behind=st.integers(0, 2),
        held=st.integers(0, 1),
        first=st.integers(0, 1),
    ),
    min_size=1,
    max_size=5,
)


def wait_causes(*, in_order: bool = True, **values: int) -> dict[str, int]:
    found = causes_of(columns_of([row(**values)]), in_order=in_order)
    return {cause: int(parts[0]) for cause, parts in found.items() if parts[0]}


@settings(deadline=None)  # other tests may use the cores
@given(ROWS, st.booleans())
def test_causes_always_add_up_to_the_wait(rows: list[tuple[int, ...]], in_order: bool) -> None:
    columns = columns_of(rows)
    causes = causes_of(columns, in_order=in_order)
    assert tuple(causes) == CAUSES
    assert all((parts >= 0).all() for parts in causes.values())
    wait = (columns["got"] - columns["asked"]).clip(0)
    assert np.array_equal(np.sum(list(causes.values()), axis=0), wait)


CHAIN: dict[str, Any] = {
    "given": 10,
    "began": 20,
    "fetch": 30,
    "transform": 10,
    "collate": 20,
    "write": 10,
    "finished": 80,
}
WHOLE: dict[str, Any] = {**CHAIN, "came": 90, "device": 5, "got": 100}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (95, {"deliver": 5}),
        (92, {"device": 3, "deliver": 5}),
        (85, {"transfer": 5, "device": 5, "deliver": 5}),
        (71, {"write": 9, "transfer": 10, "device": 5, "deliver": 5}),
        (60, {"collate": 10, "write": 10, "transfer": 10, "device": 5, "deliver": 5}),
        (35, {"fetch": 10, "transform": 5, "collate": 20, "write": 10, "transfer": 10, "device": 5, "deliver": 5}),
        (
            15,
            {
                "queue": 5,
                "fetch": 20,
                "transform": 10,
                "collate": 20,
                "write": 10,
                "transfer": 10,
                "device": 5,
                "deliver": 5,
            },
        ),
    ],
)
def test_only_work_done_during_the_wait_counts(asked: int, expected: dict[str, int]) -> None:
    assert wait_causes(worker=0, asked=asked, **WHOLE) == expected


def test_a_task_submitted_late_for_lack_of_a_slot_waits_for_a_slot() -> None:
    assert wait_causes(worker=0, asked=15, held=1, **WHOLE) == {"slot": 75, "device": 5, "deliver": 5}
    assert wait_causes(worker=0, asked=0, held=0, **WHOLE)["queue"] == 20


def test_a_wait_while_later_batches_are_ready_is_caused_by_the_order() -> None:
    assert wait_causes(worker=0, asked=15, overtaken=9, **WHOLE) == {"order": 75, "device": 5, "deliver": 5}
    late = wait_causes(worker=0, asked=15, overtaken=62, **WHOLE)
    assert (late["order"], late["collate"], late["fetch"]) == (28, 12, 20), "from the moment another batch was ready"
    assert "order" not in wait_causes(worker=0, asked=15, overtaken=9, in_order=False, **WHOLE), (
        "without order, no batch blocks another"
    )
    assert "order" not in wait_causes(worker=0, asked=15, overtaken=9, first=1, **WHOLE), (
        "its worker has not started yet"
    )
