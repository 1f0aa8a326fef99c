"""The contract of policies for failed samples."""

from __future__ import annotations

from abc import ABC, abstractmethod

from feedline.abc.faults import Failure, Verdict

DEFAULT_MAX_SHARE = 0.5
"""If more than half of a dataset fails, the cause is more likely a wrong path or a lost mount than bad samples."""


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
