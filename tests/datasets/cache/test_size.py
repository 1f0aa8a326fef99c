"""Sizes that people write."""

import pytest

from feedline.datasets.cache.size import bytes_of
from feedline.errors import BadOption


@pytest.mark.parametrize(
    ("text", "size"),
    [(5, 5), ("5", 5), ("5B", 5), ("2kB", 2000), ("2 KiB", 2048), ("1.5GB", 1_500_000_000), ("1gib", 1 << 30)],
)
def test_sizes(text: int | str, size: int) -> None:
    assert bytes_of("memory", text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "4 XB", "5iB", 0, -3, True, 1.5, None, "0.1B"])
def test_what_is_no_size(text: int | str) -> None:
    with pytest.raises(BadOption, match="memory="):
        bytes_of("memory", text)
