"""`tokenize`: every kind of tokenizer and dataset, resumed anywhere."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.abc import ShardedSource
from feedline.collate import pad
from feedline.errors import BadOption
from feedline.text import tokenize
from tests.pipes.streams import Counter, Counting, Plain

TEXTS = [f"text {number}" for number in range(23)]


def encode(text: str) -> list[int]:
    return list(text.encode())


class Encoding:
    def __init__(self, ids: list[int]) -> None:
        self.ids = ids


class HuggingFace:
    """Behaves like `tokenizers.Tokenizer`."""

    def __init__(self, size: int = 300) -> None:
        self.size = size
        self.calls: list[int] = []

    def encode_batch(self, texts: list[str]) -> list[Encoding]:
        self.calls.append(len(texts))
        return [Encoding(encode(text)) for text in texts]

    def get_vocab_size(self) -> int:
        return self.size

    def token_to_id(self, name: str) -> int | None:
        return 257 if name == "</s>" else None


class Transformers:
    """Behaves like a fast tokenizer of transformers."""

    eos_token_id = 299
    name_or_path = "gpt-9"

    def __call__(self, texts: list[str], **options: bool) -> dict[str, list[list[int]]]:
        assert isinstance(texts, list)
        return {"input_ids": [encode(text) for text in texts]}

    def convert_tokens_to_ids(self, tokens: str) -> int:
        return 0

    def __len__(self) -> int:
        return 70_000


class Tiktoken:
    n_vocab = 300
    eot_token = 256

    def encode_ordinary_batch(self, texts: list[str]) -> list[list[int]]:
        return [encode(text) for text in texts]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        raise ValueError("special tokens")


@pytest.mark.parametrize(
    ("tokenizer", "dtype", "end"),
    [
        (encode, np.uint32, None),
        (lambda text: np.frombuffer(text.encode(), np.uint8), np.uint32, None),
        (HuggingFace(), np.uint16, 257),
        (HuggingFace(65_536), np.uint16, 257),
        (HuggingFace(65_537), np.uint32, 257),
        (Transformers(), np.uint32, 299),
        (Tiktoken(), np.uint16, 256),
    ],
)
def test_every_tokenizer(tokenizer: Any, dtype: type, end: int | None) -> None:
    dataset = tokenize(TEXTS, tokenizer)
    assert [one.tolist() for one in dataset] == [encode(text) for text in TEXTS]
    assert dataset[0].dtype == dtype
    if end is None:
        with pytest.raises(BadOption, match="append_eos=50256"):
            tokenize(TEXTS, tokenizer, append_eos=True)
    else:
        assert tokenize(TEXTS, tokenizer, append_eos=True)[3].tolist() == [*encode(TEXTS[3]), end]
    assert tokenize(TEXTS, tokenizer, append_eos=9, dtype="int64")[0].tolist()[-1] == 9


def test_a_batch_takes_one_call() -> None:
    tokenizer = HuggingFace()
    loader = feedline.Loader(tokenize([{"text": text} for text in TEXTS], tokenizer), 8, collate_fn=pad())
    assert [len(tokens) for tokens, _ in loader] == [8, 8, 7]
    assert tokenizer.calls == [8, 8, 7]


@pytest.mark.parametrize(
    ("sample", "field"),
    [("a", "text"), ({"body": "a"}, "body"), (("a", 1), 0), (b"a", "text"), ({"text": b"a"}, "text"), ("a", None)],
)
def test_fields(sample: object, field: Any) -> None:
    assert tokenize([sample], encode, field=field)[0].tolist() == [97]


@pytest.mark.parametrize(
    ("sample", "field", "named"),
    [
        ({"body": "a"}, "text", "'text'.*'body'"),
        (("a",), 1, "field 1"),
        ({"text": None}, "text", "None"),
        (5, "text", "'text'"),
        ({"text": "a"}, None, "text"),
    ],
)
def test_samples_without_a_text(sample: object, field: Any, named: str) -> None:
    with pytest.raises(BadOption, match=named):
        tokenize([sample], encode, field=field)[0]


@pytest.mark.parametrize(
    ("result", "named"),
    [([70_000], "70000.*uint16.*dtype='uint32'"), ("a", "token ids"), ([0.5], "ids"), (None, "ids")],
)
def test_rejects_bad_results_of_a_tokenizer(result: Any, named: str) -> None:
    with pytest.raises(BadOption, match=named):
        tokenize(["a"], lambda text: result, dtype="uint16")[0]


@pytest.mark.parametrize(
    "options",
    [
        {"append_eos": -1},
        {"append_eos": "</s>"},
        {"append_eos": 70_000, "dtype": "uint16"},
        {"dtype": "float32"},
        {"dtype": "int8"},
    ],
)
def test_bad_options_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match=f"{next(iter(options))}="):
        tokenize(TEXTS, encode, **options)
    with pytest.raises(BadOption, match="encode_batch"):
        tokenize(TEXTS, "gpt2")


class Sharded(ShardedSource):
    number, count = 0, 1

    def set_worker(self, number: int, count: int) -> None:
        self.number, self.count = number, count

    def __iter__(self) -> Iterator[str]:
        return Counter(TEXTS[self.number :: self.count])


def texts(dataset: Any) -> list[str]:
    return [bytes(one.tolist()).decode() for one in dataset]


def through(dataset: Any, **options: Any) -> list[str]:
    return [one for batch in feedline.Loader(dataset, 4, collate_fn=texts, **options) for one in batch]


def test_streams() -> None:
    for source in (Plain(TEXTS), Counting(TEXTS), Sharded()):
        stream = tokenize(source, encode)
        assert texts(stream) == texts(stream) == through(stream) == TEXTS
        assert sorted(through(stream, workers=2, engine="thread")) == sorted(TEXTS)
        assert texts(pickle.loads(pickle.dumps(stream))) == TEXTS


def test_a_worker_tokenizes_only_its_own_texts() -> None:
    tokenizer = HuggingFace()
    stream = tokenize(Plain(TEXTS), tokenizer)
    assert through(stream, workers=2, engine="thread") == TEXTS
    assert sum(tokenizer.calls) == 23
    failing = tokenize(Counting(TEXTS, 3, 22), tokenizer)
    assert through(failing, on_error="skip") == [text for text in TEXTS if text not in ("text 3", "text 22")]
