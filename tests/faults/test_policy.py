"""Rules by exception class, and the budget."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import BadOption, WorkerDied
from feedline.faults import ErrorPolicy, Failure, Policy, Raise, Replace, Retry, Skip, Verdict
from feedline.faults.policy import SHARE_COUNTS_FROM, exceeded, policy_of

ACTIONS = [Raise(), Skip(), Retry(), Replace()]
actions = st.sampled_from(ACTIONS)


Namesake = type("TimeoutError", (Exception,), {})
"""Has the name of the built-in class, but is not related to it."""


class Strange(BaseException):
    pass


TREE: list[type[Exception]] = [
    Exception,
    OSError,
    ConnectionError,
    ConnectionResetError,
    FileNotFoundError,
    LookupError,
    KeyError,
    ValueError,
    UnicodeDecodeError,
    RuntimeError,
    WorkerDied,
]


def raised(kind: type[BaseException]) -> BaseException:
    return kind("utf-8", b"", 0, 1, "bad") if kind is UnicodeDecodeError else kind("what happened")


def failure(error: BaseException, attempt: int = 1, index: Any = 7) -> Failure:
    return Failure(index=index, error=error, stage="fetch", attempt=attempt, worker=0)


# -- rules ---


@given(st.dictionaries(st.sampled_from(TREE), st.tuples(actions, st.booleans())), actions, st.sampled_from(TREE))
def test_the_rule_of_the_most_specific_class_wins(
    chosen: dict[type[Exception], tuple[Any, bool]], otherwise: Any, kind: type[Exception]
) -> None:
    rules: dict[type[BaseException] | str, Any] = {
        rule.__name__ if by_name else rule: action for rule, (action, by_name) in chosen.items()
    }
    fitting = [rule for rule in chosen if issubclass(kind, rule)]
    nearest = min(fitting, key=kind.__mro__.index, default=None)
    expected = otherwise if nearest is None else chosen[nearest][0]
    assert Policy(rules, otherwise=otherwise).action_for(raised(kind)) == expected


@pytest.mark.parametrize("name", ["JSONDecodeError", "json.JSONDecodeError", "json.decoder.JSONDecodeError"])
def test_a_rule_names_a_class_with_or_without_its_module_or_package(name: str) -> None:
    with pytest.raises(json.JSONDecodeError) as refused:
        json.loads("{")
    assert Policy({name: "skip"}).action_for(refused.value) == Skip()
    assert Policy({name: "skip", ValueError: "replace"}).action_for(refused.value) == Skip()


@pytest.mark.parametrize(
    "name", ["son.JSONDecodeError", "decoder.JSONDecodeError", "jso.JSONDecodeError", "DecodeError"]
)
def test_parts_of_a_name_do_not_match(name: str) -> None:
    assert Policy({name: "skip"}).action_for(json.JSONDecodeError("x", "", 0)) == Raise()


def test_a_name_matches_every_class_of_that_name() -> None:
    policy = Policy({"TimeoutError": "skip"})
    assert policy.action_for(Namesake()) == Skip()
    assert policy.action_for(TimeoutError()) == Skip()
    assert Policy({Namesake: "skip"}).action_for(TimeoutError()) == Raise()


def test_classes_take_precedence_over_names_and_long_names_over_short_ones() -> None:
    module = json.JSONDecodeError.__module__
    rules: list[tuple[Any, Any]] = [
        ("JSONDecodeError", Raise()),
        ("json.JSONDecodeError", Skip()),
        (f"{module}.JSONDecodeError", Replace()),
        (json.JSONDecodeError, Retry()),
    ]
    for count, (_, action) in enumerate(rules, 1):
        for order in (rules[:count], rules[:count][::-1]):
            assert Policy(dict(order)).action_for(json.JSONDecodeError("x", "", 0)) == action


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), GeneratorExit(), Strange()])
def test_base_exceptions_are_raised_whatever_the_rules(error: BaseException) -> None:
    policies = [
        Policy(otherwise="skip"),
        Policy({Exception: "skip", "Strange": "skip", f"{__name__}.Strange": "skip"}),
        policy_of(lambda failure: "skip"),
    ]
    assert [policy.decide(failure(error), 0.5).action for policy in policies] == ["raise"] * 3


@pytest.mark.parametrize(
    "rule",
    [KeyboardInterrupt, Strange, "builtins.SystemExit", "object", "print", (OSError,), OSError("x"), None, "", "a..b"],
    ids=repr,
)
def test_rules_for_what_is_no_exception_are_rejected(rule: Any) -> None:
    with pytest.raises(BadOption, match="Exception"):
        Policy({rule: "skip"})


# -- never_catches ---


@pytest.mark.parametrize(
    ("policy", "never_catches"),
    [
        (Policy(), True),
        (Policy({OSError: "raise"}), True),
        (Policy({OSError: "retry"}), False),
        (Policy({OSError: "raise"}, otherwise="skip"), False),
        (policy_of(lambda failure: "raise"), False),
    ],
)
def test_a_policy_knows_whether_it_ever_catches(policy: ErrorPolicy, never_catches: bool) -> None:
    assert policy.never_catches is never_catches


# -- values ---

POLICIES = [
    Policy(),
    Policy(otherwise="skip"),
    Policy({OSError: "skip", "PIL.UnidentifiedImageError": Retry(2, then="replace")}, max_failures=3, max_share=0.25),
    Policy({json.JSONDecodeError: "skip"}, max_failures=0),
]


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_a_policy_is_a_value(policy: Policy) -> None:
    assert [other for other in POLICIES if other == policy] == [policy]
    for again in (pickle.loads(pickle.dumps(policy)), eval(repr(policy))):
        assert again == policy
        assert (again.max_failures, again.max_share) == (policy.max_failures, policy.max_share)


# -- values of on_error ---


@pytest.mark.parametrize(
    ("on_error", "policy"),
    [
        (None, Policy()),
        ("raise", Policy()),
        ("skip", Policy(otherwise=Skip())),
        ("retry", Policy(otherwise=Retry())),
        ("replace", Policy(otherwise=Replace())),
        (Skip(), Policy(otherwise=Skip())),
    ],
)
def test_short_forms_of_on_error(on_error: Any, policy: Policy) -> None:
    assert policy_of(on_error) == policy
    assert (policy_of(on_error).max_failures, policy_of(on_error).max_share) == (None, 0.5)


class Own(ErrorPolicy):
    def decide(self, failure: Failure, chance: float) -> Verdict:
        return Verdict("skip")


def test_a_policy_object_is_used_as_it_is() -> None:
    for policy in (Own(), POLICIES[2]):
        assert policy_of(policy) is policy
    assert (Own().max_failures, Own().max_share, Own().never_catches) == (None, 0.5, False)


@pytest.mark.parametrize("answer", [None, "ignore", True, OSError, Policy()], ids=repr)
def test_other_return_values_of_a_function_are_rejected(answer: Any) -> None:
    policy = policy_of(lambda failure: answer)
    with pytest.raises(BadOption, match="sample 7") as refused:
        policy.decide(failure(OSError("disk")), 0.5)
    assert repr(answer) in str(refused.value)


@pytest.mark.parametrize(
    "on_error", ["ignore", 3, True, Skip, Policy, OSError, {OSError: "skip"}, Verdict("skip")], ids=repr
)
def test_other_values_of_on_error_are_rejected(on_error: Any) -> None:
    with pytest.raises(BadOption, match="on_error="):
        policy_of(on_error)


# -- the budget ---


@pytest.mark.parametrize("value", [-1, 0.5, "3", True, float("nan")])
def test_invalid_max_failures_are_rejected(value: Any) -> None:
    with pytest.raises(BadOption, match=f"max_failures={value!r}"):
        Policy(max_failures=value)


@pytest.mark.parametrize("value", [-0.1, "0.5", True, float("nan"), 5])
def test_invalid_max_shares_are_rejected(value: Any) -> None:
    with pytest.raises(BadOption, match=f"max_share={value!r}"):
        Policy(max_share=value)


def test_max_share_applies_after_a_hundred_samples_or_at_the_end() -> None:
    policy = Policy(max_share=0.1)
    assert exceeded(policy, 99, SHARE_COUNTS_FROM - 1, ended=False) is None
    assert exceeded(policy, 11, SHARE_COUNTS_FROM, ended=False) is not None
    assert exceeded(policy, 10, SHARE_COUNTS_FROM, ended=True) is None
    reason = exceeded(policy, 1, 9, ended=True)
    assert reason is not None
    assert "1 of 9 samples failed (11.1%), and max_share=0.1 allows 10.0%" in reason


@given(st.integers(0, 1000), st.integers(1, 1000))
def test_a_share_written_as_a_decimal_is_exact(thousandths: int, hundreds: int) -> None:
    seen = 1000 * hundreds
    policy = Policy(max_share=float(f"{thousandths}e-3"))
    allowed = thousandths * hundreds
    assert exceeded(policy, allowed, seen, ended=False) is None
    assert (exceeded(policy, allowed + 1, seen, ended=False) is None) == (thousandths == 1000)


@pytest.mark.parametrize("share", [None, 1.0])
def test_the_share_is_unlimited_if_it_is_turned_off(share: float | None) -> None:
    class Free(Own):
        max_share = share

    assert exceeded(Free(), 1000, 1000, ended=True) is None
