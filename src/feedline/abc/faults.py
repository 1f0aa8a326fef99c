"""Failed samples: their description, and the contract of policies that decide what happens to them.

A policy takes a `Failure` and returns a `Verdict`; the log keeps a `Fault`, which combines both. Workers send faults,
and a loader's state includes them, so they hold only plain values: `plain_index` converts the index of a sample.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from feedline.errors import BadOption, BadState
from feedline.system.failures import words
from feedline.types import JsonObject, is_finite

ACTIONS = ("raise", "skip", "retry", "replace")
"""What can happen to a failed sample."""

DEFAULT_MAX_SHARE = 0.5
"""If more than half of a dataset fails, the cause is more likely a wrong path or a lost mount than bad samples."""

MESSAGE_LENGTH = 500
"""Maximum length of an exception's text, in characters.

A guess: the cause is in the first lines, and every saved state includes the log, which may have thousands of entries.
"""


class _Neighbour:
    """The type of `NEIGHBOUR`."""

    def __reduce__(self) -> str:  # pickled by name, so copies and unpickled objects are the same object
        return "NEIGHBOUR"

    def __repr__(self) -> str:
        return "NEIGHBOUR"


NEIGHBOUR = _Neighbour()
"""In a verdict that replaces a sample, stands for the next sample that works."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed sample, as passed to a policy or a user's function.

    Example:
        >>> failure = Failure(index=7, error=OSError("disk"), stage="fetch", attempt=1, worker=0)
        >>> failure.stage, failure.error
        ('fetch', OSError('disk'))
    """

    index: Any  # anything the sampler yields
    """Index of the sample, or its position in the stream of an iterable dataset; list of indices if a batch failed."""
    error: BaseException
    stage: str
    """"fetch", "transform", "collate", or "worker" if the sample killed or blocked its worker."""
    attempt: int
    """1 for the first attempt."""
    worker: int | None
    """None in the training process itself."""
    key: int = 0
    """Key of the sample, from which the jitter of a retry may be derived."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a failed sample.

    Raises:
        BadOption: the action is unknown, the wait is not a valid time, or the replacement is not named.

    Example:
        >>> Verdict("retry", wait_s=0.5).wait_s
        0.5
        >>> Verdict("replace", index=NEIGHBOUR).index
        NEIGHBOUR
    """

    action: str
    """"raise", "skip", "retry" or "replace"."""
    wait_s: float = 0.0
    """retry: how long to wait first."""
    index: Any = None  # anything the sampler yields
    """replace: the replacement; `NEIGHBOUR` for the next sample that works."""

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            allowed = ", ".join(map(repr, ACTIONS))
            raise BadOption(f"Verdict(action={self.action!r:.200}) is none of the actions {allowed}.")
        if not is_finite(self.wait_s) or self.wait_s < 0:
            raise BadOption(f"Verdict(wait_s={self.wait_s!r:.200}) is not a number of seconds, 0 or more.")
        if self.action == "replace" and self.index is None:
            raise BadOption(
                "Verdict('replace') needs a replacement. Pass index=, the index of another sample, or "
                "index=feedline.faults.NEIGHBOUR for the next one that works."
            )


class ErrorPolicy(ABC):
    """Decides what happens to a failed sample; never waits, never touches a sample.

    Called where the sample failed, which may be a worker process, so it has to be picklable. For samples that killed or
    blocked their worker, it is called in the training process. One call per failed attempt. Subclass it with `decide`;
    the properties have defaults that suit every policy.

    Example:
        >>> class SkipTimeouts(ErrorPolicy):
        ...     def decide(self, failure: Failure, chance: float) -> Verdict:
        ...         return Verdict("skip" if isinstance(failure.error, TimeoutError) else "raise")
        >>> SkipTimeouts().decide(Failure(7, TimeoutError(), "fetch", 1, None), chance=0.5).action
        'skip'
    """

    @abstractmethod
    def decide(self, failure: Failure, chance: float) -> Verdict:
        """Return what to do with the sample.

        Pure: the same arguments give the same verdict, in every process.

        Args:
            failure: the sample, what it raised, and how often it was tried.
            chance: a number from 0 to less than 1, for the jitter of a retry delay.
        """

    @property
    def never_catches(self) -> bool:
        """True if every answer is "raise": the loader then catches nothing and never calls `decide`."""
        return False

    @property
    def max_failures(self) -> int | None:
        """How many samples may be lost; None for no limit."""
        return None

    @property
    def max_share(self) -> float | None:
        """The share of samples that may be lost, from 0 to 1; None or 1 for no limit."""
        return DEFAULT_MAX_SHARE


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of the log: a failed sample, and what was done with it.

    Holds only plain values: it converts the indices it is created with, see `plain_index`.

    Example:
        >>> failure = Failure(index=7, error=OSError("disk"), stage="fetch", attempt=1, worker=0)
        >>> fault = Fault.of(failure, "skip", time=1.7e9)
        >>> print(fault)
        sample 7: OSError: disk (fetch, worker 0, attempt 1): skip
        >>> Fault.from_dict(fault.as_dict()) == fault
        True
    """

    index: Any  # a plain value from `plain_index`
    error: str
    """Class of the exception, with its module unless that is `builtins`: "OSError", "PIL.UnidentifiedImageError"."""
    message: str
    """Text of the exception, at most 500 characters."""
    stage: str
    worker: int | None
    attempt: int
    """How often the sample had been tried when this was decided."""
    action: str
    """The action taken: "raise", "skip", "replace", or "retry" if a retry succeeded."""
    time: float
    """Seconds since 1970."""
    epoch: int = 0
    replacement: Any = None  # a plain value from `plain_index`
    """The replacement, if there was one and it is known."""

    def __post_init__(self) -> None:
        for name in ("index", "replacement"):
            object.__setattr__(self, name, plain_index(getattr(self, name)))
        object.__setattr__(self, "message", self.message[:MESSAGE_LENGTH])

    # object: the index of the replacement.
    @classmethod
    def of(
        cls,
        failure: Failure,
        action: str,
        *,
        time: float,
        epoch: int = 0,
        replacement: object = None,
    ) -> Fault:
        """Create the log entry of a failure; `time` is in seconds since 1970."""
        return cls(
            index=failure.index,
            error=error_name(type(failure.error)),
            message=_text_of(failure.error),
            stage=failure.stage,
            worker=failure.worker,
            attempt=failure.attempt,
            action=action,
            time=time,
            epoch=epoch,
            replacement=replacement,
        )

    @property
    def lost(self) -> bool:
        """True if the sample is not in its batch. Lost samples count against the budget of a policy."""
        return self.action in ("skip", "replace")

    # object: numbers, strings, lists and dicts of these.
    def as_dict(self) -> JsonObject:
        """Return the fault in values that JSON supports; fields with default values are omitted."""
        state = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is MISSING or value != field.default:
                state[field.name] = _packed(value) if field.name in _INDICES else value
        return state

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Fault:
        """Read the result of `as_dict`; unknown fields are ignored.

        Raises:
            BadState: the state is not a fault.
        """
        try:
            known = {field.name: state[field.name] for field in fields(cls) if field.name in state}
            return cls(**{name: _unpacked(value) if name in _INDICES else value for name, value in known.items()})
        except (TypeError, AttributeError, KeyError) as exc:
            raise BadState(
                f"{state!r:.200} is not a fault: {words(exc)}. Load the log as it was saved, or clear it."
            ) from exc

    def __str__(self) -> str:
        what = "batch" if self.stage == "collate" else "sample"
        where = self.stage if self.worker is None else f"{self.stage}, worker {self.worker}"
        message = f": {self.message}" if self.message else ""
        by = "" if self.replacement is None else f" by {self.replacement!r:.80}"
        return f"{what} {self.index!r:.80}: {self.error}{message} ({where}, attempt {self.attempt}): {self.action}{by}"


