"""MosaicML's streaming datasets give the same samples as in torch's loader; its own loader resumes on top of ours."""

from __future__ import annotations

from pathlib import Path

from tests.frameworks_real.bases import assert_same, flat
from tests.frameworks_real.conftest import need

need("streaming")


def test_samples_are_the_same_and_resumed_exactly(tmp_path: Path) -> None:
    found = assert_same("mosaicml_streams.py", tmp_path, at_once=False)  # the package shares names among all programs
    for workers in (0, 2):
        for epoch in found[f"plain {workers}"]["epochs"]:
            assert sorted(flat(epoch)) == list(range(24))
        resumed = found[f"own {workers}"]
        assert sorted(flat([*resumed["got"], *resumed["epochs"][0]])) == list(range(24))
