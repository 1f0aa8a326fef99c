"""One round: a loader is built, troubled and checked, as its script says."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import pickle
import tempfile
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import feedline
from feedline.engines import abilities
from feedline.errors import GrowingWorker, WorkerRestarted
from feedline.faults import Policy, Retry, Skip
from feedline.loader.memory_watch import own_bytes
from tests.conftest import GRACE_S, Surroundings
from tests.drill import datasets
from tests.drill.datasets import as_list, gathered, make_sample
from tests.drill.digests import Digest, digest_of, samples_of
from tests.drill.saboteur import Saboteur
from tests.drill.script import CLOSE, KEEP, RAISE, RESUME, SPLIT_STREAMS, WHOLE, Act, Attack, Crew, Script
from tests.drill.take import ERROR, Take, complaints, difference, lost
from tests.drill.troubles import FLAKY, GROWS, GROWTH_BYTES, BadSample, Troubles, UnpicklableSample

_EXPECTED_WARNINGS = ("This DataLoader will create", "is multi-threaded, use of fork")

_MANY_RESTARTS = 1000
"""More than there are deaths."""

_ON_ERROR: dict[str, Any] = {
    "raise": "raise",
    "skip": "skip",
    "skip short": Skip(refill=False),
    "skip by policy": Policy({BadSample: "skip", "UnpicklableSample": "skip", RuntimeError: "skip"}),
    "retry": Retry(attempts=3, wait_s=0.002),
    "retry, then skip": Retry(attempts=2, wait_s=0.001, then="skip"),
    "replace": "replace",
}

_abilities: Any = abilities
_can_share_arenas = abilities.can_share_arenas


class LoopError(Exception):
    """Raised by the training loop itself."""


@dataclass
class Outcome:
    """What came of a round, in plain values."""

    number: int
    settings: dict[str, Any]
    command: str
    seconds: float = 0.0
    batches: int = 0
    samples: int = 0
    lost: int = 0
    repeated: int = 0
    corrupted: int = 0
    restarts: int = 0
    """Workers that died or hung and were replaced."""
    recycled: int = 0
    """Workers that had grown too large and were replaced."""
    faults: dict[str, int] = field(default_factory=dict)
    leaks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    rss_bytes: int = 0

    @property
    def is_good(self) -> bool:
        """True if nothing is wrong."""
        return not (self.lost or self.repeated or self.corrupted or self.leaks or self.problems)


def play(script: Script) -> Outcome:
    """Run a round and look at what it leaves behind."""
    outcome = Outcome(script.number, script.settings(), script.command)
    before = Surroundings.now()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="feedline-drill-") as folder, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        troubles = Troubles(script.troubles, folder, os.getpid())
        with Saboteur() as saboteur:
            try:
                with contextlib.closing(_Stage(script, troubles, saboteur, outcome)) as stage:
                    stage.perform()
                    stage.let_go()
                del stage
            except Exception as exc:
                outcome.problems.append(_description(exc))
        outcome.faults = dict(troubles.happened() + saboteur.happened)
    for warning in told:
        text = str(warning.message)
        if warning.category is WorkerRestarted:
            outcome.restarts += 1
        elif warning.category is GrowingWorker and GROWS in script.troubles.values():
            continue  # it grew with its first batch
        elif not any(expected in text for expected in _EXPECTED_WARNINGS):
            outcome.problems.append(f"warned of {warning.category.__name__}: {text}")
    told.clear()
    outcome.leaks += _leftovers(before)
    outcome.seconds = time.monotonic() - begun
    outcome.rss_bytes = _resident_bytes()
    return outcome


def _description(exc: BaseException) -> str:
    lines = traceback.format_exception(exc)
    traceback.clear_frames(exc.__traceback__)  # they refer to the loader
    return "".join(lines)


def _leftovers(before: Surroundings) -> list[str]:
    if before.leftovers():
        gc.collect()
        before.wait_for_leavers(GRACE_S)
    found = before.leftovers()
    before.kill_leftover_processes()
    return found


def _resident_bytes() -> int:
    """Return the memory of this process, after everything that can be given back was."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _Stage:
    """A loader, the one it is compared with, and what they have delivered."""

    def __init__(self, script: Script, troubles: Troubles, saboteur: Saboteur, outcome: Outcome) -> None:
        self.script = script
        self.saboteur = saboteur
        self.outcome = outcome
        self.crew = script.crew
        self.dataset = build_dataset(script, troubles)
        self.loader = build_loader(script, self.crew, self.dataset)
        self.template = _sample(script, 0)
        self.index_of = {self._digest(_sample(script, index)): index for index in range(script.size)}
        # Asked for many at once, a dataset draws all random numbers in one go: not so when it is asked again for each.
        self.compares_noise = script.loader_seed is not None and not (
            script.dataset == "bulk items" and FLAKY in script.troubles.values()
        )
        self.kept: list[tuple[Any, tuple[Digest, ...]]] = []
        self.iterators: list[Any] = []
        self.ordered: set[Attack] = set()
        """Attacks that the saboteur knows of."""
        self.reference: Any = None
        is_determined = script.loader_seed is not None or not script.shuffle
        if script.compares and is_determined and script.dataset not in SPLIT_STREAMS:
            self.reference = build_loader(script, Crew("inline", 0), build_dataset(script, troubles.tamed()))

    def _digest(self, sample: Any, *, noise: bool = False) -> Digest:
        return digest_of(sample, noise=noise)

    def perform(self) -> None:
        for number, act in enumerate(self.script.acts):
            self._choose_engine(self.crew)
            with contextlib.suppress(LoopError):
                for take in self._act(number, act):
                    self._check(number, act, take)

    def _choose_engine(self, crew: Crew) -> None:
        _abilities.can_share_arenas = (lambda: False) if crew.engine == "portable" else _can_share_arenas

    def _act(self, number: int, act: Act) -> Iterator[Take]:
        """Iterate over the loader as an act says; yields what was delivered."""
        take = self._new_take()
        iterator = iter(self.loader)
        self._consume(iterator, take, number, None if act.ending == WHOLE else act.after)
        if act.ending == RESUME:
            state = self.loader.state_dict()
            del iterator
            if take.ended:
                yield take
                take = self._new_take()
            self._succeed(act, state)
            iterator = iter(self.loader)
            self._consume(iterator, take, number, None)
        yield take
        if act.ending == KEEP:
            self.iterators.append(iterator)
        if act.ending == CLOSE:
            self.loader.close()
        if act.ending == RAISE:
            raise LoopError

    def _new_take(self) -> Take:
        streams = max(1, self.crew.workers) if self.script.dataset in SPLIT_STREAMS else 1
        return Take(streams=streams)

    def _succeed(self, act: Act, state: dict[str, Any]) -> None:
        """Have another loader go on."""
        assert act.crew is not None
        state = json.loads(json.dumps(state)) if act.through == "json" else pickle.loads(pickle.dumps(state))
        self._leave_loader()
        self.crew = act.crew
        self._choose_engine(self.crew)
        self.loader = build_loader(self.script, self.crew, self.dataset)
        self.loader.load_state_dict(state)

    def _consume(self, iterator: Any, take: Take, act: int | None, limit: int | None) -> None:
        """Take batches, as many as `limit` says; attacks of an act come when it is time, the others at the end."""
        attacks = [attack for attack in self.script.attacks if attack.act == act and attack not in self.ordered]
        while limit is None or len(take.entries) < limit:
            self._sabotage(iterator, [attack for attack in attacks if attack.after == len(take.entries)])
            try:
                batch = next(iterator)
            except StopIteration:
                take.ended = True
                break
            except (BadSample, UnpicklableSample):
                take.entries.append(ERROR)
                continue
            self._take_in(batch, take)
        self._sabotage(iterator, attacks)

    def _sabotage(self, iterator: Any, attacks: list[Attack]) -> None:
        for attack in attacks:
            if self.crew.has_processes and attack not in self.ordered:
                self.ordered.add(attack)
                self.saboteur.attack(attack, _pids_of(iterator))

    def _take_in(self, batch: Any, take: Take) -> None:
        stable, entry = self._read(batch)
        take.entries.append(entry)
        for digest in stable:
            index = self.index_of.get(digest)
            if index is None:
                take.corrupted += 1
            else:
                take.indices[index] += 1
        if self.script.keeps and len(take.entries) % 2:
            self.kept.append((batch, entry))

    def _read(self, batch: Any) -> tuple[list[Digest], tuple[Digest, ...]]:
        """Return the checksums of the samples of a batch, without and with what is random but determined."""
        script = self.script
        if script.batch_size is None:
            samples = [batch]
        elif script.content == "ragged":
            samples = batch
        else:
            samples = samples_of(batch, self.template)
        stable = [self._digest(sample) for sample in samples]
        if script.content != "dicts" or not self.compares_noise:
            return stable, tuple(stable)
        return stable, tuple(self._digest(sample, noise=True) for sample in samples)

    def _check(self, number: int, act: Act, take: Take) -> None:
        outcome, script = self.outcome, self.script
        outcome.batches += len(take.entries) - take.entries.count(ERROR)
        outcome.samples += sum(take.indices.values())
        outcome.corrupted += take.corrupted
        where = f"iteration {number} ({act.ending})"
        if repeated := take.repeated(script):
            outcome.repeated += len(repeated)
            outcome.problems.append(f"{where}: repeated {repeated}")
        if take.ended:
            if missing := lost(take, script):
                outcome.lost += missing
                outcome.problems.append(f"{where}: lost {missing} of {take.missing(script)}")
            outcome.problems += [f"{where}: {text}" for text in (*complaints(take, script), *self._wrong_log())]
        for batch, entry in self.kept:
            if self._read(batch)[1] != entry:
                outcome.problems.append(f"{where}: a batch that was kept has changed")
        if self.reference is not None:
            self._compare(where, take)

    def _wrong_log(self) -> list[str]:
        """Compare the log of faults with what is known to be bad."""
        script = self.script
        if script.on_error == "raise" or script.dataset in SPLIT_STREAMS:  # whose places are not indices
            return []
        told = {fault.index for fault in self.loader.faults if fault.lost}
        if told == script.bad or (script.drop_last and told < script.bad):
            return []
        return [f"samples {sorted(script.bad)} are bad, and loader.faults says that {sorted(told)} were lost"]

    def _compare(self, where: str, take: Take) -> None:
        theirs = Take()
        self._consume(iter(self.reference), theirs, None, None if take.ended else len(take.entries))
        script = self.script
        if not script.in_order and (not take.ended or (script.refills and script.bad)):
            return  # which batches come first, and so which are there to give samples, is not determined
        text = difference(take.entries, theirs.entries, ordered=script.in_order)
        if text:
            self.outcome.problems.append(f"{where}: {text}")

    def _leave_loader(self) -> None:
        self.outcome.recycled += self.loader.stats()["recycled_workers"]
        self.loader.close()

    def let_go(self) -> None:
        """Drop all batches and iterators, and see whether the memory came back."""
        self.kept.clear()
        self.iterators.clear()
        gc.collect()  # exceptions refer to frames, and these to batches
        arena = self.loader._supply._arena
        if self.crew.persistent or arena is None:
            return
        gone = arena._opened - len(arena._free) - arena.leased_count
        if gone or arena.leased_count:
            self.outcome.leaks.append(f"{gone} slots were not given back, {arena.leased_count} are leased")

    def close(self) -> None:
        """End the loader."""
        self.kept.clear()
        self.iterators.clear()
        self._leave_loader()
        _abilities.can_share_arenas = _can_share_arenas


