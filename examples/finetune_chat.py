"""Fine-tuning on chats: several chats share a row, and only what the assistant says has loss.

    python examples/finetune_chat.py

Shows: `chat_document` joins the turns of a chat and marks the tokens of the assistant. `.pack(labels=True)` puts whole
chats into rows, with a label of -100, which the loss ignores, for every other token. Chats are not cut: with
`too_long="raise"`, one that does not fit is an error. Attention stays within a chat (`attention_mask`), so a chat in a
packed row gets the same loss as in a row of its own. The script checks this for every token at the end.

Look at: the number of "tokens with loss", how full the rows are with one chat each ("alone") and "packed", the loss of
each "epoch", an "answer" of the model, and the "largest difference" between packed and alone, which is only rounding.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad, scaled_dot_product_attention

import feedline
from feedline.pipes import Pipe
from feedline.text.packing import attention_mask, chat_document, document_lengths

Chat = list[tuple[str, list[int]]]

DIGITS, USER, ASSISTANT, END = 10, 10, 11, 12  # tokens 0 to 9 are digits
VOCABULARY, LENGTH = 13, 64


def make_chats(count: int, seed: int) -> list[Chat]:
    """Return chats of one to five questions. The user says some digits, and the assistant repeats them plus one."""
    rng = np.random.default_rng(seed)
    chats = []
    for questions in rng.integers(1, 6, count):
        chat: Chat = []
        for size in rng.integers(1, 5, questions):
            digits = rng.integers(0, DIGITS, size)
            chat.append(("user", [USER, *digits.tolist()]))
            # The mark of the role belongs to the prompt: the program writes it, not the model.
            chat.append(("mark", [ASSISTANT]))
            chat.append(("assistant", ((digits + 1) % DIGITS).tolist()))
        chats.append(chat)
    return chats


def to_document(chat: Chat) -> dict[str, np.ndarray]:
    """Return the tokens of a chat, and which of them have loss: what the assistant says, and that it ends."""
    return chat_document(chat, roles=("assistant",), eos=END)


class Model(nn.Module):
    """Two layers of attention."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.project = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.forwards = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 96), nn.GELU(), nn.Linear(96, width)) for _ in range(2)
        )
        self.output = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor, positions: Tensor, segment_ids: Tensor) -> Tensor:
        """Return the scores of the next token, for each token."""
        mask = attention_mask(segment_ids)
        x: Tensor = self.tokens(tokens) + self.positions(positions)
        for project, forward in zip(self.project, self.forwards, strict=True):
            query, key, value = project(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
            x = x + scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(-2)
            x = x + forward(x)
        scores: Tensor = self.output(x)
        return scores

    def losses(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the loss of each token; 0 where there is none."""
        scores = self(batch["tokens"], batch["positions"], batch["segment_ids"])
        # Labels are not shifted: the scores at place i predict the label at i + 1.
        found = cross_entropy(scores[:, :-1].transpose(1, 2), batch["labels"][:, 1:], reduction="none")
        return pad(found, (1, 0))

    @torch.no_grad()
    def answer(self, digits: list[int]) -> list[int]:
        """Return what the model says, token by token."""
        said = [USER, *digits, ASSISTANT]
        while said[-1] != END and len(said) < LENGTH:
            tokens = torch.tensor([said])
            scores = self(tokens, torch.arange(len(said))[None], torch.ones_like(tokens))
            said.append(int(scores[0, -1].argmax()))
        return said[len(digits) + 2 : -1]


def losses_of_chats(model: Model, rows: Pipe) -> dict[tuple[int, ...], Tensor]:
    """Return the losses of the tokens of each chat. The chats of packed rows come in another order."""
    batch = next(iter(feedline.DataLoader(rows, batch_size=len(list(rows)))))
    with torch.no_grad():
        losses = model.losses(batch)
    found = {}
    for tokens, segments, row in zip(batch["tokens"], batch["segment_ids"], losses, strict=True):
        for number in range(1, int(segments.max()) + 1):
            found[tuple(tokens[segments == number].tolist())] = row[segments == number]
    return found


def largest_difference(model: Model, chats: list[Chat]) -> float:
    """Return the largest difference of a token's loss between packed rows and rows of one chat."""
    documents = feedline.pipe(chats).map(to_document)
    packed = losses_of_chats(model, documents.pack(LENGTH, labels=True))
    alone = losses_of_chats(model, documents.pack(LENGTH, labels=True, window=1))  # plans one document at a time
    assert packed.keys() == alone.keys()
    return max(float((packed[chat] - alone[chat]).abs().max()) for chat in packed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    chats = make_chats(2000, seed=0)
    documents = feedline.pipe(chats).map(to_document)
    lengths = document_lengths(documents)
    rows = documents.shuffle(seed=1).pack(LENGTH, labels=True, too_long="raise")
    loader = feedline.DataLoader(rows, batch_size=16, num_workers=2, seed=0)

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    mean = 0.0
    for epoch in range(options.epochs):
        total, with_loss, tokens = 0.0, 0, 0
        for batch in loader:
            has_loss = batch["labels"] != -100
            assert torch.equal(has_loss, batch["loss_mask"])  # what the assistant said, and nothing else
            # A batch may have fewer answers than another: divide by its tokens with loss, not by its places.
            loss = model.losses(batch).sum() / has_loss.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * int(has_loss.sum())
            with_loss += int(has_loss.sum())
            tokens += int((batch["segment_ids"] > 0).sum())
        if epoch == 0:
            print(f"{with_loss} of {tokens} tokens are tokens with loss")
            packed = loader.stats().epoch.packed
            print(f"rows of {LENGTH}: {lengths.mean() / LENGTH:.0%} full with each chat alone, {packed:.1%} packed")
        mean = total / with_loss
        print(f"epoch {epoch}: loss {mean:.2f}")

    print(f"question 1 2 3, answer {' '.join(map(str, model.answer([1, 2, 3])))}")
    difference = largest_difference(model, make_chats(100, seed=1))
    print(f"largest difference between packed and alone: {difference:.0e}")
    assert packed is not None
    assert packed > 0.95
    assert difference < 1e-3
    assert mean < 0.5


if __name__ == "__main__":
    main()
