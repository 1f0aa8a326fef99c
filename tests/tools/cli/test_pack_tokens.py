"""`feedline pack --tokens`: texts into token files, from the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from feedline.text import TokenDataset, verify
from feedline.tools.cli.main import main
from tests.own_module import own_module
from tests.tools.cli.packing import fails, run

MODULE = """
texts = [{"text": f"text {number}", "title": f"title {number}"} for number in range(300)]

def encode(text):
    return list(text.encode())

number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return own_module(tmp_path, monkeypatch, MODULE)


def texts(path: str) -> list[str]:
    return [bytes(one.tolist()).decode() for one in TokenDataset(path, 1).documents]


def test_tokens_of_a_python_dataset(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(f"{module}:texts", "--tokens", "a.bin", "--tokenizer", f"{module}:encode")
    output = capsys.readouterr().out
    assert "tokens of 300 documents" in output
    assert "all were read back" in output
    assert "feedline.text.TokenDataset('a.bin', block=2048)" in output
    assert texts("a.bin") == [f"text {number}" for number in range(300)]


def test_options_are_applied(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--field", "title", "--append-eos", "33", "--token-type", "uint16", "--tokens-per-shard", "400")
    run(f"{module}:texts", "--tokens", "out", "--tokenizer", f"{module}.py:encode", *options, "--no-verify")
    output = capsys.readouterr().out
    assert "shards" in output
    assert "not read back" in output
    assert texts("out") == [f"title {number}!" for number in range(300)]
    assert len(os.listdir("out")) > 2
    found = verify("out/tokens-000000.bin")
    assert (found.token_bytes, found.end_token) == (2, 33)
    assert "exists already" in fails(capsys, f"{module}:texts", "--tokens", "out", "--tokenizer", f"{module}:encode")
    run(f"{module}:texts", "--tokens", "out", "--tokenizer", f"{module}:encode", "--overwrite")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("M:texts", "--tokens", "a.bin"), "--tokens needs --tokenizer"),
        (("M:texts", "out.h5", "--tokenizer", "M:encode"), "--tokenizer does not apply to OUT"),
        (("M:texts", "--tokens", "a.bin", "--tokenizer", "M:encode", "--shard-size", "5M"), "--shard-size does not"),
        (("M:texts", "--tokens", "a.bin", "--tokenizer", "M:number"), "which is not a tokenizer"),
        (("M:texts", "--tokens", "a.bin", "--tokenizer", "M:encode", "--append-eos", "auto"), "which one it is"),
    ],
)
def test_options_that_do_not_fit_together_are_rejected(
    module: str, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    message_shown = fails(capsys, *(option.replace("M:", f"{module}:") for option in options))
    assert message in " ".join(message_shown.split())
    assert os.listdir() == [f"{module}.py"] or "__pycache__" in os.listdir()


def test_a_tokenizer_file_is_used_and_recorded(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra text")
    vocabulary = {"<unk>": 0, "<|endoftext|>": 1, "text": 2, **{str(number): 3 + number for number in range(300)}}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save("tokenizer.json")
    options = ["pack", f"{module}:texts", "--tokens", "a.bin", "--append-eos", "auto", "--quiet"]
    assert main([*options, "--tokenizer", "tokenizer.json", "--workers", "2"]) == 0
    documents = [one.tolist() for one in TokenDataset("a.bin", 1).documents]
    assert documents == [[2, 3 + number, 1] for number in range(300)]
    found = verify("a.bin")
    assert (found.token_bytes, found.end_token, found.tokenizer) == (2, 1, "WordLevel")
    Path("tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    assert "is not a tokenizer" in fails(
        capsys, f"{module}:texts", "--tokens", "b.bin", "--tokenizer", "tokenizer.json"
    )
