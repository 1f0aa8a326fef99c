"""Bin packing: which row each document goes into if documents are kept whole.

Both algorithms take documents by decreasing length. Documents of equal length are interchangeable, so lengths come
grouped: all documents of one length are placed together, into one row after the other.

The result has two arrays: rows, and how many documents go into each in turn, the longest documents first. Rows are
numbered in the order in which they were opened.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Placed = tuple[NDArray[np.int64], NDArray[np.int64]]
Fit = Callable[[list[int], list[int], int], Placed]


def best_fit(needs: list[int], counts: list[int], capacity: int) -> Placed:
    """Put each document into the row where it leaves the least space: best-fit decreasing.

    Rows with equal free space are interchangeable too, so a whole stack of them is filled in one step. The number of
    steps is at most the number of documents, and far lower if there are many more documents than lengths.

    Args:
        needs: the lengths that occur, in descending order, from 1 to `capacity`.
        counts: the number of documents of each length.
        capacity: the tokens that fit into a row.

    Example:
        >>> [array.tolist() for array in best_fit([4, 2, 1], [1, 3, 1], 5)]
        [[0, 2, 1, 2], [1, 2, 1, 1]]
    """
    stacks: dict[int, list[int]] = {}  # the rows with this much free space, more than 0
    spaces: list[int] = []  # the keys of `stacks`, ascending
    rows: list[int] = []
    repeats: list[int] = []
    opened = 0
    for need, count in zip(needs, counts, strict=True):
        at = bisect_left(spaces, need)
        while count:
            if at == len(spaces):
                more = -(-count // (capacity // need))
                stacks[capacity] = list(range(opened, opened + more))
                spaces.append(capacity)
                opened += more
            space = spaces[at]
            stack = stacks[space]
            each = min(space // need, count)
            chosen = stack[-(count // each) :]
            if len(chosen) == len(stack):
                del stacks[space], spaces[at]
            else:
                del stack[-len(chosen) :]
            rows += chosen
            repeats += [each] * len(chosen)
            count -= each * len(chosen)
            space -= each * need
            if space in stacks:
                stacks[space] += chosen
            elif space:
                # Below `need`, and so before `at`, unless no document is left and `at` is not used again.
                stacks[space] = chosen
                spaces.insert(bisect_left(spaces, space), space)
                at += 1
    return np.array(rows, np.int64), np.array(repeats, np.int64)


def first_fit(needs: list[int], counts: list[int], capacity: int) -> Placed:
    """Put each document into the first row where it fits: first-fit decreasing.

    A segment tree has the largest free space of the rows below each node. Rows that are not open yet are empty rows.

    Args:
        needs: the lengths that occur, in descending order, from 1 to `capacity`.
        counts: the number of documents of each length.
        capacity: the tokens that fit into a row.

    Example:
        >>> [array.tolist() for array in first_fit([4, 2, 1], [1, 3, 1], 5)]
        [[0, 1, 2, 0], [1, 2, 1, 1]]
    """
    total = sum(need * count for need, count in zip(needs, counts, strict=True))
    # Two neighbouring rows together hold more than `capacity`; otherwise the second would have gone into the first.
    most = min(sum(counts), 2 * total // capacity + 1)
    size = 1 << most.bit_length()
    tree = [capacity] * (2 * size)
    rows: list[int] = []
    repeats: list[int] = []
    for need, count in zip(needs, counts, strict=True):
        while count:
            node = 1
            while node < size:
                node *= 2
                if tree[node] < need:
                    node += 1
            each = min(tree[node] // need, count)
            rows.append(node - size)
            repeats.append(each)
            count -= each
            tree[node] -= each * need
            _update(tree, node)
    return np.array(rows, np.int64), np.array(repeats, np.int64)


def _update(tree: list[int], node: int) -> None:
    """Set the nodes above a changed one to the larger of their two children."""
    while node > 1:
        node >>= 1
        left, right = tree[2 * node], tree[2 * node + 1]
        largest = left if left >= right else right
        if tree[node] == largest:
            return
        tree[node] = largest
