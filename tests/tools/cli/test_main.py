from __future__ import annotations

import sys

import pytest

import feedline
from feedline.tools.cli.main import main
from tests import program_server


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith(f"feedline {feedline.__version__}")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["demo", "--images", "0"],
        ["bench", "--seconds", "nan"],
        ["bench", "--rounds", "many"],
        ["bench", "--seconds", "-1"],
    ],
)
def test_wrong_arguments_print_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert "usage: feedline" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["demo", "bench"])
@pytest.mark.parametrize("package", ["PIL", "torch"])
def test_missing_package_names_the_install_line(
    command: str, package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main([command]) == 1
    captured = capsys.readouterr()
    assert "pip install 'feedline[demo]'" in captured.err
    assert f"feedline {command}" in captured.err
    assert captured.out == ""


def test_a_keyboard_interrupt_exits_without_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("feedline.tools.cli.bench.run", interrupt)
    assert main(["bench"]) == 130
    assert capsys.readouterr().err == ""


def test_the_command_also_runs_as_a_module() -> None:
    done = program_server.run("import runpy\nrunpy.run_module('feedline', run_name='__main__')", "--version")
    assert (done.returncode, done.stdout) == (0, f"feedline {feedline.__version__}\n")
