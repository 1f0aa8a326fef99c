from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import BadOption, PackError
from feedline.text import write_tokens
from feedline.tools.write import Stage
from tests import program_server
from tests.tools.write.stores import (
    FORMATS,
    SHARDED,
    SINGLE,
    DieAt,
    Mixed,
    Stream,
    canonical,
    content,
    in_child,
    mixed,
    read,
)

pytestmark = pytest.mark.sample(5)

pack = partial(feedline.pack, workers=0)

# -- interruption -----------------------------------------------------------------------------------------------------

shards = partial(pack, samples_per_shard=16)


def texts(source: Any, out: Path, **options: Any) -> Any:
    lines = [source[index]["name"] for index in range(len(source))]
    return write_tokens(lines, out, lambda text: list(text.encode()), workers=0, batch=5, append_eos=0, **options)


SHARDS: dict[str, Any] = {one: partial(pack, format=one, samples_per_shard=37) for one in SHARDED}
SHARDS["tokens"] = partial(texts, shard_tokens=400)
FILES: dict[str, Any] = {one: partial(pack, format=one) for one in FORMATS}
FILES["tokens"] = texts
ENDINGS = {**SINGLE, "tokens": "out.bin"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format_", "is_sharded"), [*((one, False) for one in FILES), *((one, True) for one in SHARDS)]
)
def test_a_run_killed_at_any_point_is_resumed(tmp_path: Path, format_: str, is_sharded: bool) -> None:
    """The result has the same bytes as that of an uninterrupted run, and there is never half an output."""
    act, name = (SHARDS[format_], "out") if is_sharded else (FILES[format_], ENDINGS[format_])
    expected = content(act(Mixed(), tmp_path / name).path)
    resumed = set()
    for point in itertools.count(1):
        base = tmp_path / f"at-{point}"
        base.mkdir()
        out = base / name
        if in_child(lambda out=out: act(Mixed(), out), kill_at=point):  # type: ignore[misc]
            break
        if out.exists():
            assert content(out) == expected, "an output with its final name is complete"
        resumed.add(act(Mixed(), out, overwrite=True).resumed)
        assert content(out) == expected, f"killed at {point}"
        assert os.listdir(base) == [out.name]
    assert point > (10 if is_sharded else 3)
    assert len(resumed) > 2 if is_sharded else resumed == {0}


def test_a_run_killed_repeatedly_finishes(tmp_path: Path) -> None:
    whole = shards(Mixed(), tmp_path / "whole", format="tar")
    (tmp_path / "again").mkdir()
    out = tmp_path / "again" / "out"
    kills = 0
    while not in_child(lambda: shards(Mixed(), out, format="tar", overwrite=True), kill_at=12 + kills):
        kills += 1
        assert kills < 100, "it makes no progress"
    assert kills > 2
    assert content(out) == content(whole.path)


PROGRAM = """
import os, signal, sys
import feedline
from tests.tools.write.stores import Mixed

def report(stage):
    if stage.name == "packing" and stage.done >= 60 and "--die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)

packed = feedline.pack(Mixed(), sys.argv[1], format="hdf5", workers=2, samples_per_shard=16, report=report)
sys.stdout.write(f"resumed {packed.resumed}\\n")
"""


def test_a_run_with_workers_is_resumed_after_sigkill(tmp_path: Path) -> None:
    out = tmp_path / "out"
    root = Path(__file__).resolve().parents[3]
    died = program_server.run(PROGRAM, out, "--die", cwd=root)
    assert died.returncode == -9, died.stderr
    assert not out.exists()
    assert (tmp_path / "out.packing").is_dir()
    done = program_server.run(PROGRAM, out, cwd=root)
    assert done.returncode == 0, done.stderr
    resumed = int(done.stdout.rpartition("resumed ")[2])
    assert 16 <= resumed < 100, "it was resumed, not restarted"
    assert content(out) == content(shards(Mixed(), tmp_path / "whole", format="hdf5").path)


def test_random_samples_are_the_same_after_an_interruption(tmp_path: Path) -> None:
    act = partial(shards, format="tar")
    whole = act(Noise(), tmp_path / "whole")
    out = tmp_path / "out"
    assert not in_child(lambda: act(Noise(), out, report=DieAt(40)))
    act(Noise(), out, workers=2)
    assert content(out) == content(whole.path)


class Noise:
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": feedline.rng().random(3), "y": np.random.random(2), "z": random.random()}


@pytest.mark.parametrize("size", [7, 16, 33])
def test_an_iterable_dataset_is_resumed(tmp_path: Path, size: int) -> None:
    """Even if a shard ends in the middle of one of the loader's batches."""
    act = partial(pack, format="parquet", samples_per_shard=size)
    whole = act(Stream(), tmp_path / "whole")
    out = tmp_path / "out"
    assert not in_child(lambda: act(Stream(), out, report=DieAt(40)))
    resumed = act(Stream(), out)
    assert resumed.resumed == max(count for count in range(0, 49, size))
    assert content(out) == content(whole.path)


