"""Forking workers while other threads of the trainer are busy does not deadlock.

A fork copies one thread and every lock. A worker that takes a lock held by another thread would wait forever, and a
library that ends its threads before a fork may never answer those that wait for them. Each program here starts loaders
one after the other while its other threads run; both the workers and these threads must end.
"""

from __future__ import annotations

import pytest

from tests import program_server
from tests.faults.programs import running_afresh

pytestmark = pytest.mark.sample(12)

START = """
import threading, warnings
warnings.simplefilter("error", feedline.errors.FeedlineWarning)  # a worker that hangs is not to be replaced in silence

ended = threading.Event()

class Busy(threading.Thread):
    '''A thread of the trainer that does the same again and again.'''
    def __init__(self, work):
        super().__init__(daemon=True)
        self.work = work
        self.rounds = 0
        self.first = threading.Event()
        self.start()
        assert self.first.wait(100)
    def run(self):
        while not ended.is_set():
            self.work()
            self.rounds += 1
            self.first.set()

class Samples:
    '''Sample i is i; `make` is what making it involves.'''
    def __init__(self, make):
        self.make = make
    def __len__(self):
        return 4
    def __getitem__(self, index):
        self.make()
        return index

def start_loaders(dataset, busy, **options):
    for number in range(int(sys.argv[1])):
        if "torch" in sys.modules:
            loader = feedline.DataLoader(dataset, 1, num_workers=2, timeout=100, sampler=range(4), **options)
        else:
            loader = Loader(dataset, 1, workers=2, timeout_s=100, sampler=range(4), **options)
        assert [batch.item() for batch in loader] == [0, 1, 2, 3]
        say(number, sum(thread.rounds for thread in busy))
    ended.set()
    for thread in busy:
        thread.join(100)
    say("stuck" if any(thread.is_alive() for thread in busy) else "done")
"""


FEWER_OPENCV_THREADS = """
import cv2
cv2.setNumThreads(4)
image = np.zeros((512, 512, 3), np.uint8)
cv2.GaussianBlur(image, (11, 11), 3)  # makes OpenCV's threads

def blur():
    cv2.GaussianBlur(image, (11, 11), 3)

start_loaders(Samples(blur), [], worker_init=lambda number: cv2.setNumThreads(1))
assert cv2.getNumThreads() == 4
"""


GENERATORS = """
import torch

def draw():
    torch.rand(200_000)
    np.random.rand(200_000)

start_loaders(Samples(draw), [Busy(lambda: torch.rand(200_000)), Busy(lambda: np.random.rand(200_000))])
"""

MATRICES = """
square = np.random.default_rng(0).random((300, 300))
start_loaders(Samples(lambda: square @ square), [Busy(lambda: square @ square)])
"""


COMMON_LOCK = """
class Locked(Samples):
    def __init__(self):
        self.lock, self.again = threading.Lock(), threading.RLock()
    def __getitem__(self, index):
        with self.lock, self.again:
            time.sleep(0.001)  # the lock is what it waits with
            return index

dataset = Locked()

def epoch():
    for batch in Loader(dataset, 1, workers=2, engine="thread"):
        pass

start_loaders(dataset, [Busy(epoch)])
"""

# Without precautions, nearly every start of these hangs.
PROGRAMS = {
    "fewer threads of OpenCV": (FEWER_OPENCV_THREADS, 3),
    "generators": (GENERATORS, 4),
    "matrices": (MATRICES, 4),
    "common lock": (COMMON_LOCK, 4),
}


def check(text: str, starts: int) -> None:
    if "cv2" in text:
        pytest.importorskip("cv2")
    with running_afresh(START + text, starts) as program:
        for number in range(starts):
            assert program.line().split()[0] == str(number), program.errors()
        assert program.line() == "done"
        assert program.end() == 0, program.errors()
        assert program.errors() == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_loaders_start_while_other_threads_are_busy(name: str) -> None:
    check(*PROGRAMS[name])


OTHERS_FORK = """
import os, pathlib, signal
import cv2, feedline, numpy as np
cv2.setNumThreads(2)
for _ in range(5):
    cv2.GaussianBlur(np.zeros((512, 512, 3), np.uint8), (11, 11), 3)  # by threads that a fork does not copy
while sum(") R " in task.read_text() for task in pathlib.Path("/proc/self/task").glob("*/stat")) > 1:
    pass  # they spin for some time before they wait
pid = os.fork()
if pid == 0:
    signal.alarm(30)
    assert len(list(feedline.Loader(range(8), 2, workers=2))) == 4
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_process_forked_after_opencv_was_used_can_start_workers() -> None:
    pytest.importorskip("cv2")
    done = program_server.run(OTHERS_FORK)
    assert done.returncode == 0, done.stderr
