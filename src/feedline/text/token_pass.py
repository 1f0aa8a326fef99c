"""One pass over an iterable dataset of texts, which are tokenized several at a time.

Texts are read ahead, up to the size of a batch. A state is the position of the texts before those that were read ahead,
and how many of these have been returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.abc.source import Repeatable
from feedline.abc.stateful import check_format, is_stateful
from feedline.datasets.framework.passes import Pass
from feedline.errors import BadState
from feedline.system.failures import broke_generator
from feedline.text.encoder import Encoder, text_of
from feedline.types import State

Item = tuple[object, NDArray[np.integer] | None]
"""A sample and its tokens; None if tokenizing its batch failed, so that it has to be tokenized alone."""


class Options(Protocol):
    """What a pass needs of the dataset."""

    # Any: a dataset of any class.
    source: Any
    encoder: Encoder
    field: str | int | None
    batch: int


class TokenPass(Pass[Item]):
    """A pass over a dataset that cannot save its position."""

    def __init__(self, options: Options, iterator: Iterator[object]) -> None:
        super().__init__()
        self._options = options
        self._iterator: Any = iterator  # Any: perhaps with further methods
        self._ready: deque[Item] = deque()
        self._pending: Exception | None = None
        """The exception that the dataset raised after the texts that are ready."""
        self._returned = 0
        """Texts taken since the texts were last read."""
        self._has_ended = False

    def _take(self) -> Item:
        if not self._ready:
            self._refill(self._options.batch)
        self._returned += 1
        return self._ready.popleft()

    def _refill(self, most: int) -> None:
        self._remember()
        if self._pending is not None:
            self._raise_pending(self._pending)
        samples: list[object] = []
        try:
            while len(samples) < most:
                samples.append(next(self._iterator))
        except StopIteration:
            if not samples:
                self._has_ended = True
                raise
        except Exception as exc:
            if not samples:
                self._raise_pending(exc)
            self._pending = exc
        except BaseException:  # an interrupt: the texts come next time
            self._ready.extend((sample, None) for sample in samples)
            raise
        self._ready.extend(self._tokenized(samples))

    def _raise_pending(self, exc: Exception) -> NoReturn:
        self._pending = None
        self._remember()
        self.has_broken_off = broke_generator(exc, self._iterator, "source") or (
            isinstance(self._iterator, Repeatable) and self._iterator.has_broken_off
        )
        raise exc

    def _tokenized(self, samples: list[object]) -> Iterator[Item]:
        options = self._options
        try:
            tokens: Sequence[NDArray[np.integer] | None] = options.encoder(
                [text_of(sample, options.field) for sample in samples]
            )
        except Exception:  # one of them fails: `_make` finds out which, and raises its exception
            tokens = [None] * len(samples)
        except BaseException:
            self._ready.extend((sample, None) for sample in samples)
            raise
        return zip(samples, tokens, strict=True)

    def _make(self, item: Item) -> NDArray[np.integer]:
        sample, tokens = item
        if tokens is None:
            (tokens,) = self._options.encoder([text_of(sample, self._options.field)])
        return tokens

    def skip(self, count: int) -> int:
        """Skip samples without tokenizing them; return how many there were."""
        self._again = self._failed = None
        done = min(count, len(self._ready))
        for _ in range(done):
            self._ready.popleft()
        self._returned += done
        if done < count and self._pending is not None:  # a text that failed is one
            self._pending = None
            done += 1
            self._remember()
        if done < count:
            done += self._skip_texts(count - done)
            self._has_ended = done < count
            self._remember()
        return done

    def _skip_texts(self, count: int) -> int:
        if callable(skip := getattr(self._iterator, "skip", None)):
            return int(skip(count))
        return sum(1 for _ in zip(range(count), self._iterator, strict=False))

    def _remember(self) -> None:
        """Note that no texts are read ahead."""
        self._returned = 0


class ResumableTokenPass(TokenPass):
    """A pass over a dataset that saves its position, on itself or on its iterator."""

    def __init__(self, options: Options, iterator: Iterator[object]) -> None:
        super().__init__(options, iterator)
        self._before: object = None
        self._remember()

    def _remember(self) -> None:
        super()._remember()
        holder = self._iterator if is_stateful(self._iterator) else self._options.source
        if not self._has_ended and is_stateful(holder):
            self._before = holder.state_dict()

    def state_dict(self) -> State:
        """Return the position: after the last sample that the pass returned."""
        return {"source": self._before, "returned": self._returned, "ended": self._has_ended}

    # object: a state may come from anywhere.
    def load_state_dict(self, state: object) -> None:
        """Resume at a state. Raises BadState: it is not one of such a pass."""
        if isinstance(state, dict):
            check_format(state, "a pass over tokenized texts")
        if not isinstance(state, dict) or state.keys() != {"source", "returned", "ended"}:
            raise BadState(
                "This is not the state of a pass over tokenized texts: it was saved by another version of feedline, or "
                f"with another dataset. Start the epoch over without the state. It is {state!r:.200}"
            )
        if is_stateful(self._iterator):
            self._iterator.load_state_dict(state["source"])
        else:
            self._options.source.load_state_dict(state["source"])
            self._iterator = iter(self._options.source)
        # The state of a dataset at its end may be that of its beginning.
        self._has_ended = state["ended"]
        if self._has_ended:
            self._iterator = iter(())
        self._ready.clear()
        self._pending = self._again = self._failed = None
        self.has_broken_off = False
        super()._remember()
        self._before = state["source"]
        # Texts that were already returned are read again, but not tokenized.
        self._returned = sum(1 for _ in zip(range(state["returned"]), self._iterator, strict=False))
