"""A dataset is tried in a process of its own: whatever it does there, it harms nobody, and nothing is left running."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from feedline.errors import BadOption, DatasetFailed, InternalError
from feedline.tune.measured import STAGES
from feedline.tune.probe import probe

HERE = Path(__file__).parent


def failure(name: str, *, seconds: float = 0.5, memory_bytes: int | None = None) -> DatasetFailed:
    with pytest.raises(DatasetFailed) as caught:
        probe(f"{HERE / 'broken.py'}:{name}", seconds=seconds, memory_bytes=memory_bytes)
    return caught.value


def test_parts_and_stages() -> None:
    stages: list[str] = []
    measured = probe(f"{HERE / 'broken.py'}:Plain", seconds=2, on_stage=stages.append)
    assert stages == [stage for stage in STAGES if stage != "loader"]
    assert measured.ended is None
    assert measured.making is not None
    assert (measured.making.kind, measured.making.length, measured.making.is_map) == ("Plain", 100, True)
    assert measured.samples is not None
    assert len(measured.samples.seconds) == 100
    assert measured.samples.sample_bytes == 64
    assert measured.batch is not None
    assert measured.batch.size == 32
    assert measured.threads is None, "samples that take microseconds are not worth threads"
    assert measured.loader is None


@pytest.mark.parametrize(
    ("name", "reason", "text", "traceback"),
    [
        ("Raising", "raises", r"None of the 16 samples .* could be made. The first was sample \d+", "in look_up"),
        ("Leaving", "raises", "None of the 16 samples", "SystemExit: that is all"),
        ("NoLength", "raises", r"len\(dataset\) failed: OSError: the listing is gone", "in __len__"),
        ("RaisingStream", "raises", r"iter\(dataset\) failed: OSError: the queue is gone", "in __iter__"),
        ("Empty", "empty", r"is empty: len\(Empty\) is 0", ""),
        ("EmptyStream", "empty", "is empty: it has no samples", ""),
        ("Hanging", "hangs", "did not come to an end within .*and samples were made", "in wait_for_ever"),
        ("HangingToBeMade", "hangs", "while it was imported and made", "in __init__"),
        ("Crashing", "crashes", r"was killed by signal 11 \(Segmentation fault\)", "in __getitem__"),
        ("Exiting", "crashes", "ended its process with status 9", ""),
        ("ForkingAndExiting", "crashes", "ended its process with status 9", ""),
    ],
)
def test_what_cannot_be_tried(name: str, reason: str, text: str, traceback: str) -> None:
    exc = failure(name)
    assert exc.reason == reason
    assert re.search(text, str(exc), re.DOTALL)
    assert traceback in exc.traceback
    assert "broken.py" in exc.traceback or not traceback


def test_one_that_eats_memory_is_ended() -> None:
    began_s = time.monotonic()
    exc = failure("Eating", seconds=30, memory_bytes=256 << 20)
    assert exc.reason == "crashes"
    assert re.search(r"took .* of memory, and 256.0 MiB is what it may take", str(exc))
    assert time.monotonic() - began_s < 20


def test_what_it_has_started_ends_with_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert failure("Starting").reason == "hangs"
    (pid,) = re.findall(r"pid (\d+)", capfd.readouterr().err)
    # Killed, and perhaps not yet taken note of by whoever inherits it.
    status = Path(f"/proc/{pid}/status")
    deadline_s = time.monotonic() + 10
    while status.exists() and "State:\tZ" not in status.read_text() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not status.exists() or "State:\tZ" in status.read_text()


def test_it_is_done_though_others_have_its_connection() -> None:
    began_s = time.monotonic()
    assert probe(f"{HERE / 'broken.py'}:Forking", seconds=30).ended is None
    assert time.monotonic() - began_s < 20


def test_what_was_measured_before_it_hung_is_kept() -> None:
    measured = probe(f"{HERE / 'broken.py'}:HangingLater", seconds=1)
    assert measured.samples is not None
    assert measured.batch is not None
    assert measured.threads is None
    assert measured.ended is not None
    assert "while several threads made samples" in measured.ended


def test_what_is_no_dataset() -> None:
    with pytest.raises(BadOption, match="is 3, of type int, which is no dataset") as caught:
        probe(f"{HERE / 'broken.py'}:number", seconds=1)
    assert not isinstance(caught.value, DatasetFailed)


def test_a_fault_of_the_probe_is_not_blamed_on_the_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.tune.probing.process.try_batch", lambda *_: 1 / 0)
    with pytest.raises(InternalError, match=r"(?s)while a batch was put together.*ZeroDivisionError"):
        probe(f"{HERE / 'broken.py'}:Plain", seconds=1)
