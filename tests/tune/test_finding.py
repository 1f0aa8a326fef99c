from __future__ import annotations

from feedline.tune.finding import Finding, Findings


def test_what_is_serious_comes_first_and_then_what_gains_most() -> None:
    small, large = Finding("a", "", "do", gain=1.2), Finding("b", "", "do", gain=3.0)
    serious, other = Finding("c", "", "do", is_serious=True), Finding("d", "", "do")
    assert Findings([other, small, large, serious]) == [serious, large, small, other]


def test_severity() -> None:
    assert Finding("a", "").severity == "fine"
    assert Finding("a", "", "do").severity == "advice"
    told = Finding("a", "seen", "do", "code", 2.0, is_serious=True).as_dict()
    assert told["severity"] == "serious"
    assert (told["evidence"], told["fix"], told["code"], told["gain"]) == ("seen", "do", "code", 2.0)


def test_they_are_printed_as_lines() -> None:
    some = [Finding("a", "Seen.", "Do it."), Finding("b", "seen", "Do it.", gain=2.0)]
    assert str(Findings(some)) == "b: seen. Do it. Gain: 2.0x.\na: Seen. Do it."
    assert str(Findings()) == "Nothing that ought to be changed was found."
