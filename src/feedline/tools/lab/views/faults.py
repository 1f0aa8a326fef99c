"""Faults: a worker is killed or frozen, a sample fails, the run is cut and resumed by another loader."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
from torch.utils.data import Dataset

from feedline.tools.lab.loaders import loader_of
from feedline.tools.lab.pictures import Event, buttons, cells, code, doing, figures, say, table
from feedline.tools.lab.view import Clicks, Control, View

_BATCH = 4
_SAMPLES = 288
_SAMPLE_S = 0.012
_STEP_S = 0.03
_LATE_S = 0.25
_ROW = 18
_BUTTONS = {"kill": "Kill a worker", "freeze": "Freeze a worker", "break": "Break a sample", "cut": "Cut and resume"}
_SIGNALS = {"kill": (signal.SIGKILL, "killed"), "freeze": (signal.SIGSTOP, "frozen")}
_SHADES = (*(f"class-{number}" for number in range(8)), "slot", "queue", "start", "bad")
"""Colours of processes. Processes with the same colour are far apart."""
_AT = {"kill": 10, "freeze": 20, "break": 40, "cut": 60}
"""After how many batches each fault happens by itself. A frozen worker is detected before the cut."""


class Fragile(Dataset[torch.Tensor]):
    """Samples that contain their index and process id. Files in a folder control what goes wrong.

    A sample whose index is in `broken` raises. A file in `due` stops the first worker that finds it, in the middle of
    a batch. Workers record what happens to them in `lost`, and the samples that they start in `begun`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        _append(self.folder / "begun", str(index))
        for fault in (self.folder / "due").iterdir():
            with contextlib.suppress(FileNotFoundError):  # another worker has found it
                fault.unlink()
                number, what = _SIGNALS[fault.suffix[1:]]
                _append(self.folder / "lost", f"Worker process {os.getpid()} was {what}.")
                os.kill(os.getpid(), number)
        time.sleep(_SAMPLE_S)
        if str(index) in _lines(self.folder / "broken"):
            raise ValueError(f"sample {index} is damaged")
        return torch.tensor([index, os.getpid()])


def faults(
    clicks: Clicks,
    workers: Annotated[int, Control("Workers", 1, 4)] = 3,
    happens: Annotated[str, Control("Happens by itself", options=("nothing", *_AT, "all of them"))] = "kill",
) -> Iterator[Event]:
    """Kill workers, freeze them or break samples, and see that no other sample is lost.

    Each colour is one worker process. A worker that dies loses the batch that it was making; another worker makes that
    batch again, and training gets it once, in its place. With seed=, the random numbers of a sample follow from the
    seed, the epoch and the index, whichever worker makes it.

    A cut saves the state of the loader, and a new loader with a different number of workers resumes from it. The
    counts at the end show that nothing was lost or delivered twice.
    """
    saved = "state = loader.state_dict()  # after any batch; another loader resumes with load_state_dict(state)"
    yield code(f"{_code(workers)}\n{saved}")
    yield doing("Delivering batches. Click a button to cause a fault.")
    yield buttons(_BUTTONS)
    warnings.simplefilter("ignore")  # the page shows the same information
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "due").mkdir()
        epoch = _Epoch(workers, Path(folder))
        try:
            while epoch.take():
                yield from epoch.shown()
                by_itself = [name for name, at in _AT.items() if happens in (name, "all of them") and at == epoch.count]
                while not clicks.empty():
                    by_itself.append(clicks.get())
                for fault in by_itself:
                    yield say(epoch.cause(fault))
                time.sleep(_STEP_S)
        finally:
            epoch.loader.close()
        yield from epoch.shown()
        yield say(epoch.verdict())


