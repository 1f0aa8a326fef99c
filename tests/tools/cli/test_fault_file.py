from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from feedline import Loader
from feedline.abc.faults import MESSAGE_LENGTH
from feedline.delivery.state import Snapshot
from feedline.errors import BadState
from feedline.faults import Failure, Fault, FaultLog
from feedline.tools.cli.fault_file import FaultFile, find, first_lines, read

POSITION = Snapshot(0, draw_seed=1, order={"unit": "own batches", "consumed": 0})


@pytest.mark.parametrize("wrapped", [False, True])
def test_reads_faults_from_a_state_saved_as_json(tmp_path: Path, wrapped: bool) -> None:
    loader = Loader(dict.fromkeys(range(3), 0), 1, sampler=[0, 1, 2, 3, 9], on_error="skip")
    list(loader)
    state, path = loader.state_dict(), tmp_path / "state.json"
    path.write_text(json.dumps({"step": 3, "loader": state} if wrapped else state))
    file = read(path)
    findings = {finding.name: finding for finding in find(file)}
    assert findings["state"].problem == "at the end of epoch 0"
    assert findings["faults"].problem == "2: 2 skip"
    assert findings["in quarantine"].evidence == "2: 3, 9"
    assert first_lines(file)[0].startswith("sample 3: KeyError")


class Trap:
    """Creates a folder when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("protocol", [2, 5, "torch"])
def test_a_pickle_is_rejected_without_unpickling_it(tmp_path: Path, protocol: int | str) -> None:
    path, trace = tmp_path / "state.pt", tmp_path / "trace"
    if isinstance(protocol, str):
        torch.save({"loader": Trap(trace)}, path)
    else:
        path.write_bytes(pickle.dumps({"loader": Trap(trace)}, protocol))
    with pytest.raises(BadState, match=r"json\.dump\(loader\.state_dict\(\)"):
        read(path)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1, 2]", "contains no state"),
        (b'{"feedline": 99}', "format 99"),
        (json.dumps({**POSITION.as_dict(), "faults": {"entries": [{}]}}).encode(), "{} is not a fault"),
    ],
)
def test_files_that_are_not_a_state_are_rejected_with_the_reason(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadState, match=message) as refused:
        read(path)
    assert str(refused.value).count(str(path)) == 1


def test_text_from_a_file_cannot_control_the_terminal() -> None:
    error = OSError("\x1b]0;title\x07 two\nlines" + "x" * MESSAGE_LENGTH)
    log = FaultLog()
    log.append(Fault.of(Failure("\x1b[2Jname", error, "fetch", 1, worker=0), "skip", time=1.7e9))
    file = FaultFile(log, POSITION)
    texts = [*first_lines(file), *(f"{finding.problem} {finding.evidence}" for finding in find(file))]
    assert all(text.isprintable() for text in texts)
