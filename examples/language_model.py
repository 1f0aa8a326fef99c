"""Language model with packing: several documents share a row, and none of them sees another.

    python examples/language_model.py

Shows: documents of different lengths are packed into rows of one length, so that nearly no token of a batch is padding.
feedline has no dataset or collate function that packs sequences: copy `Packed`, below. It packs first-fit: a
document goes into the first row that still has room for it. Each token carries the number of its document and its
position in it. The model attends only within a document and counts positions from each document's beginning.
Which documents share a row is fixed when the dataset is made; the order of the rows is shuffled in every epoch.

Look at: "padding", with one document per row and packed; the loss of each "epoch"; and the "largest difference"
between the scores of a document in a packed row and of the same document alone, which is only rounding.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from feedline import DataLoader

VOCABULARY, ROW, NOTHING = 32, 128, -1


def write_documents(count: int) -> list[np.ndarray]:
    """Return documents that can be learned: each token is the one before plus the document's own step."""
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(3.3, 0.8, count).astype(int).clip(4, ROW)
    steps, starts = rng.integers(1, 4, count), rng.integers(0, VOCABULARY, count)
    return [
        (start + step * np.arange(length)) % VOCABULARY
        for length, step, start in zip(lengths, steps, starts, strict=True)
    ]


class Packed(torch.utils.data.Dataset[dict[str, np.ndarray]]):
    """Rows of `length` tokens, each with as many documents as first-fit puts there, and padding at the end.

    A row has its tokens, the token that follows each (`NOTHING` at the end of a document), the number of each token's
    document in the row (`NOTHING` for padding), and its position in the document.
    """

    def __init__(self, documents: Sequence[np.ndarray], length: int, seed: int = 0) -> None:
        self.documents, self.length = documents, length
        self.rows: list[list[int]] = []
        room: list[int] = []
        for index in np.random.default_rng(seed).permutation(len(documents)).tolist():
            size = len(documents[index])
            row = next((row for row, left in enumerate(room) if left >= size), len(room))
            if row == len(room):
                self.rows.append([])
                room.append(length)
            self.rows[row].append(index)
            room[row] -= size

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        """Return one row."""
        tokens, positions = np.zeros(self.length, np.int64), np.zeros(self.length, np.int64)
        targets, document = np.full(self.length, NOTHING), np.full(self.length, NOTHING)
        begin = 0
        for number, index in enumerate(self.rows[row]):
            text = self.documents[index]
            end = begin + len(text)
            tokens[begin:end], document[begin:end], positions[begin:end] = text, number, np.arange(len(text))
            targets[begin : end - 1] = text[1:]
            begin = end
        return {"tokens": tokens, "targets": targets, "document": document, "positions": positions}


class Model(nn.Module):
    """One layer of attention."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(ROW, width)
        self.project, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.output = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, VOCABULARY))

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, document: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next token, for each token."""
        x = self.tokens(tokens) + self.positions(positions)
        query, key, value = self.project(x).unsqueeze(1).chunk(3, -1)
        # A token sees those of its own document that are not after it: a block for each document on the diagonal.
        same = document[:, :, None] == document[:, None, :]
        mask = same.tril().unsqueeze(1)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask).squeeze(1)
        scores: torch.Tensor = self.output(x + self.mix(seen))
        return scores


def padding_of(dataset: Packed) -> float:
    return 1 - sum(map(len, dataset.documents)) / (len(dataset) * dataset.length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    torch.manual_seed(0)
    documents = write_documents(2000)
    packed = Packed(documents, ROW)
    alone = 1 - sum(map(len, documents)) / (len(documents) * ROW)
    print(f"one document per row: {len(documents)} rows, {alone:.0%} padding")
    print(f"packed: {len(packed)} rows, {padding_of(packed):.1%} padding")

    loader = DataLoader(packed, batch_size=16, shuffle=True, num_workers=2, seed=0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    mean = 0.0
    for epoch in range(options.epochs):
        losses = []
        for batch in loader:
            scores = model(batch["tokens"], batch["positions"], batch["document"])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch["targets"].flatten(), ignore_index=NOTHING)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        mean = float(np.mean(losses))
        print(f"epoch {epoch}: loss {mean:.2f}")

    difference = 0.0
    with torch.no_grad():
        for row in range(8):
            batch = {name: torch.from_numpy(values)[None] for name, values in packed[row].items()}
            scores, begin = model(batch["tokens"], batch["positions"], batch["document"])[0], 0
            for index in packed.rows[row]:
                text = torch.from_numpy(documents[index])[None]
                single = model(text, torch.arange(text.shape[1])[None], torch.zeros_like(text))[0]
                difference = max(difference, (scores[begin : begin + len(single)] - single).abs().max().item())
                begin += len(single)
    print(f"largest difference between a packed document and the same one alone: {difference:.0e}")
    assert sorted(index for row in packed.rows for index in row) == list(range(len(documents)))
    assert padding_of(packed) < 0.05
    assert difference < 1e-3
    assert mean < 1.5


if __name__ == "__main__":
    main()
