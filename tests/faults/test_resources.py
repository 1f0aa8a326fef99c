"""With little shared memory, few descriptors, processes or addresses, a loader works or says what to change.

No process is killed, nothing hangs or leaks. `test_limits.py` has the tests that need no separate program.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.limits import SHARED_MEMORY, as_another_user, with_shared_memory
from tests.faults.programs import running_afresh

pytestmark = pytest.mark.sample(7)

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


@pytest.mark.parametrize("memory", SHARED_MEMORY)
@pytest.mark.parametrize("engine", ["process", "portable"])
def test_batches_larger_than_dev_shm_arrive(memory: str, engine: str, tmp_path: Path) -> None:
    with running_afresh(LARGE_BATCHES, engine, 1 << 30, inside=with_shared_memory(memory, tmp_path / "dev")) as program:
        assert program.line() == "[]"
        assert program.end() == 0, program.errors()
        assert program.errors() == ""


# -- descriptors ---

THOUSANDS_KEPT = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
budget = None if sys.argv[2] == "None" else int(sys.argv[2])
loader = Loader(np.arange(3000), 2, workers=2, engine=sys.argv[1], memory_budget=budget, persistent=True)
kept = [batch for _ in range(2) for batch in loader]
assert [batch.tolist() for batch in kept] == [[start, start + 1] for start in range(0, 3000, 2)] * 2
say("done", len(os.listdir("/proc/self/fd")) < 100)
loader.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["process", "thread"])
@pytest.mark.parametrize("memory_budget", [None, 0])
def test_thousands_of_batches_are_kept_with_few_descriptors(engine: str, memory_budget: int | None) -> None:
    with running_afresh(THOUSANDS_KEPT, engine, memory_budget) as program:
        assert program.line() == "done True"
        assert program.end() == 0, program.errors()


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
@pytest.mark.parametrize("allowed", [0, 2], ids=["no worker", "two of four workers"])
@pytest.mark.parametrize(
    "start_method",
    ["fork", pytest.param("forkserver", marks=pytest.mark.slow), pytest.param("spawn", marks=pytest.mark.slow)],
)
def test_the_error_about_a_process_limit_names_ulimit(start_method: str, allowed: int) -> None:
    with running_afresh(FEW_PROCESSES, start_method, allowed, inside=[*as_another_user(), *ONE_THREAD]) as program:
        message = program.line()
        assert message.startswith("refused"), program.errors()
        assert "4 workers" in message
        assert "ulimit -u" in message
        assert program.line() == "left"
        assert program.line() == "done", "and works when the limit is gone"
        assert program.end() == 0, program.errors()
