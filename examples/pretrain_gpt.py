"""Pretraining: a corpus becomes a token file, its documents are packed, and a killed run resumes with the same losses.

    python examples/pretrain_gpt.py

Shows: every step from texts to a trained model. The script writes JSON lines (`.jsonl.gz`), tokenizes them once into a
token file, and packs the documents of that file into rows. Two worker processes make the rows. A small GPT trains on
them; its attention stays within a document. A checkpoint has the model, the optimizer, the loader's state and the state
of torch's generator, which dropout uses.

The script then starts itself as a second process, kills it with SIGKILL in the middle of training, and continues from
the last checkpoint. The losses after that equal those of an uninterrupted run, bit for bit.

Look at: how full the rows are ("of each row"), the step at which the second process was "killed", the step at which
training "resumes", the "loss" at the end, and "the same losses".
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import feedline
from feedline.datasets import JSONLines
from feedline.text import TokenDataset, write_tokens
from feedline.text.packing import attention_mask

END = 0  # the token that ends a document; texts have no such byte
VOCABULARY, LENGTH, ROWS = 128, 128, 8
STEPS, SAVE_EVERY, KILL_AT = 40, 5, 12


def write_corpus(path: Path, documents: int = 2000) -> None:
    """Write texts of different lengths that can be learned: each counts cats or dogs, in steps of one or two."""
    rng = np.random.default_rng(0)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for size in rng.lognormal(1.2, 0.8, documents).astype(int).clip(1, 30).tolist():
            animal, step = ("cats", "dogs")[rng.integers(2)], int(rng.integers(1, 3))
            text = " ".join(f"{step * number} {animal}," for number in range(1, size + 1))
            file.write(json.dumps({"text": text}) + "\n")


def to_tokens(text: str) -> list[int]:
    """A tokenizer is any function of a text. This one has a token for each byte."""
    return list(text.encode("ascii"))


class Layer(nn.Module):
    """Attention and a feed-forward network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_forward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.forward_part = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the input, with what attention and the feed-forward network add."""
        rows, length, _ = x.shape
        parts = self.project(self.before_attention(x)).view(rows, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.drop(self.mix(seen.transpose(1, 2).reshape(rows, length, -1)))
        added: Tensor = x + self.drop(self.forward_part(self.before_forward(x)))
        return added


class GPT(nn.Module):
    """Two layers. Positions begin at 0 in each document."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList(Layer(width, heads=4) for _ in range(2))
        self.output = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCABULARY))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the mean loss of a batch of packed rows."""
        mask = attention_mask(batch["segment_ids"])  # a token sees those before it, in its own document only
        x = self.tokens(batch["tokens"]) + self.positions(batch["positions"])
        for layer in self.layers:
            x = layer(x, mask)
        # Labels are not shifted: the output at position i predicts the label at i + 1.
        return cross_entropy(self.output(x)[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def train(tokens: Path, checkpoint: Path | None, steps: int, *, speak: bool = False) -> dict[int, float]:
    """Train up to a number of steps, from the checkpoint on if there is one; return the loss of each step."""
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    documents = TokenDataset(tokens).documents
    rows = feedline.pipe(documents).shuffle(seed=1).repeat().pack(LENGTH, labels=True)
    loader = feedline.DataLoader(rows, ROWS, num_workers=2, seed=0)
    first = 0
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        torch.set_rng_state(saved["generator"])
        first = saved["step"]
        print(f"resumes after step {first}")

    losses: dict[int, float] = {}
    for step, batch in zip(range(first + 1, steps + 1), loader, strict=False):
        loss = model(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[step] = loss.item()
        if checkpoint is not None and step % SAVE_EVERY == 0:
            state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"loader": loader.state_dict(), "generator": torch.get_rng_state()}
            new = checkpoint.with_suffix(".new")
            torch.save(state, new)
            os.replace(new, checkpoint)  # a run that is killed here leaves the old checkpoint
        if speak:
            print(step, flush=True)
    packed = loader.stats().epoch.packed
    if packed is not None and not speak:
        print(f"step {step}: loss {losses[step]:.2f}; {packed:.1%} of each row are tokens")
    return losses


def killed_in_the_middle(tokens: Path, checkpoint: Path) -> None:
    """Train in another process, and kill it without warning when it has reached a step."""
    command = [sys.executable, __file__, "--tokens", str(tokens), "--checkpoint", str(checkpoint)]
    with subprocess.Popen([*command, "--steps", "1000"], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) == KILL_AT:
                os.kill(child.pid, signal.SIGKILL)
                break
    assert child.returncode == -signal.SIGKILL
    print(f"another process was killed at step {KILL_AT}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=Path, help="train on this token file only")
    parser.add_argument("--checkpoint", type=Path, help="the file to save to, and to resume from")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    torch.set_num_threads(1)  # sums are computed in the same order in every process
    if options.tokens is not None:
        train(options.tokens, options.checkpoint, options.steps, speak=True)
        return

    with tempfile.TemporaryDirectory() as name:
        corpus, tokens, checkpoint = (Path(name, file) for file in ("corpus.jsonl.gz", "tokens.bin", "checkpoint.pt"))
        write_corpus(corpus)
        texts = JSONLines(corpus, "text", cache=False)
        written = write_tokens(texts, tokens, to_tokens, append_eos=END, dtype="uint16", workers=2)
        print(f"{written.document_count} documents, {written.token_count} tokens")

        whole = train(tokens, None, options.steps)
        killed_in_the_middle(tokens, checkpoint)
        rest = train(tokens, checkpoint, options.steps)
    same = all(whole[step] == loss for step, loss in rest.items())
    print(f"the same losses at steps {min(rest)} to {max(rest)} as without interruption: {same}")
    assert same
    assert len(rest) < len(whole)
    assert whole[options.steps] < 1.5 < 4 < whole[1]


if __name__ == "__main__":
    main()
