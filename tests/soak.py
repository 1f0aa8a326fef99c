"""The soak: training programs that run for hours with the drill's faults, are killed, and resume.

    python -m tests.soak --hours 2 --out build/soak

Each configuration is a program that reports every batch, checkpoint and cycle as a line of JSON. A cycle opens a loader
from the last state, trains with faults, and closes it; then the program counts its resources. The supervisor kills the
programs at random moments in the first half of the time, and starts them again. Every batch must equal that of an
undisturbed loader, to the byte. In the last life, which is long, memory, descriptors and threads must stay flat.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import gc
import io
import json
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any  # loaders, batches, states and values of JSON

from feedline import DataLoader
from feedline.datasets import TarDataset
from feedline.errors import WorkerWarning
from feedline.faults import Retry
from feedline.system.process import rolled_up
from tests.conftest import Surroundings
from tests.drill.datasets import Items, make_sample
from tests.drill.digests import digest_of
from tests.drill.saboteur import Saboteur
from tests.drill.script import KILL, STOP, Attack
from tests.drill.stage import pids_of
from tests.drill.troubles import FLAKY, KILLS_ONCE, RAISES, SLOW, Troubles
from tests.mappings import members, of_feedline

ROOT = Path(__file__).resolve().parents[1]

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "processes": {"num_workers": 2, "persistent_workers": True},
    "fork server": {"num_workers": 2, "multiprocessing_context": "forkserver"},
    "threads": {"num_workers": 2, "engine": "thread", "device": "cpu"},
    "tar": {"num_workers": 2},
}
"""Options of the loaders; the last one reads a stream of shards."""

SIZE, BATCH_SIZE, SHARDS = 1200, 8, 12
WARM_UP = 3
"""Cycles after which a program is as large as it should get."""
MEASURED = 12
"""The least number of cycles of the last life after its warm-up."""
TOLERANCE_BYTES = 16 << 20
"""How much a program may grow after its warm-up."""
HANG_S = 300.0
"""A program that delivers nothing for this long counts as hanging. Its stacks go into its error output."""
_STEPS_BETWEEN_KILLS = 40
"""A batch whose workers die three times counts as one that kills them; after so many steps, it has been delivered."""


# -- the program ---


class FromShard:
    """Makes a sample from the number in a shard."""

    def __init__(self, troubles: Troubles) -> None:
        self.troubles = troubles

    def __call__(self, number: Any) -> Any:
        self.troubles.meet(int(number))
        return make_sample("dicts", int(number))


def write_shards(folder: Path) -> None:
    """Write the shards of the configuration "tar"."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard:02}.tar", "w") as file:
            for index in range(shard, SIZE, SHARDS):
                text = str(index).encode()
                info = tarfile.TarInfo(f"{index:06}.cls")
                info.size = len(text)
                file.addfile(info, io.BytesIO(text))


def loader_of(name: str, seed: int, folder: Path, troubles: Troubles, *, plain: bool = False) -> Any:
    """Make a loader. A `plain` one makes the same batches without processes."""
    is_stream = name == "tar"
    options = dict(CONFIGURATIONS[name])
    if plain:  # the order of a stream depends on the number of workers
        options = {"num_workers": 2, "engine": "thread"} if is_stream else {"num_workers": 0}
    dataset: Any = Items("dicts", SIZE, troubles)
    if is_stream:
        shards = TarDataset(str(folder / "data" / "*.tar"), "cls", transform=FromShard(troubles))
        dataset = shards.stream(shuffle=True, buffer=50, seed=seed)
    return DataLoader(
        dataset,
        BATCH_SIZE,
        shuffle=None if is_stream else True,
        seed=seed,
        on_error="skip" if is_stream else Retry(attempts=3, wait_s=0.001, then="skip"),  # a stream cannot repeat
        restarts=10**6,
        **options,
    )


