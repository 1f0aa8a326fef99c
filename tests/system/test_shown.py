from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedline.system.shown import printable


@given(st.text())
def test_printable_text_cannot_control_the_terminal(text: str) -> None:
    shown = printable(text)
    assert all(sign.isprintable() or sign == "\n" for sign in shown)
    assert shown == text or not text.isprintable()
