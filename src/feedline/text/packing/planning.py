"""Plan the rows of packed documents, given only their lengths.

Two ways: cut the concatenated documents at every `length` tokens, or fit whole documents into rows (bin packing): the
longest first, each into the row where it leaves the least space, or the first where it fits. Everything here is a
function of its arguments, the same on every machine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption, CollateError
from feedline.randomness.bijection import Bijection
from feedline.system.options import checked_choice, checked_count
from feedline.text.packing.rows import Numbers, Plan

Strategy = Literal["concat", "first_fit", "best_fit"]
TooLong = Literal["cut", "truncate", "drop", "raise"]


# object: an array, a list or a tensor of integers.
def plan(
    lengths: object,
    length: int,
    strategy: Strategy = "best_fit",
    *,
    too_long: TooLong = "cut",
    key: int | None = None,
) -> Plan:
    """Plan which tokens of which documents go into which row of `length` tokens.

    Args:
        lengths: the number of tokens of each document. Documents of length 0 are in no row.
        length: the tokens that fit into a row.
        strategy: "concat" puts documents one after the other and cuts them at the ends of rows: every row but one is
            full. "best_fit" keeps documents whole: the longest are placed first, each into the row where it leaves the
            least space. "first_fit" does too, but takes the first row with enough space; it is slower, and no fuller.
        too_long: what to do with documents of more than `length` tokens. "cut" makes full rows of them; their last
            tokens are packed like a document. "truncate" keeps the first `length` tokens, "drop" none.
        key: shuffles the rows, differently for every key. By default, rows are in the order of their longest
            documents in the source. Neither order is by length, so training does not see all long documents first.

    Raises:
        BadOption: an argument is invalid.
        CollateError: a document is too long, and `too_long` is "raise".

    Example:
        >>> made = plan([3, 4, 2], 5, "concat")
        >>> made.documents.tolist(), made.starts.tolist(), made.counts.tolist(), made.row_starts.tolist()
        ([0, 1, 1, 2], [0, 0, 2, 0], [3, 2, 2, 2], [0, 2, 4])
        >>> made = plan([3, 4, 2], 5, "best_fit")
        >>> made.documents.tolist(), made.starts.tolist(), made.counts.tolist(), made.row_starts.tolist()
        ([0, 2, 1], [0, 0, 0], [3, 2, 4], [0, 2, 3])
    """
    length = checked_count("length", length)
    checked_choice("strategy", strategy, get_args(Strategy))
    checked_choice("too_long", too_long, get_args(TooLong))
    if key is not None and not isinstance(key, (int, np.integer)):
        raise BadOption(f"key={key!r} is not an integer. It decides the order of the rows.")
    kept = _without_too_long(_checked(lengths), length, too_long)
    fit = first_fit if strategy == "first_fit" else best_fit
    made = _concatenated(kept, length) if strategy == "concat" else _fitted(kept, length, fit)
    return made if key is None else made[Bijection(len(made), int(key))(np.arange(len(made)))]


def _concatenated(lengths: Numbers, length: int) -> Plan:
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    begins = ends - lengths
    rows = np.arange(0, total, length)
    # Pieces begin with documents and with rows. An empty document begins where the next one does, or at the end.
    cuts = np.union1d(begins[lengths > 0], rows)
    documents = np.searchsorted(ends, cuts, side="right")
    row_starts = np.append(np.searchsorted(cuts, rows), len(cuts))
    return Plan(documents, cuts - begins[documents], np.diff(cuts, append=total), row_starts, length)


def _fitted(lengths: Numbers, length: int, fit: Fit) -> Plan:
    documents, starts, counts = _units(lengths, length)
    row_of = _rows_of(counts, length, fit)
    order = np.argsort(row_of, kind="stable")
    row_starts = np.concatenate(([0], np.cumsum(np.bincount(row_of))))
    return Plan(documents[order], starts[order], counts[order], row_starts, length)


def _units(lengths: Numbers, length: int) -> tuple[Numbers, Numbers, Numbers]:
    """Return document, start and number of tokens of what is kept whole: documents, or parts of those too long."""
    parts = -(-lengths // length)
    documents = np.repeat(np.arange(len(lengths)), parts)
    part = np.arange(len(documents)) - np.repeat(np.cumsum(parts) - parts, parts)
    starts = part * length
    return documents, starts, np.minimum(lengths[documents] - starts, length)


def _rows_of(counts: Numbers, length: int, fit: Fit) -> Numbers:
    """Return the row of each unit, given the number of tokens of each.

    Rows are in the order of their longest units in the source. (In the order of their first units, rows of many short
    documents would come early.)
    """
    # 16-bit numbers are sorted by radix, in a third of the time.
    spare = (length - counts).astype(np.uint16 if length < 1 << 16 else np.int64)
    order = np.argsort(spare, kind="stable")
    sizes = np.bincount(counts)
    needs = np.flatnonzero(sizes)[::-1]
    rows, repeats = fit(needs.tolist(), sizes[needs].tolist(), length)
    filled = np.repeat(rows, repeats)
    # Of equal indices in an assignment the last one counts: here the first unit, and the longest, of each row.
    longest = np.empty(int(rows.max(initial=-1)) + 1, np.int64)
    longest[filled[::-1]] = order[::-1]
    place_of = np.empty_like(longest)
    place_of[np.argsort(longest)] = np.arange(len(longest))
    row_of = np.empty(len(counts), np.int64)
    row_of[order] = place_of[filled]
    return row_of


def _without_too_long(lengths: Numbers, length: int, too_long: TooLong) -> Numbers:
    if too_long == "cut" or not len(lengths) or lengths.max() <= length:
        return lengths
    if too_long == "truncate":
        return np.minimum(lengths, length)
    if too_long == "drop":
        return np.where(lengths > length, 0, lengths)
    wrong = np.flatnonzero(lengths > length)
    raise CollateError(
        f"Document {wrong[0]} has {lengths[wrong[0]]} tokens, but a row holds {length}. {len(wrong)} of "
        f"{len(lengths)} documents are too long. Increase `length`, or set too_long to 'cut', 'truncate' or 'drop'."
    )


def _checked(lengths: object) -> NDArray[np.int64]:
    array = np.asarray(lengths)
    if array.ndim != 1:
        raise BadOption(f"lengths has shape {array.shape}. It must have one length for each document.")
    if array.size and array.dtype.kind not in "iu":
        raise BadOption(f"lengths has {array.dtype} values, for example {array[0]!r}. Pass integers.")
    if array.size and array.min() < 0:
        raise BadOption(f"lengths[{array.argmin()}]={array.min()} is not a number of tokens: it is negative.")
    return array.astype(np.int64, copy=False)


# -- fitting ---

# All documents of one length are placed together, into one row after the other. The result has two arrays: rows, in the
# order in which they were opened, and how many documents go into each in turn, the longest documents first.
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