_INDICES = ("index", "replacement")


# Any, here and below: a plain index.
def _packed(index: Any) -> Any:
    """Mark tuples, which JSON would turn into lists: a dataset may accept only the one or the other."""
    if isinstance(index, tuple):
        return {"tuple": list(map(_packed, index))}
    return list(map(_packed, index)) if isinstance(index, list) else index


def _unpacked(index: Any) -> Any:
    if isinstance(index, dict):
        return tuple(map(_unpacked, index["tuple"]))
    return list(map(_unpacked, index)) if isinstance(index, list) else index


def error_name(kind: type[BaseException]) -> str:
    """Name an exception class, with its module unless that is `builtins`.

    Example:
        >>> import json
        >>> error_name(OSError), error_name(json.JSONDecodeError)
        ('OSError', 'json.decoder.JSONDecodeError')
    """
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as exc:  # a user's exception without a printable text is still a fault to report
        return f"(its text cannot be shown: {error_name(type(exc))})"


# Any: anything the sampler yields; a plain value.
def plain_index(index: object) -> Any:
    """Return an index as a plain value, which is the same in every process and which JSON can save.

    - None, numbers and strings are unchanged.
    - Numbers of NumPy, torch and similar libraries become Python's; their arrays become lists.
    - Tuples and lists keep their type, with plain values inside.
    - Anything else becomes its repr. An object without its own repr becomes the name of its class and its fields,
      because the address in the default repr differs between processes. NaN and infinity also become their repr.

    Example:
        >>> import numpy as np
        >>> plain_index((np.int64(3), "cat", np.arange(2)))
        (3, 'cat', [0, 1])
        >>> plain_index(slice(2, 5))
        'slice(2, 5, None)'
    """
    kind = type(index)
    if index is None or kind in (int, str, bool):
        return index
    if isinstance(index, tuple):
        return tuple(map(plain_index, index))
    if isinstance(index, list):
        return [plain_index(element) for element in index]
    if isinstance(index, str):
        return str.__str__(index)  # the str() of an enum is not its string value
    if isinstance(index, int):
        return int(index)
    if isinstance(index, float):
        return float(index) if math.isfinite(index) else repr(float(index))
    dimensions = getattr(index, "ndim", None)
    if dimensions == 0 and hasattr(index, "item"):
        value = index.item()
        # Not every scalar has a Python counterpart: `item()` of a long double is a long double.
        return plain_index(value) if type(value) in (int, str, bool, bytes, float) else _repr_of(index)
    if dimensions and hasattr(index, "tolist"):
        return plain_index(index.tolist())  # the repr of a large array omits most of it
    return _repr_of(index)


def index_key(index: object) -> Hashable:
    """Return a key that identifies an index: equal for an index and every form it took on its way.

    Example:
        >>> import numpy as np
        >>> index_key(np.int64(3)) == index_key(3)
        True
        >>> index_key((1, 2))
        '[1, 2]'
    """
    if type(index) is int:  # nearly always; called for every sample while there is a quarantine
        return index
    plain: Hashable = plain_index(index)
    return json.dumps(plain) if isinstance(plain, (tuple, list)) else plain


def _repr_of(value: object) -> str:
    show: object = type(value).__repr__  # typed as a method, it could not be the function that it is
    if show is object.__repr__ and hasattr(value, "__dict__"):
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        return f"{name}({', '.join(f'{field}={content!r}' for field, content in vars(value).items())})"
    try:
        return repr(value)
    except Exception:  # a user's repr; report the original failure, not this one
        return object.__repr__(value)
