"""A skorch net is trained with the same batches from feedline's loader as from torch's."""

from __future__ import annotations

from pathlib import Path

from tests.frameworks_real.bases import assert_same, flat
from tests.frameworks_real.conftest import need

need("skorch")


def test_a_net_gets_the_same_batches(tmp_path: Path) -> None:
    for name, answer in assert_same("skorch_nets.py", tmp_path).items():
        first, second = answer["seen"][:4], answer["seen"][4:]
        assert sorted(flat(first)) == sorted(flat(second)), name
        assert len(set(flat(first))) == 16, name
