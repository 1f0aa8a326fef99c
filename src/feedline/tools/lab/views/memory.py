"""The memory of a loader, measured: lists that workers copy little by little, prefetched batches, the arena's slots."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import torch
from torch.utils.data import Dataset

import feedline
from feedline.tools.lab import view as lab
from feedline.tools.measure.load import pss_bytes

_BATCH = 256
_SECONDS = 3.0
_MEBIBYTE = 1 << 20


class Paths(Dataset[tuple[torch.Tensor, int]]):
    """A dataset that looks up a path for each sample, as most datasets of files do."""

    def __init__(self, paths: Sequence[str], sample_bytes: int) -> None:
        self.paths = paths
        self.sample_bytes = sample_bytes

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(self.sample_bytes, dtype=torch.uint8), len(self.paths[index])


def memory(
    workers: Annotated[int, lab.Control("Workers", 1, 4)] = 2,
    thousand_paths: Annotated[int, lab.Control("Paths in the dataset, in thousands", 10, 500, 10)] = 200,
    prefetch: Annotated[int, lab.Control("Prefetch per worker", 1, 8)] = 2,
    sample_kb: Annotated[int, lab.Control("Size of a sample", 1, 50, unit="kB")] = 4,
    pin: Annotated[bool, lab.Control("Pinned memory (needs a GPU)")] = False,
) -> Iterator[lab.Event]:
    """See how much memory workers take, with paths in a list and with feedline.share.

    Forked workers share the memory of the training process until one of them writes to it. Reading a Python object
    changes the reference count that is stored in it, so a list of paths is copied little by little into every worker,
    until each has all of it. share() keeps the strings in a few arrays, which reading does not change.

    Waiting batches take workers x prefetch x batch size, in slots that are reused.
    """
    options = {"pin_memory": True} if pin else {}
    text = lab.loader_code(
        batch_size=_BATCH, num_workers=workers, prefetch_factor=prefetch, **options, shuffle=True, seed=0
    )
    shared = f"paths = feedline.share(paths)  # {thousand_paths},000 strings, stored once for all workers"
    yield lab.code(f"import feedline\n{text}".replace("\n\n", f"\n\n{shared}\ndataset = MyDataset(paths)\n"))
    paths = [f"/data/class_{number % 1000:04d}/image_{number:08d}.jpg" for number in range(thousand_paths * 1000)]
    kinds: dict[str, Sequence[str]] = {"a Python list": paths, "feedline.share": feedline.share(paths)}
    grown: dict[str, lab.Line] = {}
    for name, kept in kinds.items():
        yield lab.doing(f"Measuring the memory of the workers, with the paths in {name}.", _SECONDS)
        loader = lab.loader_of(text, dataset=Paths(kept, sample_kb * 1000))
        grown[name], most_slots = _growth(loader)
        arena_bytes = int(loader.stats()["arena_bytes"])
        loader.close()
        title = "Growth of the program's memory (PSS) since the first batch, while samples are looked up"
        yield lab.lines("growth", title, "thousand samples looked up", "MiB", grown)
    waiting_bytes = workers * prefetch * _BATCH * sample_kb * 1000
    sizes = [("workers x prefetch x batch", waiting_bytes, "compute"), ("arena, measured", arena_bytes, "accent")]
    drawn = [(name, size, f"{size / _MEBIBYTE:.1f} MiB", shade) for name, size, shade in sizes]
    yield lab.bars("prefetch", "Memory for prefetched batches: by the formula, and as measured in the arena", drawn)
    ends = {f"growth with {name}": f"{sizes[-1]:.1f} MiB" for name, (_, sizes) in grown.items()}
    yield lab.figures({**ends, "most slots in use": most_slots})
    yield lab.say("Workers copy a list as they read it, but not what share() made.")


# Any: torch's types.
def _growth(loader: Any) -> tuple[lab.Line, int]:
    """Run a part of an epoch; return MiB by thousands of samples, and the maximum number of slots in use."""
    seen, sizes, slots = list[float](), list[float](), 0
    until, every = time.monotonic() + _SECONDS, max(1, len(loader) // 12)
    for number, _ in enumerate(loader):
        if number % every == 0:
            seen.append(number * _BATCH / 1000)
            sizes.append((pss_bytes(kinds=("Pss_Anon",)) or 0) / _MEBIBYTE)
            slots = max(slots, int(loader.stats()["leased_slots"]))
        if time.monotonic() > until and len(seen) > 2:
            break
    return (seen, [size - sizes[0] for size in sizes]), slots


VIEW = lab.View(memory, presets=[{}, {"workers": 1}, {"workers": 4}, {"prefetch": 8}, {"sample_kb": 50}])
