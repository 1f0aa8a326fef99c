"""Failing samples are replaced."""

from __future__ import annotations

import pytest

from feedline.faults import Replace
from tests.faults.loaders import (
    Bad,
    batches_of,
    everywhere,
    make,
    on,
)

pytestmark = pytest.mark.sample(10)


@everywhere
def test_a_function_names_the_replacement(loader_kind: str, engine: str) -> None:
    names = {"a": 1, "b": None, "c": 3, "d": 4}

    class Named:
        def __getitem__(self, name: str) -> int:
            if names[name] is None:
                raise Bad(name)
            return names[name]  # type: ignore[return-value]

        def __len__(self) -> int:
            return 4

    loader = make(
        loader_kind,
        Named(),
        2,
        sampler=["a", "b", "c", "d"],
        on_error=Replace(by=lambda name: "d"),
        **on(engine),
    )
    assert batches_of(loader) == [[1, 4], [3, 4]]
    assert batches_of(loader) == [[1, 4], [3, 4]]
    [fault] = loader.faults
    assert (fault.index, fault.replacement) == ("b", "d")
    without = make(loader_kind, Named(), 2, sampler=["a", "b"], on_error="replace", **on(engine))
    with pytest.raises(Bad) as caught:
        list(without)
    assert "no neighbour" in "\n".join(caught.value.__notes__)
