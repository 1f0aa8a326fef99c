from __future__ import annotations

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st

from feedline.datasets.formats.lines.index import Scan
from tests.sampling import examples


@settings(max_examples=examples(400))
@given(
    content=st.text("a\n\r \t\x0b", max_size=60).map(str.encode),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    forced=st.sets(st.integers(0, 7)),
    size=st.integers(1, 20),
    start=st.sampled_from([0, 3]),
)
@example(content=b"a", cuts=[], forced=set(), size=1, start=0)
@example(content=b" \n", cuts=[1], forced=set(), size=1, start=0)
def test_blocks_of_lines(content: bytes, cuts: list[int], forced: set[int], size: int, start: int) -> None:
    scan = Scan(size, start)
    places = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    for number, (first, stop) in enumerate(itertools.pairwise(places)):
        if number in forced:
            scan.cut()
        scan.add(content[first:stop])
    starts, lines, filled = (numbers.tolist() for numbers in scan.blocks())
    assert starts == sorted(set(starts))
    assert starts[0] == start
    assert starts[-1] == start + len(content)
    for offset, line, full in zip(starts, lines, filled, strict=True):
        before = content[: offset - start]
        assert offset == starts[-1] or not before or before.endswith(b"\n"), "a block starts at the start of a line"
        own = before.split(b"\n")
        own = own if own[-1] else own[:-1]
        assert line == len(own)
        assert full == sum(bool(one.strip(b" \t\r")) for one in own)
    for first, stop in itertools.pairwise(starts):
        block = content[first - start : stop - start]
        assert block.rstrip(b"\n").rfind(b"\n") < size, "only the last line of a block is long"
