from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from feedline.errors import MissingExtra, SourceError
from feedline.video import CenterClip, Compose, Video


def test_the_package_is_needed_only_for_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    clip = Compose([CenterClip(4)])
    with pytest.raises(MissingExtra, match=r"feedline\[video\]"):
        clip(Video(b"anything"))


def test_importing_the_folder_loads_no_decoder() -> None:
    code = "import sys, feedline.video; print([name for name in ('av', 'torch', 'PIL', 'cv2') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(not hasattr(sys, "getuid") and sys.platform == "win32", reason="needs file permissions")
def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av")
    path = tmp_path / "closed.mp4"
    path.write_bytes(b"1")
    monkeypatch.setattr("os.access", lambda *given: False)  # root may read everything
    with pytest.raises(SourceError, match=r"closed\.mp4 cannot be read: Permission denied"):
        len(Video(path))
