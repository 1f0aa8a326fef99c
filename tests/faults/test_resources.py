"""With little shared memory, or a limit on the size of files, a loader works or says what to change.

`tests/workers` and `tests/memory` have the limits on descriptors, processes and addresses.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.limits import SHARED_MEMORY, with_shared_memory
from tests.faults.programs import running

# -- /dev/shm ---

LARGE_BATCHES = """
import os.path
from feedline.workers import abilities
if sys.argv[1] == "portable":
    abilities.can_share_arenas = lambda: False

class Blocks(Numbers):
    '''Sample i is 8 MB full of i.'''
    def __getitem__(self, index):
        return np.full((8, 1 << 20), index, np.uint8)

kept = []
for batch_size, count in (10, 20), (1, 12):  # two batches of 80 MB, and a dozen of 8
    for batch in Loader(Blocks(count), batch_size, workers=2, memory_budget=int(sys.argv[2])):
        kept.append(batch)
firsts = [batch[:, 0, 0].tolist() for batch in kept]
assert firsts == [list(range(10)), list(range(10, 20)), *([number] for number in range(12))], firsts
assert all((batch == batch[:, :1, :1]).all() for batch in kept)
say(sorted(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else [])
"""


@pytest.mark.parametrize(
    ("memory", "engine"),
    [
        ("64 MB", "process"),
        *(pytest.param(memory, "portable", marks=pytest.mark.slow) for memory in SHARED_MEMORY),
        pytest.param("0 bytes", "process", marks=pytest.mark.slow),
    ],
)
def test_batches_larger_than_dev_shm_arrive(memory: str, engine: str, tmp_path: Path) -> None:
    with running(LARGE_BATCHES, engine, 1 << 30, inside=with_shared_memory(memory, tmp_path / "dev")) as program:
        assert program.line() == "[]"
        assert program.end() == 0, program.errors()
        assert program.errors() == ""


# -- descriptors, and the size of files ---


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
@pytest.mark.parametrize("limit_mib", [64, 8])
def test_batches_within_a_file_size_limit_arrive_and_larger_ones_raise(limit_mib: int) -> None:
    """The limit also applies to shared memory. A batch within it arrives, in a slot or in its own file."""
    most = min(limit_mib << 20, 64 << 20) // 2
    sizes = [1000, most // 4, most - 8192, *([most + 1] if limit_mib <= 64 else [])]
    with running(FILE_LIMIT, "fork", limit_mib, *sizes, afresh=True) as program:
        messages = [program.line().partition(" ")[2] for _ in sizes]
        assert program.end() == 0, program.errors()
    assert messages[:3] == ["worked"] * 3
    for refusal in messages[3:]:
        assert f"larger than the {limit_mib} MiB" in refusal
        assert f"(`ulimit -f`), which applies to shared memory too, is {limit_mib << 20} bytes" in refusal
        assert "smaller batch size" in refusal
        assert "ulimit -v" not in refusal
