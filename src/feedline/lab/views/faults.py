"""Things go wrong: a worker is killed or frozen, a sample fails, the run is cut and goes on elsewhere."""

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
from typing import Any

import torch
from torch.utils.data import Dataset

import feedline
from feedline.lab.apart import apart
from feedline.lab.controls import Choice, Number, Values
from feedline.lab.pictures import Event, buttons, cells, doing, figures, say, table
from feedline.lab.view import Actions, View

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
_AT = {"kill": 10, "freeze": 20, "break": 40, "cut": 60}
"""After how many batches each happens by itself. A frozen worker is found before the cut."""


class Fragile(Dataset[torch.Tensor]):
    """Samples that hold their index and who made them. A sample whose index is in the file `broken` raises."""

    def __init__(self, broken: Path) -> None:
        self.broken = broken
        self.begun = broken.with_name("begun.txt")

    def __len__(self) -> int:
        return _BATCH * _BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        with self.begun.open("a") as file:
            file.write(f"{index} {os.getpid()}\n")
        time.sleep(_SAMPLE_S)
        if str(index) in self.broken.read_text().split():
            raise ValueError(f"sample {index} is damaged")
        return torch.tensor([index, os.getpid()])


def _run(values: Values, actions: Actions) -> Iterator[Event]:
    with tempfile.TemporaryDirectory() as folder:
        broken = Path(folder) / "broken.txt"
        broken.write_text("")
        yield from _Epoch(values, broken).run(actions)


