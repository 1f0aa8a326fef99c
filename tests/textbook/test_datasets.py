from pathlib import Path

import pytest

from tests.textbook.comparison import cases, compare

for _name in ("pandas", "h5py", "PIL.Image"):
    pytest.importorskip(_name)  # imported once for all scripts, which are forked from this process


@pytest.mark.parametrize(
    ("script", "workers"), cases("datasets", slow=["image_annotations-2", "splits-2", "memory_map-2"])
)
def test_the_script_does_the_same_with_feedline(script: Path, workers: int | None, tmp_path: Path) -> None:
    compare(script, workers, tmp_path)
