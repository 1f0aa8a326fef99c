from __future__ import annotations

from pathlib import Path

import pytest

from feedline.cli import demo


@pytest.mark.slow
def test_demo_from_pictures_to_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    demo.run(images=80, epochs=2, folder=tmp_path, rounds=1, seconds=0.05)
    out = capsys.readouterr().out
    assert len(list(tmp_path.iterdir())) == 80
    for part in ("80 JPEG pictures", "epoch  1", "epoch  2", "tiny, inline", "JPEG, 2 workers", "medians of 1 rounds"):
        assert part in out
