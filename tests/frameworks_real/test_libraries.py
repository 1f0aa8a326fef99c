"""Libraries that build on torch's loader, or are given one, get the same samples from feedline's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks_real.bases import assert_same, flat
from tests.frameworks_real.conftest import need

# Any, throughout: what a program reports with feedline, which is what it reports with torch.


@dataclass(frozen=True)
class Library:
    """A program of this folder, and what has to be true of its report besides."""

    package: str
    program: str
    check: Callable[[dict[str, Any]], None]
    other_iterators: tuple[str, ...] = ()
    at_once: bool = True


def check_fastai(found: dict[str, Any]) -> None:
    for name, answer in found.items():
        for training in (True, False):
            samples = [sample for mode, batch in answer["seen"] if mode is training for sample in batch]
            assert sorted(samples) == sorted(2 * list(range(11))), name


def check_ignite(found: dict[str, Any]) -> None:
    assert all(answer["is ours"] for answer in found.values())
    assert sorted(flat(found["deterministic"]["seen"][:4])) == list(range(7))


def check_litdata(found: dict[str, Any]) -> None:
    for name in ("plain 0", "plain 2", "own 0", "own 2"):
        for epoch in found[name]["epochs"]:
            assert sorted(flat(epoch)) == list(range(24)), name
    for name in ("resumed 0", "resumed 2", "own resumed 0", "own resumed 2"):
        assert found[name]["again"] == found[name]["rest"], name


def check_mmengine(found: dict[str, Any]) -> None:
    for name in ("epochs", "config"):
        seen = found[name]["seen"]
        assert sorted(flat(seen[:3])) == sorted(flat(seen[3:])), name
        assert set(flat(seen[:3])) == set(range(11)), name


def check_monai(found: dict[str, Any]) -> None:
    samples = [sample for batch in found["threads"]["epochs"][0] for sample in batch]
    assert samples == [[number, False] for number in range(7)], "use_thread_workers=True: not on the main thread"


def check_mosaicml(found: dict[str, Any]) -> None:
    for workers in (0, 2):
        for epoch in found[f"plain {workers}"]["epochs"]:
            assert sorted(flat(epoch)) == list(range(24))
        resumed = found[f"own {workers}"]
        assert sorted(flat([*resumed["got"], *resumed["epochs"][0]])) == list(range(24))


def check_pyg(found: dict[str, Any]) -> None:
    for epoch in found["nodes 2 True False"]["epochs"]:
        assert {batch[0] for batch in epoch} == {"Data"}, "the sampler's output is filtered in the training process"
        assert sorted(node for batch in epoch for node in batch[1]) == list(range(10))


def check_skorch(found: dict[str, Any]) -> None:
    for name, answer in found.items():
        first, second = answer["seen"][:4], answer["seen"][4:]
        assert sorted(flat(first)) == sorted(flat(second)), name
        assert len(set(flat(first))) == 16, name


def check_speechbrain(found: dict[str, Any]) -> None:
    for name, answer in found.items():
        assert sorted(flat([*answer["got"], *answer["rest"]])) == list(range(11)), name
        assert answer["count"] == 6, name


LIBRARIES = [
    Library("fastai", "fastai_learners.py", check_fastai),
    Library("ignite", "ignite_engines.py", check_ignite),
    # LitData's loader returns its own iterators from `_get_iterator`; they derive from torch's.
    Library(
        "litdata",
        "litdata_streams.py",
        check_litdata,
        ("_SingleProcessDataLoaderIter", "_StreamingMultiProcessingDataLoaderIter"),
    ),
    Library("mmengine", "mmengine_runners.py", check_mmengine),
    Library("monai", "monai_loaders.py", check_monai),
    Library("streaming", "mosaicml_streams.py", check_mosaicml, at_once=False),  # programs share names in memory
    Library("torch_geometric", "pyg_loaders.py", check_pyg),
    Library("skorch", "skorch_nets.py", check_skorch),
    Library("speechbrain", "speechbrain_loaders.py", check_speechbrain),
]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.package)
def test_a_library_gets_the_same_samples(library: Library, tmp_path: Path) -> None:
    need(library.package)
    options: dict[str, Any] = {"other_iterators": library.other_iterators, "at_once": library.at_once}
    library.check(assert_same(library.program, tmp_path, **options))
