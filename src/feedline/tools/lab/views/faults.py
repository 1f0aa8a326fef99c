"""Faults: a worker is killed or frozen, a sample fails, the run is cut and resumed by another loader."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import Dataset

import feedline
from feedline.tools.lab.apart import apart
from feedline.tools.lab.controls import Choice, Number, Values
from feedline.tools.lab.pictures import Event, buttons, cells, doing, figures, say, table
from feedline.tools.lab.view import Actions, View

_BATCH = 4
_BATCHES = 72
_SAMPLE_S = 0.012
_TIMEOUT_S = 0.75
_STEP_S = 0.03
_ACTIONS = {
    "kill": "Kill a worker",
    "freeze": "Freeze a worker",
    "break": "Break a sample",
    "cut": "Cut and resume",
}
_SIGNALS = {"kill": (signal.SIGKILL, "killed"), "freeze": (signal.SIGSTOP, "frozen")}
_SHADES = (*(f"class-{number}" for number in range(8)), "slot", "queue", "start", "bad")
"""Colours of processes. Processes with the same colour are far apart."""
_AT = {"kill": 10, "freeze": 20, "break": 40, "cut": 60}
"""After how many batches each fault happens by itself. A frozen worker is detected before the cut."""


class Fragile(Dataset[torch.Tensor]):
    """Samples that contain their index and process id. Files in a folder control what goes wrong.

    A sample whose index is in `broken.txt` raises. A file in `due` stops the first worker that finds it, in the middle
    of a batch. Workers record what happens to them in `lost.txt`, and the samples that they start in `begun.txt`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return _BATCH * _BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        append(self.folder / "begun.txt", str(index))
        for fault in (self.folder / "due").iterdir():
            with contextlib.suppress(FileNotFoundError):  # another worker has found it
                fault.unlink()
                number, what = _SIGNALS[fault.suffix[1:]]
                append(self.folder / "lost.txt", f"Worker process {os.getpid()} was {what}.")
                os.kill(os.getpid(), number)
        time.sleep(_SAMPLE_S)
        if str(index) in lines_of(self.folder / "broken.txt"):
            raise ValueError(f"sample {index} is damaged")
        return torch.tensor([index, os.getpid()])


def append(file: Path, line: str) -> None:
    """Append a line to a file that several processes write to."""
    with file.open("a") as opened:
        opened.write(f"{line}\n")


def lines_of(file: Path) -> list[str]:
    """Return the lines of a file; none if it does not exist yet."""
    return file.read_text().splitlines() if file.exists() else []


def _run(values: Values, actions: Actions) -> Iterator[Event]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "due").mkdir()
        yield from _Epoch(values, Path(folder)).run(actions)


