"""DDP with torchrun and resume: two ranks stop in the middle of an epoch and go on with exactly the samples left.

    python examples/ddp_resume.py

It runs these two commands, and then checks which samples the model was trained on:

    torchrun --standalone --nproc-per-node 2 examples/ddp_resume.py --folder run --stop-after 8
    torchrun --standalone --nproc-per-node 2 examples/ddp_resume.py --folder run

Shows: feedline's `DistributedSampler` splits one order over the ranks. The model, the optimizer and the loader's state
go into one checkpoint. All ranks go through one order, so the state of rank 0 is enough for all of them. No `set_epoch`
is needed: the loader counts the epochs. examples/torchrun_training.py does the same with shards that each rank reads on
its own, and continues with another number of ranks.

Look at: where the first run "stopped", where the second "goes on", the loss of each "epoch", and "each sample once".
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from feedline import DataLoader
from feedline.samplers import DistributedSampler

SAMPLES, BATCH, EPOCHS, STOP_AFTER = 200, 8, 2, 8


class Line(torch.utils.data.Dataset[Any]):
    """Points of a line, and their numbers."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Return x, y and the number of the sample."""
        x = torch.tensor([index / SAMPLES])
        return x, 3 * x + 1, index


def train(folder: Path, stop_after: int | None) -> None:
    """Train on this rank, from the checkpoint on if there is one."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Line(), BATCH, sampler=DistributedSampler(Line(), seed=0), num_workers=1)
    step, file = 0, folder / "checkpoint.pt"
    if file.exists():
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
        if rank == 0:
            print(f"the second run goes on after step {step}", flush=True)

    with open(folder / f"seen-by-rank-{rank}", "a") as seen:
        for epoch in range(loader.state_dict()["epoch"], EPOCHS):
            for x, y, numbers in loader:
                loss = torch.nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()  # waits for the other rank
                optimizer.step()
                step += 1
                seen.writelines(f"{epoch} {number}\n" for number in numbers.tolist())
                if step == stop_after:
                    break
            if step == stop_after:
                break
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    if step == stop_after and rank == 0:
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        torch.save({**states, "step": step}, file)
        print(f"stopped after step {step}, in the middle of epoch {epoch}", flush=True)
    dist.destroy_process_group()


def launch() -> None:
    """Run this file twice under torchrun, and look at which samples each epoch has had."""
    with tempfile.TemporaryDirectory() as folder:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command = [*torchrun, __file__, "--folder", folder]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        subprocess.run([*command, f"--stop-after={STOP_AFTER}"], env=environment, check=True)
        subprocess.run(command, env=environment, check=True)
        lines = [line.split() for file in Path(folder).glob("seen-*") for line in file.read_text().splitlines()]
    for epoch in range(EPOCHS):
        numbers = [int(number) for at, number in lines if int(at) == epoch]
        assert sorted(numbers) == list(range(SAMPLES)), "a sample was lost or came twice"
        print(f"epoch {epoch}, over both runs and both ranks: {len(numbers)} samples, each sample once")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the checkpoint goes; only for runs under torchrun")
    parser.add_argument("--stop-after", type=int, help="save a checkpoint after this many steps, and stop")
    options = parser.parse_args()
    if "RANK" in os.environ:
        options.folder.mkdir(exist_ok=True)
        train(options.folder, options.stop_after)
    else:
        launch()


if __name__ == "__main__":
    main()
