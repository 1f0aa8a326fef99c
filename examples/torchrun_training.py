"""Train with DistributedDataParallel on tar shards, stop, and continue with another number of ranks.

    torchrun --nproc-per-node=2 examples/torchrun_training.py folder --stop-after 5
    torchrun --nproc-per-node=3 examples/torchrun_training.py folder

Shows: each rank streams its own shards, which differ in size, and `shard="pad"` lets the ranks end together. The
checkpoint has the states of all ranks, because each rank has its own; any number of ranks can continue from it.

Look at: the numbers of the samples that each rank has seen. The second run has those that the first did not reach.
"""

from __future__ import annotations

import argparse
import io
import tarfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import feedline
from feedline.datasets import TarDataset


def write_shards(folder: Path) -> None:
    """Write six shards of different sizes: points of a line."""
    for shard in range(6):
        with tarfile.open(folder / f"shard-{shard}.tar", "w") as file:
            for number in range(shard * 100, shard * 100 + 20 + 7 * shard):
                content = str(number).encode()
                info = tarfile.TarInfo(f"{number:06d}.cls")
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))


def save(file: Path, model: torch.nn.Module, loader: feedline.DataLoader[Any]) -> None:
    """Save a checkpoint: every rank has shards of its own, so the states of all ranks go into it."""
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, loader.state_dict())
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "loader": feedline.merge_states(states)}, file)
    dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stop-after", type=int)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    if dist.get_rank() == 0 and not list(options.folder.glob("*.tar")):
        write_shards(options.folder)
    dist.barrier()

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = TarDataset(str(options.folder / "shard-*.tar"), "cls").stream(shuffle=True, buffer=16, seed=1)
    loader = feedline.DataLoader(dataset, batch_size=4, num_workers=1, shard="pad")  # ranks end together
    checkpoint = options.folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])  # the same on every rank

    seen: list[int] = []
    for step, numbers in enumerate(loader, 1):
        x = numbers.float().unsqueeze(1) / 600
        loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
        optimizer.zero_grad()
        loss.backward()  # waits for all ranks
        optimizer.step()
        seen += numbers.tolist()
        if step == options.stop_after:
            save(checkpoint, model, loader)
            break
    loader.close()
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {sorted(seen)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
