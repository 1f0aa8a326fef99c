from pathlib import Path

import pytest
import torch._dynamo  # noqa: F401  optimizers import it: once for all scripts, which are forked from here

from tests.textbook.comparison import cases, compare


@pytest.mark.parametrize(
    ("script", "workers"),
    cases("loops", slow=["infinite-2", "try_except-2", "two_loaders-2", "repeat_sampler-2"]),
)
def test_the_script_does_the_same_with_feedline(script: Path, workers: int | None, tmp_path: Path) -> None:
    compare(script, workers, tmp_path)