class _Epoch:
    """An epoch in which things go wrong, and what the page shows about it."""

    def __init__(self, values: Values, folder: Path) -> None:
        self._values = values
        self._folder = folder
        self._workers = values["workers"]
        self._loader = self._new_loader()
        self._order: list[int] = list(self._loader.sampler)
        self._seen: Counter[int] = Counter()
        self._pids: dict[int, str] = {}
        self._drawn: list[tuple[str, str]] = []
        self._log: list[list[str]] = []
        self._due_count = self._lost = 0
        """Workers that will be stopped, and workers that were."""
        self._replaced_before = self._skipped_before = 0
        """Counts of the loaders before the current one."""

    def run(self, actions: Actions) -> Iterator[Event]:
        warnings.simplefilter("ignore")  # the page shows the same information
        yield doing("Delivering batches. Click a button to cause a fault.")
        yield buttons(_ACTIONS)
        batches = iter(self._loader)
        try:
            while True:
                asked = time.monotonic()
                batch = next(batches, None)
                if batch is None:
                    break
                self._take(batch, time.monotonic() - asked)
                yield from self._shown()
                for action in self._due(actions):
                    yield say(self._do(action))
                    if action == "cut":
                        batches = iter(self._loader)
                time.sleep(_STEP_S)
        finally:
            self._close()
        yield from self._shown()
        yield say(self._verdict())

    def _new_loader(self) -> feedline.DataLoader[torch.Tensor, torch.Tensor]:
        return feedline.DataLoader(
            Fragile(self._folder),
            batch_size=_BATCH,
            shuffle=True,
            seed=0,
            num_workers=self._workers,
            timeout=_TIMEOUT_S,
            restarts=8,
            on_error="skip",
        )

    def _take(self, batch: torch.Tensor, waited_s: float) -> None:
        pid = int(batch[0, 1])
        indices = batch[:, 0].tolist()
        self._seen.update(indices)
        if pid not in self._pids:
            self._pids[pid] = _SHADES[len(self._pids) % len(_SHADES)]
        late = waited_s > 5 * _SAMPLE_S * _BATCH
        text = f"{len(self._drawn)}{'!' if len(indices) < _BATCH else ''}"
        self._drawn.append((text, self._pids[pid]))
        if late:
            self._note(f"Training waited {waited_s:.1f} s for batch {len(self._drawn) - 1}, made by process {pid}.")

    def _due(self, actions: Actions) -> list[str]:
        due = []
        with contextlib.suppress(queue.Empty):
            while True:
                due.append(actions.get_nowait())
        chosen = self._values["happens"]
        return due + [name for name, at in _AT.items() if chosen in (name, "all of them") and at == len(self._drawn)]

    def _do(self, action: str) -> str:
        """Cause a fault, and return a sentence about it."""
        if action in _SIGNALS:
            if len(set(lines_of(self._folder / "begun.txt"))) == _BATCH * _BATCHES:
                return "All samples have been made already: run again and click earlier."
            self._due_count += 1
            (self._folder / "due" / f"{self._due_count}.{action}").touch()
            return f"The next worker that starts a sample will be {_SIGNALS[action][1]}."
        if action == "break":
            broken = lines_of(self._folder / "broken.txt")
            victim = next(index for index in reversed(self._order) if str(index) not in broken)
            append(self._folder / "broken.txt", str(victim))
            text = f"Sample {victim} raises an exception from now on."
        else:
            state = json.dumps(self._loader.state_dict())
            self._replaced_before, self._skipped_before = self._replaced(), self._skipped()
            self._loader.close()
            self._workers = 1 + self._workers % 4
            self._loader = self._new_loader()
            self._loader.load_state_dict(json.loads(state))
            text = f"A new loader with {self._workers} workers resumes from a state of {len(state)} bytes."
        self._note(text)
        return text

    def _note(self, text: str) -> None:
        self._log.append([str(len(self._drawn)), text])

    def _shown(self) -> Iterator[Event]:
        for lost in lines_of(self._folder / "lost.txt")[self._lost :]:
            self._lost += 1
            self._note(lost)
        rows = [(f"from {first}", self._drawn[first : first + 18]) for first in range(0, max(1, len(self._drawn)), 18)]
        legend = [(f"process {pid}", shade) for pid, shade in self._pids.items()]
        yield cells("delivered", "Batches in the order of delivery (! marks a shorter one)", rows, legend)
        yield figures(
            {
                "batches": len(self._drawn),
                "samples": sum(self._seen.values()),
                "repeated": sum(count > 1 for count in self._seen.values()),
                "workers lost": self._lost,
                "workers replaced": self._replaced(),
                "samples made again": self._again(),
                "samples skipped": self._skipped(),
            }
        )
        if self._log:
            yield table("log", "What happened", ["after batch", "what"], self._log)

    def _again(self) -> int:
        begun = lines_of(self._folder / "begun.txt")
        return len(begun) - len(set(begun))

    def _replaced(self) -> int:
        return self._replaced_before + int(self._loader.stats()["restarted_workers"])

    def _skipped(self) -> int:
        skipped = [fault for fault in self._loader.faults if fault.action == "skip"]
        return self._skipped_before + len(skipped)

    def _verdict(self) -> str:
        missing = sorted(set(range(_BATCH * _BATCHES)) - set(self._seen))
        repeated = sum(count > 1 for count in self._seen.values())
        named = f"{len(missing)} skipped by name ({', '.join(map(str, missing))})" if missing else "none missing"
        return f"The epoch is over: {len(self._seen)} samples delivered, {repeated} repeated, {named}."

    def _close(self) -> None:
        self._loader.close()


def _code(values: Values) -> str:
    return f"""from feedline import DataLoader

loader = DataLoader(
    dataset,
    batch_size={_BATCH},
    shuffle=True,
    seed=0,
    num_workers={values["workers"]},
    timeout={_TIMEOUT_S},  # a worker that takes longer is stuck
    restarts=8,  # stuck and dead workers are replaced, up to 8 per epoch
    on_error="skip",  # samples that fail are skipped and listed in loader.faults
)
state = loader.state_dict()  # after any batch; another loader resumes with load_state_dict(state)
"""


VIEW = View(
    name="faults",
    title="Faults",
    notice="Kill workers, freeze them or break samples, and see that no other sample is lost.",
    more="Each colour is one worker process. Batches that a lost worker had started are made again by other workers, "
    "in the same order and with the same random numbers. A cut saves the state of the loader, and a new loader with a "
    "different number of workers resumes from it. The counts at the end show that nothing was lost or delivered twice.",
    controls=(
        Number("workers", "Workers", 1, 4, 3),
        Choice("happens", "Happens by itself", ("nothing", *_AT, "all of them"), "kill"),
    ),
    code=_code,
    run=apart(_run),
    questions=(
        (
            "Why are some samples made twice, but delivered once?",
            "A worker that dies loses the batch that it was making. Another worker makes that batch again, and the "
            "training loop gets it once, in its place.",
        ),
        (
            "How can the batch be the same when it is made again?",
            "With seed=, the random numbers of a sample follow from the seed, the epoch and the index, whichever "
            "worker makes it.",
        ),
    ),
    presets=tuple({"happens": name} for name in ("nothing", *_AT, "all of them")),
)
