"""The training program of one configuration. It reports every batch, checkpoint and cycle as a line of JSON.

    python -m tests.soak.program NAME SETTINGS --report-to DESCRIPTOR

A cycle opens a training loader from the last state, trains with faults, evaluates beside it, and closes all loaders.
The resources of the process are counted after each cycle, always when no loader is open. SIGTERM ends the program after
the current step, SIGKILL at any moment; in both cases it continues from its last checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import gc
import itertools
import json
import os
import resource
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any  # loaders, batches and states

import torch

from feedline.errors import WorkerWarning
from feedline.system.process import rolled_up
from tests.conftest import Surroundings
from tests.drill.saboteur import Saboteur
from tests.drill.stage import pids_of
from tests.mappings import members, of_feedline
from tests.soak.cycle import WARM_UP, Cycle, draw_cycle
from tests.soak.data import build_dataset, build_evaluation, build_loader, configuration, record_of, troubles_of
from tests.soak.settings import Settings

Say = Callable[[dict[str, Any]], None]


class Training:
    """A model, its loaders and its checkpoints."""

    def __init__(self, settings: Settings, name: str, say: Say) -> None:
        self.settings = settings
        self.kind = configuration(name)
        self.say = say
        self.folder = Path(settings.folder, name)
        self.checkpoint = self.folder / "checkpoint.pt"
        self.model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.step = 0
        self.cycle = 0
        self.state: dict[str, Any] | None = None
        self.stops = False
        self._baseline: Surroundings | None = None
        self._grace_s = settings.grace_s

    def resume(self) -> None:
        """Continue from the last checkpoint, if there is one."""
        if self.checkpoint.exists():
            saved = torch.load(self.checkpoint)
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.state, self.step, self.cycle = saved["loader"], saved["step"], saved["cycle"] + 1
        self.say({"resumed": self.step})

    def run(self) -> None:
        """Run cycles until the program is asked to stop."""
        for number in itertools.count():
            if self.stops:
                return
            drawn = draw_cycle(self.settings, self.kind, self.cycle)
            begun = time.monotonic()
            faults = self._run_cycle(drawn)
            figures = self._figures(number)
            self.say({"cycle": number, "kind": drawn.kind, "seconds": time.monotonic() - begun, **faults, **figures})
            self.cycle += 1

    def _run_cycle(self, drawn: Cycle) -> dict[str, Any]:
        notes = self.folder / "troubles"
        shutil.rmtree(notes, ignore_errors=True)  # so that samples that kill once do so again
        troubles = troubles_of(self.settings, self.kind.name, drawn.troubles, notes, os.getpid())
        loader = build_loader(self.kind, self.settings, build_dataset(self.kind, self.settings, troubles))
        if self.state is not None:
            loader.load_state_dict(self.state)
        with contextlib.closing(loader), Saboteur() as saboteur:
            self._train(loader, drawn, saboteur)
            loader.faults.clear()  # log and state keep up to 10,000 faults, which would look like a leak
            self.state = loader.state_dict()
            restarts = loader.stats()["restarted_workers"]
        return {"faults": dict(troubles.happened() + saboteur.happened), "restarts": restarts}

    def _train(self, loader: Any, drawn: Cycle, saboteur: Saboteur) -> None:
        iterator = iter(loader)
        done = 0
        while done < drawn.steps and not self.stops:
            batch = next(iterator, None)
            if batch is None:
                iterator = iter(loader)
                continue
            for attack in drawn.attacks:
                if attack.after == done:
                    saboteur.attack(attack, pids_of(iterator))
            self._learn(batch)
            record = record_of(batch)
            self.say({"step": self.step, "indices": record.indices, "checksum": record.checksum})
            self.step, done = self.step + 1, done + 1
            if done % drawn.save_every == 0:
                self._save(loader)
            if done == drawn.evaluate_at:
                self._evaluate()

    def _learn(self, batch: Any) -> None:
        x = batch["picture"].mean(dim=(1, 2, 3)).reshape(-1, 1) / self.settings.size
        loss = torch.nn.functional.mse_loss(self.model(x), 3 * x + 1)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        time.sleep(self.settings.step_s)

    def _save(self, loader: Any) -> None:
        values = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": loader.state_dict(),
            "step": self.step,
            "cycle": self.cycle,
        }
        torch.save(values, self.checkpoint.with_suffix(".new"))
        os.replace(self.checkpoint.with_suffix(".new"), self.checkpoint)
        self.say({"saved": self.step})

    def _evaluate(self) -> None:
        """Iterate over a second loader while the first one is in the middle of an epoch."""
        with contextlib.closing(build_evaluation(self.kind, self.settings)) as loader:
            seen = [index for batch in loader for index in batch["index"].tolist()]
        if seen != list(range(self.settings.size // 8)):
            self.say({"problem": f"the evaluation loader delivered {seen}"})

    def _figures(self, number: int) -> dict[str, Any]:
        """Count the resources of this process, and of a fork server, now that all loaders are closed."""
        for _ in range(2):  # finalizers run by the first collection release more
            gc.collect()
        found = self._leftovers() if self._baseline is not None else []
        ctypes.CDLL(None).malloc_trim(0)
        now = Surroundings.now()
        if number == WARM_UP - 1:
            self._baseline = now
        return {
            "private_bytes": sum(rolled_up(pid, ("Anonymous",)) or 0 for pid in {os.getpid(), *members(os.getpid())}),
            "batch_bytes": sum(mapping.sizes.get("Pss", 0) for mapping in of_feedline(os.getpid())),
            "descriptors": len(now.files),
            "threads": len(now.threads),
            "processes": len(now.processes),
            "leftovers": found,
        }

    def _leftovers(self) -> list[str]:
        assert self._baseline is not None
        if not self._named_leftovers():
            return []
        self._baseline.wait_for_leavers(self._grace_s)
        found = self._named_leftovers()
        if found:
            self._grace_s = 0.0  # what was left once will stay: do not wait for it after every cycle
        return found

    def _named_leftovers(self) -> list[str]:
        """Name everything that is not in the baseline. Names in /dev/shm count if they contain this process's id."""
        assert self._baseline is not None
        own = f"{os.getpid()}"
        return [name for name in self._baseline.leftovers() if not name.startswith("/dev/shm") or own in name]


def main() -> None:
    """Train until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("settings")
    parser.add_argument("--report-to", type=int, required=True)
    options = parser.parse_args()
    settings = Settings.from_json(options.settings)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # hundreds of workers crash
    warnings.simplefilter("error")
    for category, text in ((WorkerWarning, ""), (DeprecationWarning, ".*multi-threaded, use of fork")):
        warnings.filterwarnings("ignore", text, category)
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)

    def say(what: dict[str, Any]) -> None:
        faulthandler.cancel_dump_traceback_later()  # on a busy machine, the pipe stays full for minutes
        os.write(options.report_to, json.dumps(what).encode() + b"\n")
        # Prints the stacks of all threads if the next step takes too long.
        faulthandler.dump_traceback_later(settings.hang_s, exit=True, file=sys.stderr)

    training = Training(settings, options.name, say)

    def stop(*_: object) -> None:
        training.stops = True

    signal.signal(signal.SIGTERM, stop)
    training.resume()
    gc.collect()
    gc.freeze()
    training.run()
    say({"finished": training.step})
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
