from __future__ import annotations

from pathlib import Path

import pytest

from scripts import dist_test, smoke
from tests.release.test_metadata import EXTRAS, FOR_DEVELOPERS


def test_the_extras_equal_those_of_the_package() -> None:
    assert dist_test.extras_for_users() == [name for name in EXTRAS if name not in FOR_DEVELOPERS]
    assert dist_test.FOR_DEVELOPERS == FOR_DEVELOPERS


def test_every_extra_has_a_smoke_test() -> None:
    assert set(dist_test.extras_for_users()) == smoke.TRIED.keys() - {"nothing"} | smoke.GROUPS.keys()


@pytest.mark.parametrize("count", [0, 2])
def test_rejects_any_other_number_of_wheels_than_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    (tmp_path / "dist").mkdir()
    for number in range(count):
        (tmp_path / "dist" / f"feedline-1.{number}-py3-none-any.whl").touch()
    monkeypatch.setattr(dist_test, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=f"There are {count} wheels"):
        dist_test.wheel()
