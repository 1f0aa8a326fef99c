"""Rules by exception class, and the budget."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import BadOption, WorkerDied
from feedline.faults import ErrorPolicy, Failure, Policy, Raise, Replace, Retry, Skip, Verdict
from feedline.faults.policy import SHARE_COUNTS_FROM, exceeded, policy_of

pytestmark = pytest.mark.sample(5)

ACTIONS = [Raise(), Skip(), Retry(), Replace()]
actions = st.sampled_from(ACTIONS)


Namesake = type("TimeoutError", (Exception,), {})
"""Has the name of the built-in class, but is not related to it."""


class Outer:
    class InnerError(ValueError):
        pass


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


def test_rules_decide_by_exception_class() -> None:
    policy = Policy({OSError: Retry(1, then="skip"), "KeyError": "replace"})
    assert policy.decide(failure(ConnectionError()), 0.5) == Verdict("retry", wait_s=0.1)
    assert policy.decide(failure(ConnectionError(), attempt=2), 0.5) == Verdict("skip")
    assert policy.decide(failure(KeyError()), 0.5).action == "replace"
    assert policy.decide(failure(ValueError()), 0.5) == Verdict("raise")


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


def test_names_match_base_classes() -> None:
    assert Policy({"OSError": "skip"}).action_for(FileNotFoundError()) == Skip()
    assert Policy({"builtins.OSError": "skip"}).action_for(FileNotFoundError()) == Skip()


def test_nested_classes_match_by_short_and_qualified_name() -> None:
    for name in ("InnerError", "Outer.InnerError", f"{__name__}.Outer.InnerError", f"{__name__}.InnerError"):
        assert Policy({name: "skip"}).action_for(Outer.InnerError()) == Skip()


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


@pytest.mark.parametrize("name", ["IOError", "builtins.EnvironmentError"])
def test_other_names_of_a_built_in_class_are_understood(name: str) -> None:
    assert Policy({name: "skip"}).action_for(FileNotFoundError()) == Skip()


@pytest.mark.parametrize(
    "rule",
    [KeyboardInterrupt, Strange, "builtins.SystemExit", "object", "print", (OSError,), OSError("x"), None, "", "a..b"],
    ids=repr,
)
def test_rules_for_what_is_no_exception_are_rejected(rule: Any) -> None:
    with pytest.raises(BadOption, match="Exception"):
        Policy({rule: "skip"})


def test_the_error_about_an_invalid_action_names_its_rule() -> None:
    with pytest.raises(BadOption, match=r"json.decoder.JSONDecodeError: 'ignore'"):
        Policy({json.JSONDecodeError: "ignore"})  # type: ignore[dict-item]  # that is the point
    with pytest.raises(BadOption, match=r"otherwise: 'ignore'"):
        Policy(otherwise="ignore")  # type: ignore[arg-type]  # that is the point


def test_rules_must_be_a_mapping() -> None:
    with pytest.raises(BadOption, match="rules="):
        Policy("skip")  # type: ignore[arg-type]  # that is the point


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


def test_the_order_of_rules_does_not_matter() -> None:
    assert Policy({OSError: "skip", KeyError: "raise"}) == Policy({KeyError: Raise(), OSError: Skip()})
    assert Policy() != "raise"


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


def by_index(failure: Failure) -> Any:
    answers = {1: "skip", 2: Retry(1, then="replace"), 3: Verdict("skip"), 4: Replace(), 5: "raise"}
    return answers.get(failure.index)


def test_a_function_returns_an_action_or_a_verdict() -> None:
    policy = policy_of(by_index)
    assert policy.decide(failure(OSError(), index=1), 0.5) == Verdict("skip")
    assert policy.decide(failure(OSError(), index=3), 0.5) == Verdict("skip")
    assert policy.decide(failure(OSError(), index=4), 0.5).action == "replace"
    assert policy.decide(failure(OSError(), index=5), 0.5).action == "raise"
    assert (policy.max_failures, policy.max_share) == (None, 0.5)


def test_a_retry_returned_by_a_function_counts_attempts() -> None:
    policy = policy_of(by_index)
    verdicts = [policy.decide(failure(OSError(), attempt, index=2), 0.5) for attempt in (1, 2)]
    assert [verdict.action for verdict in verdicts] == ["retry", "replace"]
    assert verdicts[0].wait_s == 0.1


@pytest.mark.parametrize("answer", [None, "ignore", True, OSError, Policy()], ids=repr)
def test_other_return_values_of_a_function_are_rejected(answer: Any) -> None:
    policy = policy_of(lambda failure: answer)
    with pytest.raises(BadOption, match="sample 7") as refused:
        policy.decide(failure(OSError("disk")), 0.5)
    assert repr(answer) in str(refused.value)


def test_a_function_policy_can_be_pickled_and_its_errors_are_raised_unchanged() -> None:
    policy = policy_of(by_index)
    assert pickle.loads(pickle.dumps(policy)) == policy
    with pytest.raises(TypeError, match="unhashable"):
        policy.decide(failure(OSError(), index=[1]), 0.5)


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


@pytest.mark.parametrize(("value", "kept"), [(None, 0.5), (0, 0.0), (1, 1.0), (np.float32(0.25), 0.25)])
def test_valid_max_shares_are_accepted(value: Any, kept: float) -> None:
    assert Policy(max_share=value).max_share == kept


def test_max_failures_applies_at_once() -> None:
    policy = Policy(max_failures=2)
    assert exceeded(policy, 2, 3, ended=False) is None
    reason = exceeded(policy, 3, 3, ended=False)
    assert reason is not None
    assert "3 of 3 samples failed, and max_failures=2 allows no more" in reason
    assert exceeded(Policy(max_failures=0), 1, 10**6, ended=False) is not None


def test_max_share_applies_after_a_hundred_samples_or_at_the_end() -> None:
    policy = Policy(max_share=0.1)
    assert exceeded(policy, 99, SHARE_COUNTS_FROM - 1, ended=False) is None
    assert exceeded(policy, 11, SHARE_COUNTS_FROM, ended=False) is not None
    assert exceeded(policy, 10, SHARE_COUNTS_FROM, ended=True) is None
    reason = exceeded(policy, 1, 9, ended=True)
    assert reason is not None
    assert "1 of 9 samples failed (11.1%), and max_share=0.1 allows 10.0%" in reason


def test_half_of_the_samples_may_fail_by_default() -> None:
    assert exceeded(Policy(), 50, 100, ended=True) is None
    assert exceeded(Policy(), 51, 100, ended=True) is not None


@pytest.mark.parametrize("share", [None, 1.0])
def test_the_share_is_unlimited_if_it_is_turned_off(share: float | None) -> None:
    class Free(Own):
        max_share = share

    assert exceeded(Free(), 1000, 1000, ended=True) is None


def test_an_epoch_without_samples_does_not_exceed_the_budget() -> None:
    assert exceeded(Policy(max_failures=0, max_share=0), 0, 0, ended=True) is None


@given(st.integers(0, 1000), st.integers(1, 1000))
def test_a_share_written_as_a_decimal_is_exact(thousandths: int, hundreds: int) -> None:
    seen = 1000 * hundreds
    policy = Policy(max_share=float(f"{thousandths}e-3"))
    allowed = thousandths * hundreds
    assert exceeded(policy, allowed, seen, ended=False) is None
    assert (exceeded(policy, allowed + 1, seen, ended=False) is None) == (thousandths == 1000)
