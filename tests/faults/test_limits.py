"""Loaders work with little memory, few descriptors and a tiny /dev/shm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from feedline import DataLoader
from feedline.types import EngineName
from tests.faults.programs import running_afresh

pytestmark = pytest.mark.sample(5)

# -- descriptors ---


FEW_DESCRIPTORS = """
import gc
from tests.faults.limits import descriptors_left

def epoch():
    loader = Loader(Numbers(), 8, workers=2)
    assert len(list(loader)) == 8
    loader.close()

epoch()  # whatever is imported or started once
enough = 0
for left in range(0, 30):
    before = len(os.listdir("/proc/self/fd"))
    message = "enough"
    try:
        with descriptors_left(left):
            epoch()
    except feedline.errors.TooManyOpenFiles as exc:
        message = str(exc)
    gc.collect()
    more = len(os.listdir("/proc/self/fd")) - before
    say(left, more, message)
    enough = enough + 1 if message == "enough" else 0
    if enough == 3:
        break
"""


@pytest.mark.slow
def test_few_descriptors_are_enough_or_the_error_says_so() -> None:
    """With forked workers, since Python's fork server does not survive a client that runs out of descriptors."""
    with running_afresh(FEW_DESCRIPTORS) as program:
        lines = [program.line().split(maxsplit=2)]
        while [message for _, _, message in lines[-3:]] != ["enough"] * 3:
            lines.append(program.line().split(maxsplit=2))
        assert program.end() == 0, program.errors()
    assert lines[0][2] != "enough"
    assert all(message == "enough" or "ulimit -n" in message for _, _, message in lines)
    # To start a process Python creates two pipes; if the second fails, it leaks the first.
    assert all(more == "0" or (more == "2" and message != "enough") for _, more, message in lines), lines


MANY_OPEN = """
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
if hard != resource.RLIM_INFINITY and hard < 2000:
    say("cannot")
    sys.exit()
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, hard))
taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1200)]

class Slow(Numbers):
    def __getitem__(self, index):
        time.sleep(0.3 if index == 0 else 0)  # somebody looks whether the others live
        return super().__getitem__(index)

assert len(list(Loader(Slow(), 4, workers=2))) == 16
say("done")
"""


@pytest.mark.slow
def test_loaders_work_with_more_than_a_thousand_open_descriptors() -> None:
    with running_afresh(MANY_OPEN) as program:
        message = program.line()
        if message == "cannot":
            pytest.skip("the hard limit on open files is too low here")
        assert message == "done"
        assert program.end() == 0


# -- memory ---


def small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.memory.sparse._LARGEST_MAPPING", 1 << 20)
    monkeypatch.setattr("feedline.memory.sparse._SMALLEST_SLOT", 4096)


class Tensors(Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": torch.full((200, 100), float(index)), "label": index, "name": str(index)}


@pytest.mark.parametrize("keep", [False, True])
def test_batches_too_large_for_their_slots_arrive(monkeypatch: pytest.MonkeyPatch, keep: bool) -> None:
    small_slots(monkeypatch)
    loader = DataLoader(Tensors(), 4, num_workers=2)
    kept = []
    for place, batch in enumerate(loader):
        assert batch["label"].tolist() == list(range(4 * place, 4 * place + 4))
        assert batch["image"][:, 0, 0].tolist() == batch["label"].tolist()
        if keep:
            kept.append(batch)
    assert loader.stats()["overflowed_batches"] == 6
    for place, batch in enumerate(kept):
        assert batch["image"][:, 199, 99].tolist() == list(range(4 * place, 4 * place + 4))


# -- files ---

FILE_LIMIT = """
import resource

class Blocks(Numbers):
    def __getitem__(self, index):
        return np.full(size, index, np.uint8)

if __name__ == "__main__":
    method, limit = sys.argv[1], int(sys.argv[2]) << 20
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    for size in map(int, sys.argv[3:]):
        dataset = Blocks(12)
        loader = Loader(dataset, 2, workers=2, prefetch=1, start_method=method)
        message = "worked"
        try:
            for place, batch in enumerate(loader):
                assert batch[:, 0].tolist() == [2 * place, 2 * place + 1]
                assert (batch == batch[:, :1]).all()
            assert place == 5
        except feedline.errors.TransportError as exc:
            message = str(exc)
        loader.close()
        say(size, message)
"""


@pytest.mark.slow
@pytest.mark.parametrize("limit_mib", [1024, 64, 8])
def test_batches_within_a_file_size_limit_arrive_and_larger_ones_raise(limit_mib: int) -> None:
    """The limit also applies to shared memory. A batch within it arrives, in a slot or in its own file."""
    most = min(limit_mib << 20, 64 << 20) // 2
    sizes = [1000, most // 4, most - 8192, *([most + 1] if limit_mib <= 64 else [])]
    with running_afresh(FILE_LIMIT, "fork", limit_mib, *sizes) as program:
        messages = [program.line().partition(" ")[2] for _ in sizes]
        assert program.end() == 0, program.errors()
    assert messages[:3] == ["worked"] * 3
    for refusal in messages[3:]:
        assert f"larger than the {limit_mib} MiB" in refusal
        assert f"(`ulimit -f`), which applies to shared memory too, is {limit_mib << 20} bytes" in refusal
        assert "smaller batch size" in refusal
        assert "ulimit -v" not in refusal


# -- locked memory ---

LOCKED = """
import ctypes, resource
if ctypes.CDLL(None).mlockall(3):
    say("cannot")
    sys.exit()

def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))

class Blocks(Numbers):
    def __getitem__(self, index):
        return np.full(200_000, index, np.uint8)

resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + (4 << 30),) * 2)  # or a failure would fill the machine
loader = Loader(Blocks(), 4, workers=int(sys.argv[2]), engine=sys.argv[1], memory_budget=3_000_000)
before = status("VmRSS")
for _ in range(2):
    assert [int(batch[0, 0]) for batch in loader] == list(range(0, 64, 4))
say(status("VmRSS") - before)
"""


@pytest.mark.slow
def test_locked_memory_holds_no_more_than_batches_need(engine: EngineName) -> None:
    with running_afresh(LOCKED, engine, 0 if engine == "inline" else 2) as program:
        message = program.line()
        if message == "cannot":
            pytest.skip("needs the right to lock memory (CAP_IPC_LOCK, or ulimit -l)")
        assert program.end() == 0, program.errors()
    assert int(message) < 64 << 20, "threads and modules, in addition to batches"
