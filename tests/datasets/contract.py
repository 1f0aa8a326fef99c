"""The contract of sources as most test files subclass it: new interpreters are started for a source by `make slow`."""

import pytest

from feedline.testing import SourceContract as WholeContract


class SourceContract(WholeContract):
    """What every source must do; the start methods take 3 s of a core."""

    @pytest.mark.slow
    def test_batches_are_the_same_with_every_start_method(self) -> None:
        super().test_batches_are_the_same_with_every_start_method()
