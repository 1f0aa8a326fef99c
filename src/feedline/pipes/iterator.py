"""The iterator of a pipe that is a stream, as loaders and `for` loops see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from feedline.abc.description import check_description
from feedline.abc.source import Repeatable
from feedline.abc.stateful import check_format
from feedline.errors import BadState
from feedline.pipes.cursor import Cursor
from feedline.pipes.lap import CursorState, Lap, Samples
from feedline.pipes.stage import StreamStage
from feedline.randomness.agreement import Findings
from feedline.randomness.scope import current_scope, is_in_loader
from feedline.system.failures import is_last

_READ_AHEAD = 256
"""Samples to make at a time in a loop by hand. The first ones come one by one."""


# Any: samples are of any kind.
class PipeIterator(Repeatable, Iterator[Any]):
    """An iterator over a stream; `state_dict` returns its position after the last sample that it returned."""

    def __init__(self, stage: StreamStage, lap: Lap) -> None:
        self._stage = stage
        self._lap = lap
        self._description = stage.describe()
        self._cursor: Cursor = stage.open(lap)
        self._ahead: Samples = []
        """Samples made ahead in a loop by hand, in reverse."""
        self._before: CursorState = {}
        self._given = 0
        self._chunk = 1
        self._is_in_loader = is_in_loader()
        self._has_ended = False
        """True if the last exception was one that ends the stream."""

    def __next__(self) -> Any:
        if not self._ahead:
            self._read_ahead()
        self._given += 1
        return self._ahead.pop()

    def _read_ahead(self) -> None:
        self._before, self._given = self._cursor.state(), 0
        # In a loader, the next sample may belong to another worker.
        found = self._take(1 if self._is_in_loader else self._chunk)
        if not found:
            raise StopIteration
        self._ahead = found[::-1]
        self._chunk = min(2 * self._chunk, _READ_AHEAD)

    def take(self, count: int) -> Samples:
        """Return the next samples: at least one and at most `count`; none at the end."""
        if self._ahead:
            return [next(self) for _ in range(min(count, len(self._ahead)))]
        return self._take(count)

    def _take(self, count: int) -> Samples:
        try:
            found = self._cursor.take(count)
        except Exception as exc:
            self._has_ended = is_last(exc)
            raise
        _check_findings()
        return found

    def skip(self, count: int) -> int:
        """Skip up to `count` samples, without making them where possible; return how many were skipped."""
        made = min(count, len(self._ahead))
        for _ in range(made):
            next(self)
        try:
            skipped = made + (self._cursor.skip(count - made) if count > made else 0)
        except Exception as exc:
            self._has_ended = is_last(exc)
            raise
        _check_findings()  # skipping passes over exceptions, which are raised where the samples are due
        return skipped

    @property
    def has_broken_off(self) -> bool:  # type: ignore[override]  # it depends on what other workers find
        """True if no sample follows the last exception, or workers disagree about which samples there are."""
        findings = _findings()
        return self._has_ended or (findings is not None and findings.error is not None)

    def try_again(self) -> bool:
        return self._cursor.try_again()

    def state_dict(self) -> CursorState:
        """Return the position as plain values: no sample is part of it."""
        cursor, given = (self._before, self._given) if self._ahead else (self._cursor.state(), 0)
        return {"pipe": self._description, "epoch": self._lap.epoch, "cursor": cursor, "given": given}

    # object: a state may come from anywhere.
    def load_state_dict(self, state: object) -> None:
        """Continue from a state that `state_dict` returned."""
        if isinstance(state, dict):
            check_format(state, "a pipe")
        if not isinstance(state, dict) or state.keys() != {"pipe", "epoch", "cursor", "given"}:
            raise BadState(
                f"This is not the state of a pipe: {state!r:.200} Use the dataset that the state was saved with."
            )
        check_description(state["pipe"], self._description)
        self._lap = replace(self._lap, epoch=state["epoch"])
        self._cursor, self._ahead = self._stage.open(self._lap), []
        try:
            self._cursor.restore(state["cursor"])
        except BadState:  # from a dataset in the pipe, whose message says more
            raise
        except (KeyError, TypeError, IndexError, ValueError) as exc:
            if is_last(exc):  # it was raised by the dataset, which is read again
                raise
            raise BadState(
                "The state belongs to a pipe with other operators. Use the pipe that the state was saved with."
            ) from exc
        self._cursor.skip(state["given"])


def _findings() -> Findings | None:
    scope = current_scope()
    return None if scope is None else scope.findings


def _check_findings() -> None:
    """Raise BadOption if workers disagree about which samples the stream has."""
    findings = _findings()
    if findings is not None:
        findings.check()
