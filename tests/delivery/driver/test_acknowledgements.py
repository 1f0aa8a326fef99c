"""A batch is acknowledged when the next one is requested."""

from collections.abc import Iterator
from typing import Any

import pytest

from feedline.abc.source import Acknowledged
from feedline.delivery.driver.acknowledgements import Acknowledgements


class Dataset(Acknowledged):
    def __init__(self) -> None:
        self.acknowledged: list[Any] = []
        self.fails = False

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def take_receipts(self) -> Any:
        return None

    def put_back(self) -> None:
        raise AssertionError("nothing has failed")

    def acknowledge(self, receipts: Any) -> None:
        if self.fails:
            raise OSError("not now")
        self.acknowledged.append(receipts)


def test_receipts_are_handed_over_once_and_in_order() -> None:
    dataset = Dataset()
    receipts = Acknowledgements(dataset)
    receipts.acknowledge()
    receipts.hold("a")
    receipts.hold(None)
    receipts.hold("b")
    assert dataset.acknowledged == []
    receipts.acknowledge()
    receipts.acknowledge()
    assert dataset.acknowledged == ["a", "b"]


def test_receipts_that_could_not_be_handed_over_are_kept() -> None:
    dataset = Dataset()
    receipts = Acknowledgements(dataset)
    receipts.hold("a")
    dataset.fails = True
    with pytest.raises(OSError, match="not now"):
        receipts.acknowledge()
    dataset.fails = False
    receipts.acknowledge()
    assert dataset.acknowledged == ["a"]
