"""Opening tokenizers by name; the tests of the command cover the rest."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from feedline.errors import BadOption, MissingExtra
from feedline.text.encoder import open_tokenizer


def test_the_error_names_the_extra_that_reads_tokenizer_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    (tmp_path / "tokenizer.json").write_text("{}")
    for name in (str(tmp_path), str(tmp_path / "tokenizer.json"), "gpt2"):
        with pytest.raises(MissingExtra, match=r"feedline\[text\]"):
            open_tokenizer(name)


def test_a_name_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_pretrained(name: str) -> str:
        if name != "gpt2":
            raise Exception(f"no {name}")
        return "the tokenizer"

    package = SimpleNamespace(Tokenizer=SimpleNamespace(from_pretrained=from_pretrained))
    monkeypatch.setitem(sys.modules, "tokenizers", package)
    assert open_tokenizer("gpt2") == "the tokenizer"
    with pytest.raises(BadOption, match=r"neither a file.*no gpt3"):
        open_tokenizer("gpt3")
