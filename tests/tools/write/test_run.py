"""Runs that are interrupted anywhere are resumed with the same bytes, and the final check finds damage."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import BadOption, PackError
from feedline.text import write_tokens
from feedline.tools.write import Stage
from tests.tools.write.stores import FORMATS, SHARDED, SINGLE, DieAt, Mixed, Stream, content, in_child, mixed

pack = partial(feedline.pack, workers=0)
shards = partial(pack, format="tar", samples_per_shard=16)


def texts(source: Any, out: Path, **options: Any) -> Any:
    lines = [source[index]["name"] for index in range(len(source))]
    return write_tokens(lines, out, lambda text: list(text.encode()), workers=0, batch=5, append_eos=0, **options)


CASES: dict[str, tuple[str, Any]] = {
    **{f"{one} shards": ("out", partial(pack, format=one, samples_per_shard=20)) for one in SHARDED},
    **{one: (SINGLE[one], partial(pack, format=one)) for one in FORMATS},
    "token shards": ("out", partial(texts, shard_tokens=120)),
    "tokens": ("out.bin", texts),
}


# What the folder holds at the beginning: nothing, an older output, or the work of an interrupted run.
@pytest.mark.parametrize(
    ("case", "begin", "step"),
    [
        ("tar shards", "replaces", 12),
        *(
            pytest.param(case, begin, 1, marks=pytest.mark.slow)
            for begin, cases in {
                "new": CASES,
                "replaces": ("token shards", "npy"),
                "restarts": ("parquet shards", "tokens"),
            }.items()
            for case in cases
        ),
    ],
)
def test_a_run_killed_at_any_call_that_touches_the_disk_is_resumed(
    tmp_path: Path, case: str, begin: str, step: int
) -> None:
    """The result has the bytes of an uninterrupted run. Until then, there is the older output, or none."""
    name, act = CASES[case]
    whole, base = content(act(Mixed(60), tmp_path / name).path), tmp_path / "base"
    base.mkdir()
    older = content(act(Mixed(10), base / name).path) if begin == "replaces" else {}
    if begin == "restarts":
        assert not in_child(lambda: act(Mixed(60), base / name), kill_at=20 if "shards" in case else 4)
    resumed = set()
    for point in itertools.count(1, step):
        folder = tmp_path / f"at-{point}"
        shutil.copytree(base, folder)
        run: Any = partial(act, Mixed(60), folder / name, restart=begin == "restarts")
        if in_child(partial(run, overwrite=begin == "replaces"), kill_at=point):
            break
        in_child(partial(run, overwrite=True), kill_at=point)  # the run that resumes it is killed, too
        if not (folder / name).exists() and older:  # a run that may replace nothing gives it its name again
            with pytest.raises(BadOption, match="exists already"):
                act(Mixed(60), folder / name, restart=True)
        if (folder / name).exists():
            assert content(folder / name) in (older, whole), "an output with its final name is complete"
        else:
            assert not older
        resumed.add(act(Mixed(60), folder / name, overwrite=True).resumed)
        assert content(folder / name) == whole, f"killed at {point}"
        assert os.listdir(folder) == [name]
    assert point > 3
    assert len(resumed) > 1 if "shards" in case else resumed == {0}


class Noise:
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": feedline.rng().random(3), "y": np.random.random(2), "z": random.random()}


@pytest.mark.parametrize(
    ("source", "options", "again"),
    [
        (Noise, {"samples_per_shard": 16}, {"workers": 2}),
        (Stream, {"samples_per_shard": 33, "format": "parquet"}, {}),  # a shard ends in the middle of a batch
    ],
)
@pytest.mark.parametrize("point", [40, pytest.param(95, marks=pytest.mark.slow)])
def test_random_numbers_and_streams_are_the_same_after_an_interruption(
    tmp_path: Path, source: Any, options: dict[str, Any], again: dict[str, Any], point: int
) -> None:
    act: Any = partial(shards, source(), **options)
    whole, out = act(tmp_path / "whole"), tmp_path / "out"
    assert not in_child(lambda: act(out, report=DieAt(point)))
    packed = act(out, **again)
    assert packed.resumed > 0
    assert content(out) == content(whole.path)
    assert packed.line.partition("fields=")[2] == whole.line.partition("fields=")[2]


def stop_at(done: int) -> Any:
    def stop(stage: Stage) -> None:
        if stage.done >= done:
            raise KeyboardInterrupt

    return stop


class Numbers(Mixed):
    """Fails at one sample while `fails_at` is given: not part of what the fingerprint covers."""

    def __init__(self, factor: int, fails_at: int | None = None) -> None:
        super().__init__()
        self.factor = factor
        self._fails_at = fails_at

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self._fails_at:
            raise ValueError(index)
        return {"x": self.factor * 1000 + index}


def test_only_the_same_job_is_resumed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for source in (None, "the first"):
        with pytest.raises(ValueError, match="80"):
            shards(Numbers(1, 80), out, source=source, restart=True)
        with pytest.raises(BadOption, match=r"left by a run with (another dataset|source='the first').*--restart"):
            shards(Numbers(2), out)
    with pytest.raises(BadOption, match=r"samples=100, but now it is 99.*--restart"):
        shards(Mixed(99), out, source="the first")
    assert shards(Numbers(1), out, source="the first").resumed == 72, "only its name has to be the same"


def test_a_changed_folder_is_not_resumed(tmp_path: Path) -> None:
    folder, out = tmp_path / "files", tmp_path / "out"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number:02d}.bin").write_bytes(b"%d" % number)
    with pytest.raises(KeyboardInterrupt):
        shards(folder, out, report=stop_at(40))
    (folder / "05.bin").rename(folder / "61.bin")
    with pytest.raises(BadOption, match=r"was left by a run with (source|samples)=.*--restart"):
        shards(folder, out)
    assert shards(folder, out, restart=True).resumed == 0


@pytest.mark.parametrize(("format_", "damage"), [*((one, "flip") for one in FORMATS), ("tar", "cut")])
def test_the_final_check_finds_damage(tmp_path: Path, format_: str, damage: str) -> None:
    out = tmp_path / SINGLE[format_]

    def spoil(stage: Stage) -> None:
        if (stage.name, stage.done) != ("checking", 0):
            return
        (built,) = (path for path in (tmp_path / f"{out.name}.packing").iterdir() if path.stem == "output")
        path = built / "vector.npy" if built.is_dir() else built
        data, searched = path.read_bytes(), mixed(7)["vector"].tobytes()
        assert searched in data
        changed = searched[:11] + bytes([searched[11] ^ 1]) + searched[12:]
        path.write_bytes(data.replace(searched, changed) if damage == "flip" else data[: len(data) // 2])

    # Uncompressed, so that the bytes can be found.
    options: dict[str, Any] = {"compression": "none"} if format_ == "parquet" else {}
    with pytest.raises(PackError, match=r"not what was written"):
        pack(Mixed(), out, format=format_, report=spoil, **options)
    assert os.listdir(tmp_path) == []
