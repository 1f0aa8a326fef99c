"""Messages are sentences: they end, and they end once."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedline import errors
from feedline.system import failures

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "feedline"
RAISED = {*errors.__all__, "NotARecord", "warn_user"} - {"TooManyOpenFiles"}  # it completes the sentence itself
Part = str | ast.expr


def parts_of(message: ast.expr) -> list[Part]:
    """Return the text of a message, and the values inserted into it."""
    if isinstance(message, ast.JoinedStr):
        return [str(part.value) if isinstance(part, ast.Constant) else part for part in message.values]
    return [message.value] if isinstance(message, ast.Constant) and isinstance(message.value, str) else []


def is_exception_text(part: Part) -> bool:
    """True for the bare text of an exception."""
    if not isinstance(part, ast.FormattedValue) or part.conversion != -1:
        return False
    return isinstance(part.value, ast.Name) and part.value.id in ("exc", "error", "text")


def messages_in(tree: ast.AST) -> Iterator[tuple[int, list[Part]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RAISED and node.args:
            parts = parts_of(node.args[0])
            if parts:
                yield node.lineno, parts


def faults_in(tree: ast.AST) -> list[str]:
    """Return what is wrong with messages: no full stop, or two of them because an exception's text has one already."""
    found = []
    for line, parts in messages_in(tree):
        last = parts[-1]
        if isinstance(last, str):
            if not last.rstrip().endswith((".", "?")):
                found.append(f"{line}: ends in {last[-20:]!r}")
        elif is_exception_text(last):
            found.append(f"{line}: ends with the text of an exception")
        for value, following in itertools.pairwise(parts):
            if is_exception_text(value) and isinstance(following, str) and following.startswith("."):
                found.append(f"{line}: the text of an exception may end with a full stop itself")
    return found


def test_messages_end_with_one_full_stop() -> None:
    found = {str(file): faults_in(ast.parse(file.read_text())) for file in sorted(PACKAGE.rglob("*.py"))}
    assert {file: faults for file, faults in found.items() if faults} == {}


@pytest.mark.parametrize(
    ("exc", "text"),
    [
        (ValueError("odd."), "odd"),
        (ValueError("odd...\n"), "odd"),
        (ValueError(), "ValueError"),
        (KeyError("x"), "'x'"),
    ],
)
def test_words_are_the_text_of_an_exception_without_a_full_stop(exc: Exception, text: str) -> None:
    assert failures.words(exc) == text
