"""A policy that is a function of the user's."""

from __future__ import annotations

from collections.abc import Callable

from feedline.abc.error_policy import ErrorPolicy
from feedline.errors import BadOption
from feedline.faults.actions import ALLOWED, Action, find_action
from feedline.verdicts import Failure, Verdict


class FunctionPolicy(ErrorPolicy):
    """Asks a function, which gets the failure and returns an action or a verdict.

    A `Retry` that it returns counts attempts by `failure.attempt`, as one in a rule does. A verdict is taken as it is:
    a function that returns `Verdict("retry")` has to look at `failure.attempt` itself, or it never ends.

    Example:
        >>> policy = FunctionPolicy(lambda failure: "skip" if failure.index > 5 else "raise")
        >>> policy.decide(Failure(7, OSError(), "fetch", 1, None), chance=0.5).action
        'skip'
    """

    def __init__(self, function: Callable[[Failure], Action | Verdict]) -> None:
        self.function = function

    def decide(self, failure: Failure, chance: float) -> Verdict:
        """Return what becomes of the sample.

        Raises:
            BadOption: the function returned something else than an action or a verdict.
        """
        if not isinstance(failure.error, Exception):
            return Verdict("raise")
        answer = self.function(failure)
        if isinstance(answer, Verdict):
            return answer
        action = find_action(answer)
        if action is None:
            raise BadOption(
                f"on_error={self.function!r:.200} was asked about sample {failure.index!r:.80}, which failed with "
                f"{failure.error!r:.200}, and returned {answer!r:.200}, which is not an action. {ALLOWED}"
            )
        return action.verdict(failure, chance)

    def __eq__(self, other: object) -> bool:
        return self.function == other.function if isinstance(other, FunctionPolicy) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.function)

    def __repr__(self) -> str:
        return f"FunctionPolicy({self.function!r})"
