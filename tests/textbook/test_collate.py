from pathlib import Path

import pytest

from tests.textbook.comparison import cases, compare


@pytest.mark.parametrize(("script", "workers"), cases("collate", slow=["filter_none-2", "default_and_mixup-2"]))
def test_the_script_does_the_same_with_feedline(script: Path, workers: int | None, tmp_path: Path) -> None:
    compare(script, workers, tmp_path)