def test_a_run_with_other_options_does_not_resume(tmp_path: Path) -> None:
    out, act = tmp_path / "out", partial(shards, format="tar")
    assert not in_child(lambda: act(Mixed(), out, report=DieAt(40)))
    with pytest.raises(BadOption, match=r"samples=100, but now it is 99.*--restart"):
        act(Mixed(99), out)
    with pytest.raises(BadOption, match="source="):
        act(Mixed(), out, source="another")
    packed = act(Mixed(99), out, restart=True)
    assert (packed.count, packed.resumed) == (99, 0)


def stop_at(done: int) -> Any:
    def stop(stage: Stage) -> None:
        if stage.done >= done:
            raise KeyboardInterrupt

    return stop


def test_a_single_file_is_started_over(tmp_path: Path) -> None:
    out = tmp_path / "out.h5"
    with pytest.raises(KeyboardInterrupt):
        pack(Mixed(), out, report=stop_at(50))
    assert os.listdir(tmp_path) == [], "there is nothing to resume"
    assert pack(Mixed(), out).resumed == 0


class MixedPictures(Mixed):
    """JPEG and PNG in one field; the first PNG comes late, and a sample that is neither later still."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        data = b"?" if index == 90 else b"\x89PNG\r\n\x1a\n" if index % 7 == 5 and index > 20 else b"\xff\xd8\xff"
        return {"image": data + bytes([index]), "label": index}


@pytest.mark.slow
def test_image_formats_are_known_after_an_interruption(tmp_path: Path) -> None:
    act = partial(pack, format="tar", samples_per_shard=9)
    whole = act(MixedPictures(), tmp_path / "whole")
    assert "'jpg;png;image.bin'" in whole.line
    for point in (40, 70, 95):
        out = tmp_path / f"at-{point}"
        assert not in_child(lambda out=out, point=point: act(MixedPictures(), out, report=DieAt(point)))  # type: ignore[misc]
        packed = act(MixedPictures(), out)
        assert packed.resumed > 0
        assert content(out) == content(whole.path)
        assert packed.line.partition("fields=")[2] == whole.line.partition("fields=")[2]


@pytest.mark.parametrize("change", ["content", "time", "added", "removed", "renamed"])
def test_a_changed_folder_is_not_resumed(tmp_path: Path, change: str) -> None:
    folder, out = tmp_path / "files", tmp_path / "out"
    act = partial(shards, folder, out, format="tar")
    folder.mkdir()
    for number in range(60):
        (folder / f"{number:02d}.bin").write_bytes(b"%d" % number)
    assert not in_child(partial(act, report=DieAt(40)))
    file = folder / "05.bin"
    changes: dict[str, Callable[[], object]] = {
        "content": lambda: file.write_bytes(b"another"),
        "time": lambda: os.utime(file, ns=(1, 1)),
        "added": (folder / "60.bin").touch,
        "removed": file.unlink,
        "renamed": lambda: file.rename(folder / "61.bin"),
    }
    changes[change]()
    with pytest.raises(BadOption, match=r"was left by a run with (source|samples)=.*--restart"):
        act()
    assert act(restart=True).resumed == 0


def test_a_run_killed_before_its_first_shard_is_started_over(tmp_path: Path) -> None:
    """Its leftovers do not make a later run claim that it can be resumed."""
    out, act = tmp_path / "out", partial(pack, format="tar", samples_per_shard=1000)
    assert not in_child(lambda: act(Mixed(300), out, report=DieAt(280)))
    with pytest.raises(KeyboardInterrupt):
        act(Mixed(300), out, report=stop_at(0))
    assert os.listdir(tmp_path) == []


# -- the check at the end ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", FORMATS)
def test_the_final_check_finds_a_flipped_bit(tmp_path: Path, format_: str) -> None:
    out = tmp_path / SINGLE[format_]

    def flip(stage: Stage) -> None:
        if (stage.name, stage.done) != ("checking", 0):
            return
        (built,) = (path for path in (tmp_path / f"{out.name}.packing").iterdir() if path.stem == "output")
        path = built / "vector.npy" if built.is_dir() else built
        data = bytearray(path.read_bytes())
        searched = mixed(7)["vector"].tobytes()
        assert searched in data
        for place in range(len(data)):
            if data.startswith(searched, place):  # LMDB also has old pages that are never read
                data[place + 11] ^= 1
        path.write_bytes(data)

    # Uncompressed, so that the bytes can be found.
    options: dict[str, Any] = {"compression": "none"} if format_ == "parquet" else {}
    with pytest.raises(PackError, match="not what was written"):
        pack(Mixed(), out, format=format_, report=flip, **options)
    assert not out.exists()
    packed = pack(Mixed(), out, format=format_, restart=True, **options)
    assert canonical(read(packed)) == canonical(list(map(mixed, range(100))))


def test_the_final_check_finds_a_missing_sample(tmp_path: Path) -> None:
    def cut(stage: Stage) -> None:
        if (stage.name, stage.done) == ("checking", 0):
            path = tmp_path / "out.tar.packing" / "output.tar"
            os.truncate(path, path.stat().st_size - 5 * 1024)

    with pytest.raises(PackError, match="not what was written"):
        pack(Mixed(), tmp_path / "out.tar", report=cut)
