"""Draw the figures of the case study about many GPUs, from what feedline's samplers really deliver.

PYTHONPATH=src python docs/learn/figures/case_many_gpus.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from svg import COLOURS, INK, Figure

from feedline import DataLoader, samplers

ASSETS = Path(__file__).resolve().parents[2] / "assets" / "learn"
CELL = 24


def share(count: int, rank: int, world: int, tail: Any, state: Any = None, steps: int | None = None) -> tuple[Any, Any]:
    """Return the batches of one rank, and its state after them."""
    sampler = samplers.DistributedSampler(range(count), world, rank, shuffle=False, tail=tail)
    loader = DataLoader(range(count), 2, sampler=sampler)
    if state is not None:
        loader.load_state_dict(state)
    batches = []
    for step, batch in enumerate(loader, 1):
        batches.append(batch.tolist())
        if step == steps:
            break
    return batches, loader.state_dict()


def draw_rank(figure: Figure, x: float, y: float, batches: Any, colour: str, seen: set[int]) -> float:
    """Draw the batches of a rank from left to right; samples that came before are drawn in red."""
    for batch in batches:
        for index in batch:
            again = index in seen
            seen.add(index)
            figure.rect(x, y, CELL - 2, CELL - 2, COLOURS[3] if again else colour, opacity=0.9 if again else 0.22)
            figure.text(
                x + CELL / 2 - 1, y + 16, str(index), anchor="middle", size=12, colour="#ffffff" if again else INK
            )
            x += CELL
        x += 8
    return x


def tails() -> None:
    """Draw what four ranks get of 21 samples."""
    figure = Figure("What four ranks get of 21 samples, batches of two", height=470)
    figure.text(
        24,
        30,
        "21 samples, 4 ranks, batches of 2. Red: a sample that comes a second time.",
        bold=True,
    )
    y = 62
    for tail, words in (
        ("pad", "all ranks get 6; three samples count twice"),
        ("drop", "all ranks get 5; one sample does not come"),
        ("exact", "every sample once; last batches differ"),
    ):
        figure.text(24, y, f'tail="{tail}"', bold=True)
        figure.text(24, y + 20, words, size=12)
        parts = [share(21, rank, 4, tail)[0] for rank in range(4)]
        seen: set[int] = set()
        order = sorted((step, rank) for rank, part in enumerate(parts) for step in range(len(part)))
        firsts: dict[tuple[int, int, int], bool] = {}
        for step, rank in order:
            for place, index in enumerate(parts[rank][step]):
                firsts[rank, step, place] = index in seen
                seen.add(index)
        for rank, part in enumerate(parts):
            x, top = 380.0, y - 16 + rank * (CELL + 4)
            figure.text(370, top + 16, f"rank {rank}", anchor="end", size=12)
            for step, batch in enumerate(part):
                for place, index in enumerate(batch):
                    again = firsts[rank, step, place]
                    colour = COLOURS[3] if again else COLOURS[rank if rank < 3 else 4]
                    figure.rect(x, top, CELL - 2, CELL - 2, colour, opacity=0.9 if again else 0.22)
                    words_colour = "#ffffff" if again else INK
                    figure.text(x + CELL / 2 - 1, top + 16, str(index), anchor="middle", size=12, colour=words_colour)
                    x += CELL
                x += 8
        y += 138
    figure.save(ASSETS / "case-many-gpus-tails.svg")


def resume() -> None:
    """Draw how three ranks go on where four have stopped."""
    figure = Figure("Three ranks go on where four ranks stopped", height=250)
    figure.text(24, 30, "24 samples: 4 ranks take one step and stop, 3 ranks share what is left", bold=True)
    seen: set[int] = set()
    state = None
    for rank in range(4):
        batches, state = share(24, rank, 4, "exact", steps=1)
        top = 60 + rank * (CELL + 8)
        figure.text(84, top + 16, f"rank {rank}", anchor="end", size=12)
        draw_rank(figure, 94, top, batches, COLOURS[rank if rank < 3 else 4], seen)
    figure.line([(200, 50), (200, 190)], INK, dashes="5 4")
    figure.text(200, 212, "checkpoint", anchor="middle", size=12)
    for rank in range(3):
        batches, _ = share(24, rank, 3, "exact", state)
        top = 60 + rank * (CELL + 8)
        figure.text(284, top + 16, f"rank {rank}", anchor="end", size=12)
        draw_rank(figure, 294, top, batches, COLOURS[rank], seen)
    figure.text(
        24,
        236,
        "Every sample from 0 to 23 is there once: the state says how far the common order was consumed.",
        size=12,
    )
    figure.save(ASSETS / "case-many-gpus-resume.svg")


if __name__ == "__main__":
    tails()
    resume()