def _pids_of(iterator: Any) -> Callable[[], list[int]]:
    batches = getattr(iterator, "_batches", iterator)  # the drop-in wraps what the other loader returns
    engine = weakref.ref(batches.crew.engine)  # an attack that comes too late keeps nothing alive

    def pids() -> list[int]:
        there = engine()
        return [] if there is None else list(there.pids)

    return pids


def _sample(script: Script, index: int) -> Any:
    """Return a sample as the dataset has it."""
    sample = make_sample(script.content, index)
    if script.dataset != "gathered":
        return sample
    return (sample,) if script.loader == "DataLoader" else {"rows": sample}


def build_dataset(script: Script, troubles: Troubles) -> Any:
    """Make the dataset of a round."""
    for_torch = script.loader == "DataLoader"
    if script.dataset == "gathered":
        return gathered(script.size, for_torch=for_torch)
    kind = {
        "items": datasets.Items,
        "bulk items": datasets.BulkItems,
        "stream": datasets.TorchStream if for_torch else datasets.Stream,
        "stateful stream": datasets.StatefulTorchStream if for_torch else datasets.StatefulStream,
        "split stream": datasets.SplitStream,
        "stateful split stream": datasets.StatefulSplitStream,
    }[script.dataset]
    return kind(script.content, script.size, troubles)


