"""The iterator of a pipe that is a stream, as loaders and `for` loops see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from feedline.abc.description import check_description
from feedline.abc.source import Repeatable
from feedline.abc.stateful import check_format
from feedline.errors import BadState
from feedline.pipes.lap import CursorState, Lap, Samples
from feedline.pipes.stage import StreamStage
from feedline.pipes.weaving import Buffer
from feedline.randomness.agreement import Findings
from feedline.randomness.scope import current_scope, is_in_loader
from feedline.system.failures import is_last

T = TypeVar("T")

_READ_AHEAD = 256
"""Samples to make at a time in a loop by hand. The first ones come one by one."""


# Any: samples are of any kind.
class PipeIterator(Repeatable, Iterator[Any]):
    """An iterator over a stream; `state_dict` returns its position after the last sample that it returned."""

    def __init__(self, stage: StreamStage, lap: Lap) -> None:
        self._stage = stage
        self._lap = lap
        self._description = stage.describe()
        self._buffer = Buffer(stage.open(lap))
        self._chunk = 1
        # In a loader, the next sample may belong to another worker.
        self._most = 1 if is_in_loader() else _READ_AHEAD
        self._has_ended = False
        """True if the last exception was one that ends the stream."""

    def __next__(self) -> Any:
        buffer = self._buffer
        if buffer.at < len(buffer.samples):  # what `pop` does: a call costs more than many samples do
            buffer.at += 1
            return buffer.samples[buffer.at - 1]
        self._checked(lambda: self._buffer.fill(self._chunk))
        self._chunk = min(2 * self._chunk, self._most)
        return self._checked(self._buffer.pop)

    def take(self, count: int) -> Samples:
        """Return the next samples: at least one and at most `count`; none at the end."""
        return self._checked(lambda: self._buffer.take(count))

    def skip(self, count: int) -> int:
        """Skip up to `count` samples, without making them where possible; return how many were skipped."""
        return self._checked(lambda: self._buffer.skip(count))

    def _checked(self, read: Callable[[], T]) -> T:
        """Read. Raises BadOption: workers disagree about which samples the stream has."""
        try:
            found = read()
        except Exception as exc:
            self._has_ended = is_last(exc)
            raise
        if (findings := _findings()) is not None:
            findings.check()
        return found

    @property
    def has_broken_off(self) -> bool:  # type: ignore[override]  # it depends on what other workers find
        """True if no sample follows the last exception, or workers disagree about which samples there are."""
        findings = _findings()
        return self._has_ended or (findings is not None and findings.error is not None)

    def try_again(self) -> bool:
        return self._buffer.try_again()

    def state_dict(self) -> CursorState:
        """Return the position as plain values: no sample is part of it."""
        return {"pipe": self._description, "epoch": self._lap.epoch, "position": self._buffer.state()}

    # object: a state may come from anywhere.
    def load_state_dict(self, state: object) -> None:
        """Continue from a state that `state_dict` returned."""
        if isinstance(state, dict):
            check_format(state, "a pipe")
        if not isinstance(state, dict) or state.keys() != {"pipe", "epoch", "position"}:
            raise BadState(
                f"This is not the state of a pipe: {state!r:.200} Use the dataset that the state was saved with."
            )
        check_description(state["pipe"], self._description)
        self._lap = replace(self._lap, epoch=state["epoch"])
        self._buffer = Buffer(self._stage.open(self._lap))
        try:
            self._buffer.restore(state["position"])
        except BadState:  # from a dataset in the pipe, whose message says more
            raise
        except (KeyError, TypeError, IndexError, ValueError) as exc:
            if is_last(exc):  # it was raised by the dataset, which is read again
                raise
            raise BadState(
                "The state belongs to a pipe with other operators. Use the pipe that the state was saved with."
            ) from exc


def _findings() -> Findings | None:
    scope = current_scope()
    return None if scope is None else scope.findings
