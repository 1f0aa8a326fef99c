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
from feedline.lab.pictures import Event, cells, figures, say, table
from feedline.lab.view import Actions, View

_BATCH = 4
_BATCHES = 72
_SAMPLE_S = 0.012
_TIMEOUT_S = 1.5
_STEP_S = 0.03
_ACTIONS = {
    "kill": "Kill a worker (SIGKILL)",
    "freeze": "Freeze a worker (SIGSTOP)",
    "break": "Break a sample that is still to come",
    "cut": "Cut here, go on in another loader",
}
_AT = {"kill": 12, "freeze": 26, "break": 40, "cut": 54}
"""After how many batches each happens by itself."""


class Fragile(Dataset[torch.Tensor]):
    """Samples that say their index and who made them; one whose number stands in a file cannot be made."""

    def __init__(self, broken: Path) -> None:
        self.broken = broken
        self.begun = broken.with_name("begun.txt")

    def __len__(self) -> int:
        return _BATCH * _BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        with self.begun.open("a") as file:
            file.write(f"{index}\n")
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
    """An epoch in which things go wrong, and what is told of it."""

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
        self._last_pid = 0

    def run(self, actions: Actions) -> Iterator[Event]:
        warnings.simplefilter("ignore")  # what they say is shown on the page
        yield say("Batches are being delivered. Click on a fault, or let them come by themselves.")
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
        pid = self._last_pid = int(batch[0, 1])
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
        if action in ("kill", "freeze"):
            number, what = (signal.SIGKILL, "killed") if action == "kill" else (signal.SIGSTOP, "frozen")
            try:
                os.kill(self._last_pid, number)
            except ProcessLookupError:
                return f"Process {self._last_pid} has ended already. Wait for the next batch, and try again."
            text = f"Worker process {self._last_pid} was {what}."
        elif action == "break":
            victim = next(
                index for index in reversed(self._order) if str(index) not in self._broken.read_text().split()
            )
            self._broken.write_text(f"{self._broken.read_text()} {victim}")
            text = f"Sample {victim} cannot be made any more."
        else:
            state = json.dumps(self._loader.state_dict())
            self._loader.close()
            self._workers = 1 + self._workers % 4
            self._loader = self._new_loader()
            self._loader.load_state_dict(json.loads(state))
            text = (
                f"A state of {len(state)} bytes was saved; another loader with {self._workers} workers goes on from it."
            )
        self._note(text)
        return text

    def _note(self, text: str) -> None:
        self._log.append([str(len(self._drawn)), text])

    def _shown(self) -> Iterator[Event]:
        rows = [(f"from {first}", self._drawn[first : first + 18]) for first in range(0, max(1, len(self._drawn)), 18)]
        yield cells(
            "delivered", "Batches in the order of delivery, coloured by the process that made them; ! is shorter", rows
        )
        stats = self._loader.stats()
        yield figures(
            {
                "batches": len(self._drawn),
                "samples": sum(self._seen.values()),
                "repeated": sum(count > 1 for count in self._seen.values()),
                "workers replaced": stats["restarted_workers"],
                "samples made again": self._again(),
                "samples skipped": self._skips(),
            }
        )
        if self._log:
            yield table("log", "What happened", ["after batch", "what"], self._log)

    def _again(self) -> int:
        begun = self._broken.with_name("begun.txt").read_text().split()
        return len(begun) - len(set(begun))

    def _skips(self) -> int:
        return sum(fault.action == "skip" for fault in self._loader.faults)

    def _verdict(self) -> str:
        missing = sorted(set(range(_BATCH * _BATCHES)) - set(self._seen))
        repeated = sum(count > 1 for count in self._seen.values())
        named = f"{len(missing)} skipped by name ({', '.join(map(str, missing))})" if missing else "none missing"
        return f"The epoch is over: {len(self._seen)} samples delivered, {repeated} repeated, {named}."

    def _close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._last_pid, signal.SIGCONT)
        self._loader.close()


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
    notice="Kill a worker, freeze it, break a sample, or cut the run and go on in another loader with another number "
    "of workers. Each colour is one worker process. What a lost worker had begun is made again by others, in the same "
    "order with the same random numbers; the count at the end shows that nothing is lost and nothing comes twice.",
    controls=(
        Number("workers", "Workers", 1, 4, 3),
        Choice("happens", "By itself happens", ("nothing", *_AT, "all of them"), "kill"),
    ),
    code=_code,
    run=apart(_run),
    presets=tuple({"happens": name} for name in ("nothing", *_AT, "all of them")),
    actions=tuple(_ACTIONS.items()),
)
