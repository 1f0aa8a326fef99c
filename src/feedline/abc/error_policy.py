"""The contract of policies for failed samples."""

from __future__ import annotations

from abc import ABC, abstractmethod

from feedline.abc.faults import Failure, Verdict

DEFAULT_MAX_SHARE = 0.5
"""A dataset of which more than half fails is not one that anybody wants to train on: a wrong path, a lost mount."""


class ErrorPolicy(ABC):
    """Decides what becomes of a sample that failed; never waits, never touches a sample.

    Asked where the sample failed, which may be a worker process, so it has to be picklable; and in the training
    process about samples that killed or blocked their worker. One answer per failed attempt. Subclass it with
    `decide`; the properties have defaults that suit every policy.

    Example:
        >>> class SkipWhatIsCold(ErrorPolicy):
        ...     def decide(self, failure: Failure, chance: float) -> Verdict:
        ...         return Verdict("skip" if isinstance(failure.error, TimeoutError) else "raise")
        >>> SkipWhatIsCold().decide(Failure(7, TimeoutError(), "fetch", 1, None), chance=0.5).action
        'skip'
    """

    @abstractmethod
    def decide(self, failure: Failure, chance: float) -> Verdict:
        """Return what becomes of the sample.

        Pure: the same arguments give the same verdict, in every process.

        Args:
            failure: the sample, what it raised, and how often it was tried.
            chance: a number from 0 to less than 1, for the jitter of a wait.
        """

    @property
    def never_catches(self) -> bool:
        """True if every answer is "raise": the loader then guards nothing and never asks."""
        return False

    @property
    def max_failures(self) -> int | None:
        """How many samples may be lost; None for any number."""
        return None

    @property
    def max_share(self) -> float | None:
        """Which share of the samples may be lost, from 0 to 1; None, or 1, for any."""
        return DEFAULT_MAX_SHARE
