"""The source contract that most test files subclass; only `make slow` starts new interpreters for each source."""

import pytest

from feedline.testing import SourceContract as WholeContract


class SourceContract(WholeContract):
    """What every source must do; the test of start methods takes 3 s of CPU time."""

    @pytest.mark.slow
    def test_batches_are_the_same_with_every_start_method(self) -> None:
        super().test_batches_are_the_same_with_every_start_method()
