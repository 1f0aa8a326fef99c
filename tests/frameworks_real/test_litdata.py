"""LitData's streaming datasets give the same samples as in torch's loader; LitData's own loader keeps working."""

from __future__ import annotations

from pathlib import Path

from tests.frameworks_real.bases import assert_same, flat
from tests.frameworks_real.conftest import need

need("litdata")

OWN_ITERATORS = ("_SingleProcessDataLoaderIter", "_StreamingMultiProcessingDataLoaderIter")
"""LitData's loader returns them from `_get_iterator`; they derive from torch's."""


def test_samples_are_the_same_and_resumed_exactly(tmp_path: Path) -> None:
    found = assert_same("litdata_streams.py", tmp_path, other_iterators=OWN_ITERATORS)
    for name in ("plain 0", "plain 2", "own 0", "own 2"):
        for epoch in found[name]["epochs"]:
            assert sorted(flat(epoch)) == list(range(24)), name
    for name in ("resumed 0", "resumed 2", "own resumed 0", "own resumed 2"):
        assert found[name]["again"] == found[name]["rest"], name
