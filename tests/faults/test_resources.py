"""With little shared memory, few descriptors, processes or addresses, a loader works or says what to change.

No process is killed, nothing hangs or leaks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.limits import SHARED_MEMORY, as_another_user, with_shared_memory
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


# -- processes ---

ONE_THREAD = ["env", "OPENBLAS_NUM_THREADS=1"]
"""NumPy's own threads come and go with forks, and if they cannot start, importing NumPy fails."""

FEW_PROCESSES = """
import gc, resource, warnings
from multiprocessing import forkserver, resource_tracker
from tests.contracts.engine import Numbers  # under a name that a worker can import
warnings.simplefilter("error", feedline.errors.FeedlineWarning)

def children():
    servers = {getattr(resource_tracker._resource_tracker, "_pid", None), forkserver._forkserver._forkserver_pid}
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split() if int(pid) not in servers]

def tasks():
    '''How many threads this user has, in all processes.'''
    count = 0
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            count += len(os.listdir(f"/proc/{process}/task")) * (os.stat(f"/proc/{process}").st_uid == os.getuid())
        except OSError:
            pass
    return count

def epoch(workers):
    loader = Loader(Numbers(), 4, workers=workers, sampler=range(32), start_method=sys.argv[1])
    assert [int(batch[0, 0]) for batch in loader] == list(range(0, 32, 4))
    loader.close()

limits = resource.getrlimit(resource.RLIMIT_NPROC)
resource_tracker.ensure_running()
has_server = sys.argv[1] == "forkserver"
resource.setrlimit(resource.RLIMIT_NPROC, (tasks() + has_server + int(sys.argv[2]), limits[1]))
if has_server:
    forkserver.ensure_running()  # which keeps the limit that it was started with
try:
    epoch(4)
except feedline.errors.WorkerStartError as exc:
    say("refused", exc)
else:
    say("worked")
gc.collect()
say("left", *children())
resource.setrlimit(resource.RLIMIT_NPROC, limits)
if sys.argv[1] == "forkserver":
    forkserver._forkserver._stop()
epoch(4)
say("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("start_method", "allowed"), [("fork", 0), ("forkserver", 2)])
def test_the_error_about_a_process_limit_names_ulimit(start_method: str, allowed: int) -> None:
    with running(FEW_PROCESSES, start_method, allowed, inside=[*as_another_user(), *ONE_THREAD]) as program:
        message = program.line()
        assert message.startswith("refused"), program.errors()
        assert "4 workers" in message
        assert "ulimit -u" in message
        assert program.line() == "left"
        assert program.line() == "done", "and works when the limit is gone"
        assert program.end() == 0, program.errors()


# -- descriptors, and the size of files ---

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
    with running(FEW_DESCRIPTORS, afresh=True) as program:
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
    with running(MANY_OPEN, afresh=True) as program:
        message = program.line()
        if message == "cannot":
            pytest.skip("the hard limit on open files is too low here")
        assert message == "done"
        assert program.end() == 0


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
@pytest.mark.parametrize("limit_mib", [1024, 8])
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
