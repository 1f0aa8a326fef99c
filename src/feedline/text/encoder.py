"""One way to call every tokenizer: texts in, arrays of token ids out. The tokenizer that a name means."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.derived.cache.fingerprint import fingerprint
from feedline.datasets.derived.objects import open_named
from feedline.errors import BadOption, SourceError
from feedline.system.failures import words
from feedline.system.optional import require
from feedline.system.options import checked_count
from feedline.text.token_file import token_bytes_of
from feedline.text.writing import checked_tokens

_END_NAMES = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "[SEP]")
"""Common names of the token that ends a text; a `tokenizers.Tokenizer` does not tell which one it uses."""

EndOption = bool | int


@dataclass(frozen=True, eq=False)
class Encoder:
    """Turns texts into tokens; picklable if its tokenizer is."""

    # Any: a tokenizer of any library.
    tokenizer: Any
    dtype: np.dtype[np.integer]
    end_token: int | None
    """Appended to each text, if not None."""

    @classmethod
    def of(cls, tokenizer: object, *, append_eos: EndOption, dtype: object) -> Encoder:
        """Check the options. Raises BadOption: one of them cannot work."""
        if isinstance(tokenizer, (str, bytes)) or not (callable(tokenizer) or hasattr(tokenizer, "encode_batch")):
            raise BadOption(
                f"tokenizer={tokenizer!r:.80} is neither a function of a text nor an object with encode_batch, such as "
                "tokenizers.Tokenizer.from_file('tokenizer.json')."
            )
        size = vocabulary_size(tokenizer)
        if dtype is None:
            dtype = "uint16" if size is not None and size <= 1 << 16 else "uint32"
        if np.dtype(dtype) != np.int64:  # type: ignore[call-overload]  # any value from the user
            token_bytes_of(dtype, "dtype")
        found = cls(tokenizer, np.dtype(dtype), _end_token(tokenizer, append_eos))  # type: ignore[call-overload]
        if found.end_token is not None:
            checked_tokens([found.end_token], found.dtype, f"append_eos={append_eos!r}")
        return found

    def __call__(self, texts: Sequence[str]) -> list[NDArray[np.integer]]:
        """Return the tokens of each text. Raises BadOption: a token id does not fit into the type."""
        ids = self._encoded(list(texts)) if texts else []
        if len(ids) != len(texts):
            raise BadOption(f"The tokenizer returned {len(ids)} lists of tokens for {len(texts)} texts.")
        return [self._checked(text, one) for text, one in zip(texts, ids, strict=True)]

    def _encoded(self, texts: list[str]) -> Sequence[object]:
        tokenizer = self.tokenizer
        if _is_transformers(tokenizer):
            found: Sequence[object] = tokenizer(
                texts, return_attention_mask=False, return_token_type_ids=False, verbose=False
            )["input_ids"]
            return found
        several = _batch_method(tokenizer)
        return [tokenizer(text) for text in texts] if several is None else several(texts)

    # Any: an Encoding, or a list or array of token ids.
    def _checked(self, text: str, ids: Any) -> NDArray[np.integer]:
        tokens = getattr(ids, "ids", ids)  # of an Encoding of Hugging Face's tokenizers
        if self.end_token is not None:
            tokens = [*tokens, self.end_token]
        return checked_tokens(tokens, self.dtype, f"The text {text[:40]!r}")


# Any: a sample of any kind, which has to have the field.
def text_of(sample: Any, field: str | int | None) -> str:
    """Return the text of a sample. Raises BadOption: it has no such field, or the field is not a text."""
    value = sample
    if field is not None and not isinstance(sample, (str, bytes)):
        try:
            value = sample[field]
        except (KeyError, IndexError, TypeError) as exc:
            known = f"; its fields are {', '.join(map(repr, sample))}" if isinstance(sample, dict) else ""
            raise BadOption(f"A sample has no field {field!r}{known}. Name the field with the text: field=.") from exc
    if isinstance(value, bytes):
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError as exc:
            raise BadOption(f"A text is not valid UTF-8: {value[:40]!r}.") from exc
    if not isinstance(value, str):
        raise BadOption(f"A text is expected in field {field!r}, but a sample has {value!r:.80} there.")
    return value


def vocabulary_size(tokenizer: Any) -> int | None:
    """Return how many token ids a tokenizer has; None if it does not tell."""
    if _is_transformers(tokenizer):
        return len(tokenizer)
    if callable(size := getattr(tokenizer, "get_vocab_size", None)):
        return int(size())
    size = getattr(tokenizer, "n_vocab", None)  # of tiktoken
    return size if isinstance(size, int) else None


def tokenizer_name(tokenizer: object) -> str:
    """Return a name for people."""
    name = getattr(tokenizer, "name_or_path", None) or getattr(tokenizer, "name", None)
    if isinstance(name, str) and name:
        return name
    model = getattr(tokenizer, "model", None)
    if model is not None and hasattr(tokenizer, "encode_batch"):
        return type(model).__name__
    return str(getattr(tokenizer, "__qualname__", type(tokenizer).__qualname__))


def tokenizer_hash(tokenizer: object) -> str:
    """Return a digest that differs if the tokenizer differs; "" if none can be computed."""
    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)  # of transformers' fast tokenizers
    if callable(to_str := getattr(inner, "to_str", None)):
        return hashlib.blake2b(to_str().encode(), digest_size=16).hexdigest()
    try:
        return fingerprint(tokenizer).hex()[:32]
    except Exception:  # inspecting a user's objects can raise anything
        return ""


def _is_transformers(tokenizer: object) -> bool:
    return hasattr(tokenizer, "convert_tokens_to_ids") and callable(tokenizer)


def _batch_method(tokenizer: object) -> Callable[[list[str]], Sequence[object]] | None:
    """Return the method for several texts. tiktoken's `encode_ordinary_batch` treats no text as a special token."""
    for name in ("encode_ordinary_batch", "encode_batch_fast", "encode_batch"):
        if callable(method := getattr(tokenizer, name, None)):
            found: Callable[[list[str]], Sequence[object]] = method
            return found
    return None


