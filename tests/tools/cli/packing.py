"""Runs `feedline pack` for tests."""

from __future__ import annotations

from typing import Any

import pytest

from feedline.tools.cli.main import main


def run(*arguments: Any) -> None:
    assert main(["pack", *map(str, arguments), "--workers", "0", "--quiet"]) == 0


def fails(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    assert main(["pack", *map(str, arguments), "--workers", "0", "--quiet"]) == 1
    return capsys.readouterr().err
