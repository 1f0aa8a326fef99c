from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedline.tools.advise.finding import NOT_SURE, Finding, Findings, beyond_noise


def test_serious_findings_come_first_then_those_with_the_largest_gain() -> None:
    small, large = Finding("a", "", "do", gain=1.2), Finding("b", "", "do", gain=3.0)
    serious, other = Finding("c", "", "do", is_serious=True), Finding("d", "", "do")
    assert Findings([other, small, large, serious]) == [serious, large, small, other]


def test_a_finding_for_programs() -> None:
    assert Finding("a", "").severity == "fine"
    assert Finding("a", "", "do").severity == "advice"
    assert Finding("a", "wrong", "do", "code", 2.0, is_serious=True, evidence="seen", margin=3.0).as_dict() == {
        "name": "a", "problem": "wrong", "fix": "do", "code": "code", "gain": 2.0, "is_serious": True,
        "evidence": "seen", "severity": "serious",
    }  # fmt: skip


def test_counted_findings_are_kept_on_a_noisy_machine() -> None:
    counted = Finding("reopened-file", "Wrong.", "Do it.", gain=1.4)
    (kept,) = beyond_noise([counted], 0.9, "noisy")
    assert (kept.name, kept.gain) == ("reopened-file", None), "the gain was timed"
    assert beyond_noise([counted], 0.1, "quiet") == [counted]


@given(margin=st.floats(1.0, 50.0), floor=st.floats(0.0, 5.0))
def test_timed_findings_below_the_noise_are_not_claimed(margin: float, floor: float) -> None:
    timed = Finding("slow-collate", "Wrong.", "Do it.", gain=3.0, margin=margin)
    names = [finding.name for finding in beyond_noise([timed, timed], floor, "A loop differed.")]
    assert names == (["slow-collate"] * 2 if margin >= 1 + floor else [NOT_SURE])