def _end_token(tokenizer: object, append_eos: EndOption) -> int | None:
    if append_eos is False:
        return None
    if append_eos is not True:
        return checked_count("append_eos", append_eos, 0)
    for name in ("eos_token_id", "eot_token"):  # of transformers, of tiktoken
        if isinstance(found := getattr(tokenizer, name, None), int):
            return found
    if callable(find := getattr(tokenizer, "token_to_id", None)):
        known = [number for name in _END_NAMES if (number := find(name)) is not None]
        if len(known) == 1:
            return int(known[0])
    raise BadOption(
        "append_eos=True appends the tokenizer's end-of-text token, but this tokenizer does not tell which one it is. "
        "Pass the token id: append_eos=50256, for example."
    )


# -- tokenizers by name, for the command line and `write_tokens` ---

_FILE = "tokenizer.json"


def open_tokenizer(name: str) -> object:
    """Return the tokenizer that a name stands for.

    The name is the path of a `tokenizer.json`, or of a folder with one, as Hugging Face's libraries write it;
    `module:object` or `path/to/file.py:object`, for a tokenizer or a function from a text to token ids; or
    the name of a tokenizer on the Hugging Face Hub.

    Raises:
        BadOption: there is no such tokenizer.
        SourceError: the file cannot be read.
        MissingExtra: the package `tokenizers` is not installed.
    """
    path = os.path.join(name, _FILE) if os.path.isdir(name) else name
    if os.path.isfile(path):
        return _from_file(path)
    if name.endswith(".json") or os.path.isdir(name):
        raise SourceError(f"There is no file {path}, which should contain the tokenizer.")
    if ":" in name:
        found = open_named(name)
        if not callable(found) and not hasattr(found, "encode_batch"):
            raise BadOption(
                f"{name} is {found!r:.60}, which is not a tokenizer: name a function from a text to token ids, or an "
                "object with encode_batch."
            )
        return found
    package = require("tokenizers", extra="text", purpose=f"The tokenizer {name!r}")
    try:
        return package.Tokenizer.from_pretrained(name)
    except Exception as exc:  # that package raises Exception itself
        raise BadOption(
            f"{name!r} is neither a file, nor a folder with {_FILE}, nor module:object, and no tokenizer of that name "
            f"could be loaded from the Hugging Face Hub: {words(exc)}."
        ) from exc


def _from_file(path: str) -> object:
    package = require("tokenizers", extra="text", purpose=f"The tokenizer in {path}")
    try:
        return package.Tokenizer.from_file(path)
    except Exception as exc:  # that package raises Exception itself
        raise SourceError(
            f"{path} is not a tokenizer in the format of Hugging Face's libraries: {words(exc)}."
        ) from exc
