"""The fewest bytes that a cache of a given size can fetch, if it knows every access in advance."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def least_bytes(accesses: Sequence[tuple[Hashable, int]], capacity: int) -> int:
    """Return the fewest bytes that any cache has to fetch for these accesses.

    This is Belady's rule, byte by byte: of all bytes read so far, keep those that are needed again soonest. An access
    may bypass the cache, and a part of an object may be kept. So no cache fetches less, whether it keeps whole objects
    or pieces of them.

    Args:
        accesses: each object that is read, and its size, which is always the same.
        capacity: bytes that the cache may hold between two accesses.

    Example:
        >>> least_bytes([("a", 5), ("b", 5), ("b", 5), ("a", 5)], capacity=5)  # keeps b, then has to fetch a again
        15
        >>> least_bytes([("a", 5), ("b", 5), ("b", 5), ("a", 5)], capacity=8)  # keeps b, and three bytes of a
        12
    """
    following = _next_uses([name for name, _ in accesses])
    kept: dict[int, int] = {}
    """Bytes kept, by the access that will need them."""
    fetched = 0
    for place, (_, size) in enumerate(accesses):
        fetched += size - kept.pop(place, 0)
        later = following[place]
        if later is not None:
            kept[later] = size
        excess = sum(kept.values()) - capacity
        while excess > 0:
            last = max(kept)
            dropped = min(excess, kept[last])
            kept[last] -= dropped
            excess -= dropped
            if not kept[last]:
                del kept[last]
    return fetched


def _next_uses(names: Sequence[Hashable]) -> list[int | None]:
    """Return for each access the place of the next access to the same object."""
    found: list[int | None] = [None] * len(names)
    later: dict[Hashable, int] = {}
    for place in range(len(names) - 1, -1, -1):
        found[place] = later.get(names[place])
        later[names[place]] = place
    return found