class _Epoch:
    """An epoch in which things go wrong, and what the page shows about it."""

    def __init__(self, workers: int, folder: Path) -> None:
        self.count = 0
        self._workers = workers
        self._folder = folder
        self._start()
        self._order: list[int] = list(self.loader.sampler)
        self._seen: Counter[int] = Counter()
        self._shades: dict[int, str] = {}
        self._drawn: list[tuple[str, str]] = []
        self._log: list[list[str]] = []
        self._due = self._lost = 0
        """Workers that will be stopped, and workers that were."""
        self._replaced_before = self._skipped_before = 0
        """Counts of the loaders before the current one."""

    def _start(self, state: str = "") -> None:
        # Any: torch's types.
        self.loader: Any = loader_of(_code(self._workers), dataset=Fragile(self._folder))
        if state:
            self.loader.load_state_dict(json.loads(state))
        self._batches = iter(self.loader)

    def take(self) -> bool:
        """Take the next batch; False at the end of the epoch."""
        asked = time.monotonic()
        batch = next(self._batches, None)
        if batch is None:
            return False
        waited_s, pid, indices = time.monotonic() - asked, int(batch[0, 1]), batch[:, 0].tolist()
        self._seen.update(indices)
        shade = self._shades.setdefault(pid, _SHADES[len(self._shades) % len(_SHADES)])
        self._drawn.append((f"{self.count}{'!' if len(indices) < _BATCH else ''}", shade))
        if waited_s > _LATE_S:
            self._note(f"Training waited {waited_s:.1f} s for batch {self.count}, made by process {pid}.")
        self.count += 1
        return True

    def cause(self, fault: str) -> str:
        """Cause a fault, and return a sentence about it."""
        if fault in _SIGNALS:
            if len(set(_lines(self._folder / "begun"))) == _SAMPLES:
                return "All samples have been made already: run again and click earlier."
            self._due += 1
            (self._folder / "due" / f"{self._due}.{fault}").touch()
            return f"The next worker that starts a sample will be {_SIGNALS[fault][1]}."
        if fault == "break":
            broken = _lines(self._folder / "broken")
            victim = next(index for index in reversed(self._order) if str(index) not in broken)
            _append(self._folder / "broken", str(victim))
            text = f"Sample {victim} raises an exception from now on."
        else:
            state = json.dumps(self.loader.state_dict())
            self._replaced_before, self._skipped_before = self._replaced, self._skipped
            self.loader.close()
            self._workers = 1 + self._workers % 4
            self._start(state)
            text = f"A new loader with {self._workers} workers resumes from a state of {len(state)} bytes."
        self._note(text)
        return text

    def shown(self) -> Iterator[Event]:
        """Yield the pictures and figures of what has happened so far."""
        lost = _lines(self._folder / "lost")
        for text in lost[self._lost :]:
            self._note(text)
        self._lost = len(lost)
        rows = [(f"from {at}", self._drawn[at : at + _ROW]) for at in range(0, max(1, self.count), _ROW)]
        legend = {f"process {pid}": shade for pid, shade in self._shades.items()}
        yield cells("delivered", "Batches in the order of delivery (! marks a shorter one)", rows, legend)
        begun = _lines(self._folder / "begun")
        yield figures(
            {
                "batches": self.count,
                "samples": sum(self._seen.values()),
                "repeated": self._repeated,
                "workers lost": self._lost,
                "workers replaced": self._replaced,
                "samples made again": len(begun) - len(set(begun)),
                "samples skipped": self._skipped,
            }
        )
        if self._log:
            yield table("log", "What happened", ["after batch", "what"], self._log)

    def verdict(self) -> str:
        """Return a sentence on the whole epoch."""
        missing = sorted(set(range(_SAMPLES)) - set(self._seen))
        named = f"{len(missing)} skipped by name ({', '.join(map(str, missing))})" if missing else "none missing"
        return f"The epoch is over: {len(self._seen)} samples delivered, {self._repeated} repeated, {named}."

    def _note(self, text: str) -> None:
        self._log.append([str(self.count), text])

    @property
    def _repeated(self) -> int:
        return sum(count > 1 for count in self._seen.values())

    @property
    def _replaced(self) -> int:
        return self._replaced_before + int(self.loader.stats()["restarted_workers"])

    @property
    def _skipped(self) -> int:
        return self._skipped_before + len([fault for fault in self.loader.faults if fault.action == "skip"])


def _append(file: Path, line: str) -> None:
    """Append a line to a file that several processes write to."""
    with file.open("a") as opened:
        opened.write(f"{line}\n")


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def _code(workers: int) -> str:
    return f"""from feedline import DataLoader

loader = DataLoader(
    dataset,
    batch_size={_BATCH},
    shuffle=True,
    seed=0,
    num_workers={workers},
    timeout=0.75,  # a worker that takes longer is stuck
    restarts=8,  # stuck and dead workers are replaced, up to 8 per epoch
    on_error="skip",  # samples that fail are skipped and listed in loader.faults
)"""


VIEW = View(faults, presets=[{"happens": name} for name in ("nothing", *_AT, "all of them")])
