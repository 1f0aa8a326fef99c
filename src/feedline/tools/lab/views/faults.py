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

from feedline.errors import WorkerWarning
from feedline.tools.lab import view as lab

_BATCH = 4
_SAMPLES = 288
_SAMPLE_S = 0.012
_STEP_S = 0.03
_ROW = 18
_BUTTONS = {"kill": "Kill a worker", "freeze": "Freeze a worker", "break": "Break a sample", "cut": "Cut and resume"}
_AT = {"kill": 10, "freeze": 20, "break": 40, "cut": 60}
"""After how many batches each fault happens by itself. A frozen worker is detected before the cut."""
_SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}
_SHADES = (*(f"class-{number}" for number in range(8)), "slot", "queue", "start", "bad")
"""Colours of processes. Processes with the same colour are far apart."""


class Fragile(Dataset[torch.Tensor]):
    """Samples that contain their index and process id. Files in a folder control what goes wrong.

    `kill.1` or `freeze.2` stops the first worker that finds it, in the middle of a batch; sample 7 raises if there is
    `broken.7`. The samples that were started are listed in `begun`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        with (self.folder / "begun").open("a") as begun:
            begun.write(f"{index}\n")
        for fault, number in _SIGNALS.items():
            for due in self.folder.glob(f"{fault}.*"):
                with contextlib.suppress(FileNotFoundError):  # another worker has found it
                    due.unlink()
                    os.kill(os.getpid(), number)
        time.sleep(_SAMPLE_S)
        if (self.folder / f"broken.{index}").exists():
            raise ValueError(f"sample {index} is damaged")
        return torch.tensor([index, os.getpid()])


def faults(
    clicks: lab.Clicks,
    workers: Annotated[int, lab.Control("Workers", 1, 4)] = 3,
    happens: Annotated[str, lab.Control("Happens by itself", options=("nothing", *_AT, "all of them"))] = "kill",
) -> Iterator[lab.Event]:
    """Kill workers, freeze them or break samples, and see that no other sample is lost.

    Each colour is one worker process. A worker that dies loses the batch that it was making; another worker makes that
    batch again, and training gets it once, in its place. With seed=, the random numbers of a sample follow from the
    seed, the epoch and the index, whichever worker makes it.

    A cut saves the state of the loader, and a new loader with a different number of workers resumes from it. The
    counts at the end show that nothing was lost or delivered twice.
    """
    saved = "state = loader.state_dict()  # after any batch; another loader resumes with load_state_dict(state)"
    yield lab.code(f"{_code(workers)}\n{saved}")
    yield lab.doing("Delivering batches. Click a button to cause a fault.")
    yield lab.buttons(_BUTTONS)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", WorkerWarning)
        epoch = _Epoch(workers, Path(folder), caught)
        while epoch.take():
            yield from epoch.shown()
            due = [fault for fault, at in _AT.items() if happens in (fault, "all of them") and at == epoch.count]
            while not clicks.empty():
                due.append(clicks.get())
            for fault in due:
                yield lab.say(epoch.cause(fault))
            time.sleep(_STEP_S)
        epoch.loader.close()
        yield from epoch.shown()
        yield lab.say(epoch.result())


class _Epoch:
    """An epoch in which things go wrong, and what the page shows about it."""

    def __init__(self, workers: int, folder: Path, caught: list[warnings.WarningMessage]) -> None:
        self.count = 0
        self._workers, self._folder, self._caught = workers, folder, caught
        self._seen, self._replaced, self._log = Counter[int](), 0, list[list[str]]()
        self._drawn: list[tuple[str, str]] = []
        self._shades: dict[int, str] = {}
        self._open(None)
        self._left: list[int] = list(self.loader.sampler)
        """Samples that may be broken, in the order of the epoch."""

    # Any: torch's types.
    def _open(self, state: dict[str, Any] | None) -> None:
        self.loader: Any = lab.loader_of(_code(self._workers), dataset=Fragile(self._folder))
        if state:
            self.loader.load_state_dict(state)
        self._batches = iter(self.loader)

    def take(self) -> bool:
        """Take the next batch; False at the end of the epoch."""
        batch = next(self._batches, None)
        while self._caught:  # the loader's own messages
            self._note(str(self._caught.pop(0).message))
        if batch is None:
            return False
        self._seen.update(batch[:, 0].tolist())
        shade = self._shades.setdefault(int(batch[0, 1]), _SHADES[len(self._shades) % len(_SHADES)])
        self._drawn.append((f"{self.count}{'!' if len(batch) < _BATCH else ''}", shade))
        self.count += 1
        return True

    def cause(self, fault: str) -> str:
        """Cause a fault, and return a sentence about it."""
        if fault in _SIGNALS:
            (self._folder / f"{fault}.{self.count}").touch()
            return f"The next worker that starts a sample will {'die' if fault == 'kill' else 'freeze'}."
        if fault == "break":
            victim = self._left.pop()
            (self._folder / f"broken.{victim}").touch()
            return self._note(f"Sample {victim} raises an exception from now on.")
        saved, self._replaced = json.dumps(self.loader.state_dict()), self._all_replaced()
        self.loader.close()
        self._workers = 1 + self._workers % 4
        self._open(json.loads(saved))
        return self._note(f"A new loader with {self._workers} workers resumes from a state of {len(saved)} bytes.")

    def shown(self) -> Iterator[lab.Event]:
        """Yield the pictures and figures of what has happened so far."""
        rows = [(f"from {at}", self._drawn[at : at + _ROW]) for at in range(0, max(1, self.count), _ROW)]
        legend = {f"process {pid}": shade for pid, shade in self._shades.items()}
        yield lab.cells("delivered", "Batches in the order of delivery (! marks a shorter one)", rows, legend)
        begun = (self._folder / "begun").read_text().split()
        seen = {"batches": self.count, "samples": self._seen.total(), "repeated": self._repeated()}
        made = {"samples made again": len(begun) - len(set(begun)), "workers replaced": self._all_replaced()}
        yield lab.figures({**seen, **made, "samples skipped": len(self.loader.faults.quarantined)})
        if self._log:
            yield lab.table("log", "What happened", ["after batch", "what"], self._log)

    def result(self) -> str:
        """Return a sentence on the whole epoch."""
        missing = sorted(set(range(_SAMPLES)) - set(self._seen))
        named = f"{len(missing)} skipped by name ({', '.join(map(str, missing))})" if missing else "none missing"
        return f"The epoch is over: {len(self._seen)} samples delivered, {self._repeated()} repeated, {named}."

    def _note(self, text: str) -> str:
        self._log.append([str(self.count), text])
        return text

    def _repeated(self) -> int:
        return sum(count > 1 for count in self._seen.values())

    def _all_replaced(self) -> int:
        return self._replaced + int(self.loader.stats()["restarted_workers"])


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


VIEW = lab.View(faults, presets=[{"happens": name} for name in ("nothing", *_AT, "all of them")])