class _Epoch:
    """An epoch in which things go wrong, and what the page shows of it."""

    def __init__(self, values: Values, broken: Path) -> None:
        self._values = values
        self._broken = broken
        self._workers = values["workers"]
        self._loader = self._new_loader()
        self._order: list[int] = list(self._loader.sampler)
        self._seen: Counter[int] = Counter()
        self._pids: dict[int, str] = {}
        self._drawn: list[tuple[str, str]] = []
        self._log: list[list[str]] = []
        self._lost: set[int] = set()
        """Process ids of the workers that were killed or frozen."""
        self._replaced_before = self._skipped_before = 0
        """Counts of the loaders before the one that runs now."""

    def run(self, actions: Actions) -> Iterator[Event]:
        warnings.simplefilter("ignore")  # what they say is shown on the page
        yield doing("Batches are being delivered. Click on a fault, or let faults come by themselves.")
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

    def _new_loader(self) -> Any:
        return feedline.DataLoader(
            Fragile(self._broken),
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
            self._pids[pid] = f"class-{len(self._pids) % 8}"
        late = waited_s > 5 * _SAMPLE_S * _BATCH
        text = f"{len(self._drawn)}{'!' if len(indices) < _BATCH else ''}"
        self._drawn.append((text, self._pids[pid]))
        if late:
            self._note(f"batch {len(self._drawn) - 1} came {waited_s:.1f} s late, made by process {pid}")

    def _due(self, actions: Actions) -> list[str]:
        due = []
        with contextlib.suppress(queue.Empty):
            while True:
                due.append(actions.get_nowait())
        chosen = self._values["happens"]
        return due + [name for name, at in _AT.items() if chosen in (name, "all of them") and at == len(self._drawn)]

    def _do(self, action: str) -> str:
        """Let something go wrong, and say what."""
        if action in _SIGNALS:
            number, what = _SIGNALS[action]
            try:
                pid = self._working()
                os.kill(pid, number)
            except ProcessLookupError:
                return "No worker is making a batch at the moment. Wait for the next batch, and try again."
            self._lost.add(pid)
            text = f"Worker process {pid} was {what}."
        elif action == "break":
            victim = next(
                index for index in reversed(self._order) if str(index) not in self._broken.read_text().split()
            )
            self._broken.write_text(f"{self._broken.read_text()} {victim}")
            text = f"Sample {victim} raises from now on."
        else:
            state = json.dumps(self._loader.state_dict())
            self._replaced_before, self._skipped_before = self._replaced(), self._skipped()
            self._loader.close()
            self._workers = 1 + self._workers % 4
            self._loader = self._new_loader()
            self._loader.load_state_dict(json.loads(state))
            text = (
                f"A state of {len(state)} bytes was saved; another loader with {self._workers} workers goes on from it."
            )
        self._note(text)
        return text

    def _working(self) -> int:
        """Return the worker that began a sample last: it is in the middle of a batch, which others make again.

        Raises ProcessLookupError: there is none.
        """
        for line in reversed(self._begun()):
            pid = int(line.split()[1])
            if pid not in self._lost and _is_running(pid):
                return pid
        raise ProcessLookupError

    def _note(self, text: str) -> None:
        self._log.append([str(len(self._drawn)), text])

    def _shown(self) -> Iterator[Event]:
        rows = [(f"from {first}", self._drawn[first : first + 18]) for first in range(0, max(1, len(self._drawn)), 18)]
        legend = [(f"process {pid}", shade) for pid, shade in self._pids.items()]
        yield cells("delivered", "Batches in the order of delivery; ! is shorter", rows, legend)
        yield figures(
            {
                "batches": len(self._drawn),
                "samples": sum(self._seen.values()),
                "repeated": sum(count > 1 for count in self._seen.values()),
                "workers lost": len(self._lost),
                "workers replaced": self._replaced(),
                "samples made again": self._again(),
                "samples skipped": self._skipped(),
            }
        )
        if self._log:
            yield table("log", "What happened", ["after batch", "what"], self._log)

    def _begun(self) -> list[str]:
        file = self._broken.with_name("begun.txt")
        return file.read_text().splitlines() if file.exists() else []

    def _again(self) -> int:
        begun = [line.split()[0] for line in self._begun()]
        return len(begun) - len(set(begun))

    def _replaced(self) -> int:
        return self._replaced_before + int(self._loader.stats()["restarted_workers"])

    def _skipped(self) -> int:
        return self._skipped_before + sum(fault.action == "skip" for fault in self._loader.faults)

    def _verdict(self) -> str:
        missing = sorted(set(range(_BATCH * _BATCHES)) - set(self._seen))
        repeated = sum(count > 1 for count in self._seen.values())
        named = f"{len(missing)} skipped by name ({', '.join(map(str, missing))})" if missing else "none missing"
        return f"The epoch is over: {len(self._seen)} samples delivered, {repeated} repeated, {named}."

    def _close(self) -> None:
        self._loader.close()


def _is_running(pid: int) -> bool:
    """False for a process that has ended, also if its parent has not noticed yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _code(values: Values) -> str:
    return f"""from feedline import DataLoader

loader = DataLoader(
    dataset,
    batch_size={_BATCH},
    shuffle=True,
    seed=0,
    num_workers={values["workers"]},
    timeout={_TIMEOUT_S},  # a worker that takes longer is stuck,
    restarts=8,  # and is replaced, as are those that die
    on_error="skip",  # samples that fail are left out, and named in loader.faults
)
state = loader.state_dict()  # after any batch; another loader goes on with load_state_dict(state)
"""


VIEW = View(
    name="faults",
    title="Faults",
    notice="Kill workers, freeze them or break samples, and see that no other sample is lost.",
    more="Each colour is one worker process. What a lost worker had begun is made again by others, in the same order "
    "with the same random numbers. A cut saves the state of the loader, and another loader with another number of "
    "workers resumes from it. The counts at the end show that nothing was lost and nothing came twice.",
    controls=(
        Number("workers", "Workers", 1, 4, 3),
        Choice("happens", "By itself happens", ("nothing", *_AT, "all of them"), "kill"),
    ),
    code=_code,
    run=apart(_run),
    presets=tuple({"happens": name} for name in ("nothing", *_AT, "all of them")),
)