def bad_samples(name: str, seed: int) -> dict[int, str]:
    """Return the samples that always raise. They are the same in every life, so there is one expected order."""
    return dict.fromkeys(random.Random(f"{seed}/{name}/bad").sample(range(SIZE), 6), RAISES)


def draw_cycle(name: str, seed: int, number: int) -> tuple[int, dict[int, str], list[Attack]]:
    """Draw the steps of a cycle, its samples that cause trouble, and its attacks on workers."""
    draw = random.Random(f"{seed}/{name}/{number}")
    steps = max(4, round(SIZE // BATCH_SIZE * 10 ** draw.uniform(-0.7, 0.5)))
    has_processes = CONFIGURATIONS[name].get("engine") != "thread"
    bad = bad_samples(name, seed)
    troubles, attacks = dict(bad), []
    if number % 3 == 0:
        names = [SLOW] * 4 + [FLAKY] * 4 * (name != "tar") + [KILLS_ONCE] * 2 * has_processes
        good = sorted(set(range(SIZE)) - bad.keys())
        troubles |= dict(zip(draw.sample(good, len(names)), names, strict=True))
    elif number % 3 == 1 and has_processes:
        for first in range(0, steps, _STEPS_BETWEEN_KILLS):
            kind = draw.choice([KILL, KILL, STOP])
            hold_s = draw.uniform(0.0, 0.3) if kind == STOP else 0.0
            attacks.append(Attack(kind, 0, first, draw.uniform(0.0, 0.05), draw.randrange(12), hold_s))
    return steps, troubles, attacks


def identity_of(batch: Any) -> list[Any]:
    """Return the samples of a batch in order, and a checksum of all bytes, random ones included."""
    return [batch["index"].tolist(), digest_of(batch, noise=True).hex()]


def say(**what: Any) -> None:
    """Send a message to the supervisor; dump all stacks and exit if the next one takes too long."""
    faulthandler.cancel_dump_traceback_later()
    os.write(1, json.dumps(what).encode() + b"\n")
    faulthandler.dump_traceback_later(HANG_S, exit=True, file=sys.stderr)


def train(name: str, seed: int, folder: Path) -> None:
    """Run cycles until SIGTERM, from the last checkpoint on."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # hundreds of workers crash
    warnings.simplefilter("error")
    for category, text in ((WorkerWarning, ""), (DeprecationWarning, ".*multi-threaded, use of fork")):
        warnings.filterwarnings("ignore", text, category)
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    checkpoint = folder / f"{name}.json"
    saved: dict[str, Any] = {"step": 0, "cycle": 0, "state": None}
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
    step, cycle, state = saved["step"], saved["cycle"], saved["state"]
    say(resumed=step)
    baseline: Surroundings | None = None
    for number in range(1 << 30):
        if stopped:
            break
        steps, troubles, attacks = draw_cycle(name, seed, cycle)
        notes = folder / f"{name} troubles"
        shutil.rmtree(notes, ignore_errors=True)  # so that samples that kill once do so again
        notes.mkdir()
        loader = loader_of(name, seed, folder, Troubles(troubles, str(notes), os.getpid()))
        if state is not None:
            loader.load_state_dict(state)
        with contextlib.closing(loader), Saboteur() as saboteur:
            batches, batch, done = iter(loader), None, 0
            while done < steps and not stopped:
                batch = next(batches, None)
                if batch is None:
                    batches = iter(loader)
                    continue
                for attack in attacks:
                    if attack.after == done:
                        saboteur.attack(attack, pids_of(batches))
                say(step=step, batch=identity_of(batch))
                step, done = step + 1, done + 1
                if done % 20 == 0:
                    entry = {"step": step, "cycle": cycle + 1, "state": loader.state_dict()}
                    checkpoint.with_suffix(".new").write_text(json.dumps(entry))
                    os.replace(checkpoint.with_suffix(".new"), checkpoint)
                    say(saved=step)
            loader.faults.clear()  # log and state keep up to 10,000 faults, which would look like a leak
            state = json.loads(json.dumps(loader.state_dict()))
        del loader, batches, batch
        cycle += 1
        for _ in range(2):  # finalizers run by the first collection release more
            gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        if baseline is None:
            baseline = Surroundings.now()
        elif number >= WARM_UP and baseline.leftovers():
            baseline.wait_for_leavers(60.0)
        if number == WARM_UP - 1:
            baseline = Surroundings.now()
        say(**figures(), kind="cycle", faults=sum(saboteur.happened.values()))
    say(kind="finished")


def figures() -> dict[str, int]:
    """Count the resources of this process, and of a fork server, while no loader is open."""
    now = Surroundings.now()
    return {
        "private_bytes": sum(rolled_up(pid, ("Anonymous",)) or 0 for pid in {os.getpid(), *members(os.getpid())}),
        "batch_bytes": sum(mapping.sizes.get("Pss", 0) for mapping in of_feedline(os.getpid())),
        "descriptors": len(now.files),
        "threads": len(now.threads),
        "processes": len(now.processes),
    }


# -- the supervisor ---


def undisturbed(name: str, seed: int, folder: Path) -> Iterator[list[Any]]:
    """Yield the batches of a configuration without faults; every epoch has each good sample once."""
    bad = bad_samples(name, seed)
    loader = loader_of(name, seed, folder, Troubles(bad).tamed(), plain=True)
    while True:
        seen: list[int] = []
        for batch in loader:
            seen += batch["index"].tolist()
            yield identity_of(batch)
        assert sorted(seen) == sorted(set(range(SIZE)) - bad.keys()), f"an epoch of {name} is not complete"


def slope(values: Sequence[float]) -> float:
    """Return the median of the slopes between all pairs of values (Theil-Sen), which outliers hardly move.

    Example:
        >>> slope([1, 3, 5, 100])
        2.0
    """
    pairs = [(i, j) for i in range(len(values)) for j in range(i + 1, len(values))]
    return float(statistics.median((values[j] - values[i]) / (j - i) for i, j in pairs)) if pairs else 0.0


def unsteady(cycles: Sequence[dict[str, Any]]) -> list[str]:
    """List what has grown in a life after its warm-up."""
    measured = cycles[WARM_UP - 1 :]
    grown = round(slope([cycle["private_bytes"] for cycle in measured[-400:]]) * (len(measured) - 1))
    found = [f"memory grew by {grown >> 20} MiB in {len(measured)} cycles"] if grown > TOLERANCE_BYTES else []
    for name in ("descriptors", "threads", "processes", "batch_bytes"):
        before, after = ([cycle[name] for cycle in part] for part in (measured[:3], measured[-3:]))
        if len(measured) >= 6 and min(after) > max(before):
            found.append(f"{name} rose from {max(before):,} to {min(after):,}")
    return found


class Checker:
    """Compares the batches that a program delivers, life after life, with the expected ones."""

    def __init__(self, expected: Iterator[list[Any]]) -> None:
        self._expected = expected
        self._known: dict[int, list[Any]] = {}
        """Expected batches since the last checkpoint, by number."""
        self._next = self._saved = 0
        self.delivered = 0
        self.problems: list[str] = []

    def resume(self, step: int) -> None:
        """Note that a life starts with this step."""
        if not self._saved <= step <= self.delivered:
            self.problems.append(f"resumed at step {step}; {self._saved} were saved, {self.delivered} delivered")
        self._next = step

    def save(self, step: int) -> None:
        """Note that a checkpoint after this many steps was written."""
        self._saved = step
        self._known = {known: batch for known, batch in self._known.items() if known >= step}

    def take(self, step: int, batch: list[Any]) -> None:
        """Check a delivered batch."""
        if step != self._next:
            self.problems.append(f"step {step} came where step {self._next} was due")
        while self.delivered <= step:
            self._known[self.delivered] = next(self._expected)
            self.delivered += 1
        if batch != self._known[step]:
            self.problems.append(f"step {step} is {batch} instead of {self._known[step]}")
        self._next = step + 1


def run(name: str, seed: int, folder: Path, seconds: float, resumes: int) -> dict[str, Any]:
    """Run all lives of a program; return its result."""
    draw, began_s = random.Random(f"{seed}/{name}/kills"), time.monotonic()
    expected = undisturbed(name, seed, folder)
    checker = Checker(expected)
    problems, cycles = checker.problems, list[dict[str, Any]]()
    for life in range(resumes + 1):
        is_last, cycles = life == resumes, []
        kill_after_s = draw.uniform(0.1, 1.9) * seconds / 2 / max(1, resumes)
        command = [sys.executable, "-m", "tests.soak", "--train", name, "--seed", str(seed), "--out", str(folder)]
        with (
            (folder / f"{name} errors.txt").open("a") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT, start_new_session=True) as child,
        ):
            assert child.stdout is not None
            first_s, is_ending, last = None, False, ""
            for line in child.stdout:  # also what it had written when it was killed
                if not line.endswith(b"\n"):
                    break
                message = json.loads(line)
                last = message.get("kind", "")
                if "resumed" in message:
                    checker.resume(message["resumed"])
                elif "saved" in message:
                    checker.save(message["saved"])
                elif "step" in message:
                    checker.take(message["step"], message["batch"])
                    first_s = first_s or time.monotonic()
                elif last == "cycle":
                    cycles.append(message)
                now_s = time.monotonic()
                is_over = now_s - began_s >= seconds and len(cycles) >= WARM_UP + MEASURED
                if is_ending or first_s is None:
                    continue
                if problems or (not is_last and now_s - first_s >= kill_after_s):
                    child.kill()
                    is_ending = True
                elif is_last and is_over:
                    child.terminate()
                    is_ending = True
            child.stdout.close()
            child.wait()
            deadline_s = time.monotonic() + 60
            while (orphans := members(child.pid)) and time.monotonic() < deadline_s:
                time.sleep(0.05)
            problems += [f"life {life} left process {pid} behind" for pid in orphans]
            for pid in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if not problems and (last, child.returncode) != ("finished", 0) and (is_last or child.returncode != -9):
            problems.append(f"life {life} ended with exit code {child.returncode}: see '{name} errors.txt'")
        if problems:
            break
    expected.close()  # type: ignore[attr-defined]  # a generator, which closes its loader
    problems += unsteady(cycles)
    return {"name": name, "steps": checker.delivered, "cycles": cycles, "problems": problems}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a soak, or one of its programs; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hours", type=float, default=2.0, help="how long, 0.05 to try it (2)")
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="folder for the result (build/soak)")
    parser.add_argument("--seed", type=int, help="from which faults and kills are drawn; another one every time")
    parser.add_argument("--resumes", type=int, default=10, help="how often each program is killed and resumed (10)")
    parser.add_argument("--train", choices=CONFIGURATIONS, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    folder = options.out.resolve()
    if options.train:
        train(options.train, seed, folder)
        return 0
    if folder.exists():
        sys.stderr.write(f"{options.out} exists. Give another folder, or remove it.\n")
        return 2
    write_shards(folder / "data")
    sys.stderr.write(f"seed {seed}, results in {folder}\n")
    with ThreadPoolExecutor(len(CONFIGURATIONS)) as pool:
        seconds, resumes = options.hours * 3600, options.resumes
        results = list(pool.map(lambda name: run(name, seed, folder, seconds, resumes), CONFIGURATIONS))
    (folder / "soak.json").write_text(json.dumps({"seed": seed, "results": results}, indent=1))
    for result in results:
        sys.stdout.write(
            f"{result['name']}: {result['steps']:,} steps, {len(result['cycles'])} cycles in the last life\n"
        )
        sys.stdout.writelines(f"  FAILED: {problem}\n" for problem in result["problems"])
    is_good = not any(result["problems"] for result in results)
    sys.stdout.write("PASSED: every batch came in order; memory, descriptors and threads are flat\n" if is_good else "")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
