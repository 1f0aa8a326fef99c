from __future__ import annotations

from pathlib import Path

import pytest

from feedline.cli.main import main


@pytest.mark.slow
def test_demo_from_pictures_to_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    flags = ["--images", "80", "--epochs", "2", "--folder", str(tmp_path), "--rounds", "1", "--seconds", "0.05"]
    assert main(["demo", *flags]) == 0
    out = capsys.readouterr().out
    assert len(list(tmp_path.iterdir())) == 80
    for part in ("80 JPEG pictures", "epoch  1", "epoch  2", "tiny", "JPEG", "x torch"):
        assert part in out
