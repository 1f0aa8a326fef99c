"""The doctor names the cure of real datasets with known diseases."""

from __future__ import annotations

import pytest

from feedline.tools.tune.diagnosis import diagnose
from feedline.tools.tune.finding import Finding
from feedline.tools.tune.measured import Measured
from feedline.tools.tune.probe import probe

AMPLE_S = 60.0
"""The datasets are short: a probe ends when each sample has been made."""


def probed(name: str) -> Measured:
    return probe(f"tests.tools.tune.diseases:{name}", seconds=AMPLE_S)


def found(measured: Measured) -> dict[str, Finding]:
    return {finding.name: finding for finding in diagnose(measured)}


def test_the_size_for_images_leaves_room_for_crops() -> None:
    """A crop keeps 200 x 150 of 800 x 600 pixels: of an image stored with 64 x 48, 16 x 12 would be left."""
    pytest.importorskip("PIL")
    measured = probed("Crops")
    assert measured.samples is not None
    assert measured.samples.decoded is not None
    assert measured.samples.decoded.kept == 1 / 16
    assert measured.samples.decoded.used_pixels == 64 * 48 * 16
