"""The stage of one round: its loader performs the acts of the script, and its batches are checked."""

from __future__ import annotations

import contextlib
import gc
import json
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from feedline.loader.base import session_of
from feedline.workers import abilities
from tests.drill.digests import Digest, digest_of, samples_of
from tests.drill.loaders import build_dataset, build_loader, sample_of
from tests.drill.saboteur import Saboteur
from tests.drill.script import CLOSE, KEEP, RAISE, RESUME, SPLIT_STREAMS, WHOLE, Act, Attack, Crew, Script
from tests.drill.take import ERROR, Take, complaints, difference, lost
from tests.drill.troubles import FLAKY, BadSample, Troubles, UnpicklableSample

if TYPE_CHECKING:
    from tests.drill.round import Outcome

_abilities: Any = abilities
_can_share_arenas = abilities.can_share_arenas


class LoopError(Exception):
    """Raised by the training loop itself."""


class Stage:
    """A loader, the one it is compared with, and their batches."""

    def __init__(self, script: Script, troubles: Troubles, saboteur: Saboteur, outcome: Outcome) -> None:
        self.script = script
        self.saboteur = saboteur
        self.outcome = outcome
        self.crew = script.crew
        self.dataset = build_dataset(script, troubles)
        self.loader = build_loader(script, self.crew, self.dataset)
        self.template = sample_of(script, 0)
        self.index_of = {digest_of(sample_of(script, index)): index for index in range(script.size)}
        # A bulk dataset draws all random numbers in one call, but not when samples are retried one by one.
        self.compares_noise = script.loader_seed is not None and not (
            script.dataset == "bulk items" and FLAKY in script.troubles.values()
        )
        self.kept: list[tuple[Any, tuple[Digest, ...]]] = []
        self.iterators: list[Any] = []
        self.ordered: set[Attack] = set()
        """Attacks that were given to the saboteur."""
        self.reference: Any = None
        is_determined = script.loader_seed is not None or not script.shuffle
        if script.compares and is_determined and script.dataset not in SPLIT_STREAMS:
            self.reference = build_loader(script, Crew("inline", 0), build_dataset(script, troubles.tamed()))

    def perform(self) -> None:
        """Perform the acts."""
        for number, act in enumerate(self.script.acts):
            self._choose_engine(self.crew)
            with contextlib.suppress(LoopError):
                for take in self._act(number, act):
                    self._check(number, act, take)

    def _choose_engine(self, crew: Crew) -> None:
        _abilities.can_share_arenas = (lambda: False) if crew.engine == "portable" else _can_share_arenas

    def _act(self, number: int, act: Act) -> Iterator[Take]:
        """Iterate over the loader as an act says; yield what was delivered."""
        take = self._new_take()
        iterator = iter(self.loader)
        self._consume(iterator, take, number, None if act.ending == WHOLE else act.after)
        if act.ending == RESUME:
            state = self.loader.state_dict()
            del iterator
            if take.ended:
                yield take
                take = self._new_take()
            self._resume_with_another_loader(act, state)
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

    def _resume_with_another_loader(self, act: Act, state: dict[str, Any]) -> None:
        """Let another loader resume."""
        assert act.crew is not None
        state = json.loads(json.dumps(state)) if act.through == "json" else pickle.loads(pickle.dumps(state))
        self._leave_loader()
        self.crew = act.crew
        self._choose_engine(self.crew)
        self.loader = build_loader(self.script, self.crew, self.dataset)
        self.loader.load_state_dict(state)

    def _consume(self, iterator: Any, take: Take, act: int | None, limit: int | None) -> None:
        """Take at most `limit` batches; attacks of the act come when they are due, the others at the end."""
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
                self.saboteur.attack(attack, pids_of(iterator))

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
        """Return the checksums of the samples of a batch, without and with reproducible random fields."""
        script = self.script
        if script.batch_size is None:
            samples = [batch]
        elif script.content == "ragged":
            samples = batch
        else:
            samples = samples_of(batch, self.template)
        stable = [digest_of(sample) for sample in samples]
        if script.content != "dicts" or not self.compares_noise:
            return stable, tuple(stable)
        return stable, tuple(digest_of(sample, noise=True) for sample in samples)

    def _check(self, number: int, act: Act, take: Take) -> None:
        outcome, script = self.outcome, self.script
        outcome.counts["batches"] += len(take.entries) - take.entries.count(ERROR)
        outcome.counts["samples"] += sum(take.indices.values())
        where = f"iteration {number} ({act.ending})"
        if take.corrupted:
            outcome.problems.append(f"{where}: corrupted: {take.corrupted} samples were none of the dataset's")
        if repeated := take.repeated(script):
            outcome.problems.append(f"{where}: repeated {repeated}")
        if take.ended:
            if missing := lost(take, script):
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
        if script.on_error == "raise" or script.dataset in SPLIT_STREAMS:  # their positions are not indices
            return []
        logged = {fault.index for fault in self.loader.faults if fault.lost}
        if logged == script.bad or (script.drop_last and logged < script.bad):
            return []
        return [f"samples {sorted(script.bad)} are bad, and loader.faults says that {sorted(logged)} were lost"]

    def _compare(self, where: str, take: Take) -> None:
        theirs = Take()
        self._consume(iter(self.reference), theirs, None, None if take.ended else len(take.entries))
        script = self.script
        if not script.in_order and not take.ended:
            return  # the order of the first batches is not determined
        text = difference(take.entries, theirs.entries, ordered=script.in_order)
        if text:
            self.outcome.problems.append(f"{where}: {text}")

    def _leave_loader(self) -> None:
        self.outcome.counts["workers recycled"] += self.loader.stats()["recycled_workers"]
        self.loader.close()

    def let_go(self) -> None:
        """Drop all batches and iterators, and check that their memory is released."""
        self.kept.clear()
        self.iterators.clear()
        gc.collect()  # exceptions refer to frames, and these to batches
        arena = session_of(self.loader).resources._arena
        if self.crew.persistent or arena is None:
            return
        busy, leased = arena.busy_count, arena.leased_count
        if busy or leased:
            self.outcome.problems.append(f"left behind: {busy} slots were not given back, {leased} are leased")

    def close(self) -> None:
        """Close the loader."""
        self.kept.clear()
        self.iterators.clear()
        self._leave_loader()
        _abilities.can_share_arenas = _can_share_arenas


def pids_of(iterator: Any) -> Callable[[], list[int]]:
    """Return a function that lists the workers of an iterator while it exists."""
    reference = weakref.ref(iterator)  # a late attack must not keep it alive

    def pids() -> list[int]:
        existing = reference()
        return [] if existing is None else list(existing.worker_pids)

    return pids
