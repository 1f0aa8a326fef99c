from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from feedline.packing.digest import START, chained, digest_of
from feedline.packing.prepare import Item
from feedline.packing.progress import Progress, shortened


def item(number: int) -> Item:
    return Item(number, {"x": number}, digest_of({"x": number}), 8, "tuple")


def test_what_is_counted() -> None:
    progress = Progress()
    progress.add(item(0), b"a" * 16)
    progress.leave_out(lambda: "sample 1 (a.jpg)", "it is broken")
    progress.add(item(2), b"b" * 16)
    assert (progress.taken, progress.count, progress.skipped, progress.form) == (3, 2, 1, "tuple")
    assert progress.digest == progress.shard["digest"] == chained(START, [b"a" * 16, b"b" * 16])
    assert progress.shard["size"] == 16
    assert progress.reasons == ["sample 1 (a.jpg): it is broken"]


def test_it_goes_through_json() -> None:
    progress = Progress()
    progress.add(item(0), b"a" * 16)
    progress.leave_out(lambda: "sample 1", "ä\n☃")
    assert Progress(**json.loads(json.dumps(asdict(progress)))) == progress


def test_names_are_asked_for_only_as_long_as_they_are_kept() -> None:
    progress, names = Progress(), iter(map(str, range(1000)))
    for _ in range(1000):
        progress.leave_out(lambda: next(names), "b")
    assert (progress.skipped, len(progress.reasons), len(list(names))) == (1000, 20, 980)


@pytest.mark.parametrize("text", ["", "a", "a\n\n b\tc", "x" * 400, "x" * 401, "word " * 1000])
def test_shortening(text: str) -> None:
    short = shortened(text)
    assert len(short) <= 400
    assert "\n" not in short
    assert short.endswith("...") == (len(" ".join(text.split())) > 400)
