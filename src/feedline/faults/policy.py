"""The policy for failed samples: rules by exception class, and a budget; or the user's own function."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from feedline.abc.faults import DEFAULT_MAX_SHARE, ErrorPolicy, Failure, Verdict, error_name
from feedline.errors import BadOption
from feedline.faults.actions import ALLOWED, Action, ActionObject, Raise, action_of, find_action
from feedline.types import is_finite

Rule: TypeAlias = type[BaseException] | str
"""The exceptions that a rule applies to: a class, or the name of one."""

OnError: TypeAlias = Action | ErrorPolicy | Callable[[Failure], Action | Verdict] | None
"""The values that loaders accept as `on_error=`."""

SHARE_COUNTS_FROM = 100
"""Samples after which the share of lost ones counts. A guess: fewer say little, as one bad sample among the first two
would be half of them.
"""


class Policy(ErrorPolicy):
    """Decides what happens to failed samples, by class of the exception.

    The rule of the most specific class wins: the first class of the exception's method resolution order that has one. A
    name refers to a class if it is the class's own name ("UnidentifiedImageError"), or that name after its module or a
    package above it: "json.decoder.JSONDecodeError" and "json.JSONDecodeError" are both right. If several rules fit one
    class, the rule by the class itself comes first, then the one with the longest name. A name needs no import, but a
    misspelled name is not detected.

    Interrupts and exits are never caught: anything that is not an `Exception` is raised.

    Args:
        rules: maps exception classes, or their names, to actions.
        otherwise: the action for all others.
        max_failures: how many samples may be lost in an epoch, skipped or replaced; None for any number. Samples that
            worked in the end are not lost.
        max_share: the share of samples that may be lost, from 0 to 1; half of them if not given. 1.0 turns it off.

    Raises:
        BadOption: a rule is about something that cannot be caught, an action is invalid, or the budget is not a number.

    Example:
        >>> from feedline.faults import Retry
        >>> policy = Policy({OSError: Retry(3, then="skip"), "PIL.UnidentifiedImageError": "skip"}, max_share=0.01)
        >>> policy.decide(Failure(7, ConnectionError(), "fetch", 1, None), chance=0.5)
        Verdict(action='retry', wait_s=0.1, index=None)
        >>> policy.decide(Failure(7, ValueError(), "fetch", 1, None), chance=0.5).action
        'raise'
    """

    max_failures: int | None = None
    max_share: float = DEFAULT_MAX_SHARE

    def __init__(
        self,
        rules: Mapping[type[BaseException] | str, Action] | None = None,
        *,
        otherwise: Action = "raise",
        max_failures: int | None = None,
        max_share: float | None = None,
    ) -> None:
        if not isinstance(rules, (Mapping, type(None))):
            raise BadOption(f"rules={rules!r:.200} is not a mapping such as {{OSError: 'skip'}}. Or use otherwise=.")
        self.rules: dict[Rule, ActionObject] = {
            _rule_of(rule): action_of(action, f"The rule for {_shown(rule)}") for rule, action in (rules or {}).items()
        }
        self.otherwise = action_of(otherwise, "otherwise")
        self.max_failures = None if max_failures is None else _count_of(max_failures)
        self.max_share = DEFAULT_MAX_SHARE if max_share is None else _share_of(max_share)

    @property
    def actions(self) -> list[ActionObject]:
        """All actions that it may choose from."""
        return [*self.rules.values(), self.otherwise]

    @property
    def never_catches(self) -> bool:
        return all(isinstance(action, Raise) for action in self.actions)

    def decide(self, failure: Failure, chance: float) -> Verdict:
        return self.action_for(failure.error).verdict(failure, chance)

    def action_for(self, error: BaseException) -> ActionObject:
        """Return the action of the rule that applies to an exception.

        Example:
            >>> Policy({Exception: "skip", LookupError: "raise"}).action_for(KeyError("cat"))
            Raise()
        """
        if not isinstance(error, Exception):
            return Raise()
        for kind in type(error).__mro__:
            for rule in (kind, *_names(kind)):
                if rule in self.rules:
                    return self.rules[rule]
        return self.otherwise

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, Policy) else NotImplemented

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        rules = ", ".join(f"{_shown(rule)}: {action!r}" for rule, action in self.rules.items())
        return (
            f"{type(self).__name__}({{{rules}}}, otherwise={self.otherwise!r}, max_failures={self.max_failures}, "
            f"max_share={self.max_share})"
        )


@dataclass(frozen=True)
class FunctionPolicy(ErrorPolicy):
    """Calls a function with the failure, which returns an action or a verdict.

    A `Retry` that it returns counts attempts by `failure.attempt`, as one in a rule does. A verdict is used as it is: a
    function that returns `Verdict("retry")` has to check `failure.attempt` itself, or it retries forever.

    Example:
        >>> policy = FunctionPolicy(lambda failure: "skip" if failure.index > 5 else "raise")
        >>> policy.decide(Failure(7, OSError(), "fetch", 1, None), chance=0.5).action
        'skip'
    """

    function: Callable[[Failure], Action | Verdict]

    def decide(self, failure: Failure, chance: float) -> Verdict:
        """Return what happens to the sample.

        Raises:
            BadOption: the function returned something other than an action or a verdict.
        """
        if not isinstance(failure.error, Exception):
            return Verdict("raise")
        answer = self.function(failure)
        if isinstance(answer, Verdict):
            return answer
        action = find_action(answer)
        if action is None:
            raise BadOption(
                f"on_error={self.function!r:.200} returned {answer!r:.200}, which is not an action, for sample "
                f"{failure.index!r:.80}. {ALLOWED}"
            ) from failure.error
        return action.verdict(failure, chance)


def policy_of(on_error: object) -> ErrorPolicy:
    """Return the policy that a loader's `on_error` stands for.

    Args:
        on_error: None, the name of an action, an action, a policy, or a function that gets a `Failure` and returns an
            action.

    Raises:
        BadOption: it is none of these.

    Example:
        >>> policy_of("skip").action_for(KeyError())
        Skip()
        >>> policy_of(None).never_catches
        True
    """
    if on_error is None:
        return Policy()
    if isinstance(on_error, ErrorPolicy):
        return on_error
    action = find_action(on_error)
    if action is not None:
        return Policy(otherwise=action)
    if callable(on_error) and not isinstance(on_error, type):  # a class is probably a typo: Skip for Skip()
        return FunctionPolicy(on_error)
    raise BadOption(
        f"on_error={on_error!r:.200} is not a valid policy for failed samples. For rules by exception class use "
        f"feedline.faults.Policy({{OSError: 'retry'}}). {ALLOWED} Or give a function that returns one."
    )


def exceeded(policy: ErrorPolicy, failures: int, seen: int, *, ended: bool) -> str | None:
    """Return why a policy's budget is exceeded; None if it is not.

    The share counts once 100 samples were seen, or when the epoch has ended.

    Args:
        policy: the policy.
        failures: samples that were lost, as defined by `Fault.lost`.
        seen: all samples, including those that were lost.
        ended: True at the end of an epoch.

    Example:
        >>> exceeded(Policy(max_share=0.1), failures=10, seen=100, ended=False) is None
        True
        >>> print(exceeded(Policy(max_share=0.1), failures=11, seen=100, ended=False))
        11 of 100 samples failed (11.0%), and max_share=0.1 allows 10.0%. ...
    """
    advice = "The loader's `faults` lists the samples and the reasons."
    if policy.max_failures is not None and failures > policy.max_failures:
        return (
            f"{failures} of {max(seen, failures)} samples failed, and max_failures={policy.max_failures} allows no "
            f"more. {advice} If that many may fail, raise the policy's max_failures."
        )
    share = policy.max_share
    if share is None or share >= 1 or not (ended or seen >= SHARE_COUNTS_FROM):
        return None
    seen = max(seen, failures, 1)
    # A quotient, not a product: 29 / 100 is exactly what 0.29 stands for, and 0.29 * 100 is less than 29.
    if failures / seen <= share:
        return None
    return (
        f"{failures} of {seen} samples failed ({failures / seen:.1%}), and max_share={share} allows {share:.1%}. "
        f"{advice} If that many may fail, raise the policy's max_share; 1.0 turns this check off."
    )


def _names(kind: type) -> list[str]:
    """Return the names by which a rule may refer to a class, the longest first."""
    parts = str(kind.__module__).split(".")
    own = dict.fromkeys((kind.__qualname__, kind.__name__))  # they differ for nested classes
    modules = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return [*(f"{module}.{name}" for module in modules for name in own), *own]


# Any: any value from the user.
def _rule_of(rule: Any) -> Rule:
    kind = rule
    if isinstance(rule, str) and all(part.isidentifier() for part in rule.split(".")):
        kind = getattr(builtins, rule.removeprefix("builtins."), None)
        if kind is None:
            return rule
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        raise BadOption(
            f"A rule is for {_shown(rule)}, which is neither a subclass of Exception nor the name of one. Interrupts "
            "and exits are never caught. Give each class a rule of its own."
        )
    return kind.__name__ if isinstance(rule, str) else kind  # IOError is another name of OSError


# object: a rule, or the value that the user gave for one.
def _shown(rule: object) -> str:
    return error_name(rule) if isinstance(rule, type) else f"{rule!r:.200}"


def _count_of(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise BadOption(f"max_failures={value!r:.200} is not a number of samples, 0 or more.")
    return int(value)


def _share_of(value: object) -> float:
    if not is_finite(value) or not 0 <= value <= 1:
        raise BadOption(f"max_share={value!r:.200} is not a share of the samples, from 0 to 1: 0.05 is 5 per cent.")
    return float(value)