def _most_bytes(script: Script, crew: Crew) -> int | None:
    """Return how much memory a worker may have: what one has from the start, and not much of what makes it grow."""
    if GROWS not in script.troubles.values() or not crew.has_processes:
        return None
    return (own_bytes(os.getpid()) or 0) + GROWTH_BYTES // 2


def build_loader(script: Script, crew: Crew, dataset: Any) -> Any:
    """Make the loader of a round."""
    options: dict[str, Any] = {
        "batch_size": script.batch_size,
        "shuffle": script.shuffle,
        "drop_last": script.drop_last,
        "seed": script.loader_seed,
        "in_order": script.in_order,
        "engine": "process" if crew.engine == "portable" else crew.engine,
        "on_error": _ON_ERROR[script.on_error],
        "restarts": _MANY_RESTARTS,
        "max_memory_per_worker": _most_bytes(script, crew),
    }
    collate = as_list if script.content == "ragged" and script.batch_size is not None else None
    if script.loader == "Loader":
        return feedline.Loader(
            dataset,
            collate=collate,
            workers=crew.workers,
            persistent=crew.persistent,
            prefetch=crew.prefetch,
            start_method=crew.start_method,
            timeout_s=script.timeout_s,
            **options,
        )
    if script.is_stream:
        options["shuffle"] = None
        options["shard"] = None if script.dataset in SPLIT_STREAMS else True
    return feedline.DataLoader(
        dataset,
        collate_fn=collate,
        num_workers=crew.workers,
        persistent_workers=crew.persistent,
        prefetch_factor=crew.prefetch if crew.workers else None,
        multiprocessing_context=crew.start_method,
        timeout=script.timeout_s,
        split=script.split if crew.engine == "process" else 1,
        **options,
    )
