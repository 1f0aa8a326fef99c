from __future__ import annotations

import pytest

from feedline.packing.quantities import bytes_of, bytes_text, size_of


@pytest.mark.parametrize(
    ("text", "size"),
    [("7", 7), ("1k", 1000), ("1KiB", 1024), ("1.5 GiB", 3 << 29), ("2T", 2 * 10**12), ("3mb", 3 * 10**6)],
)
def test_bytes(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1 i", "1e3", "1xB"])
def test_what_is_no_number_of_bytes(text: str) -> None:
    with pytest.raises(ValueError, match="no number of bytes"):
        bytes_of(text)


@pytest.mark.parametrize("text", ["", "0", "1x", "1x2x3", "-1", "a"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="no size of pictures"):
        size_of(text)


def test_for_people() -> None:
    assert [bytes_text(size) for size in (0, 1023, 1024, 5 << 20, 3 << 40)] == [
        "0 bytes", "1023 bytes", "1.0 KiB", "5.0 MiB", "3.0 TiB",
    ]  # fmt: skip
