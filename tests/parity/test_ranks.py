"""Ranks that train with feedline's loader and a DistributedSampler end with the same parameters as with torch's."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.utils.data as torch_data

from feedline import DataLoader
from tests.rank_processes import run_ranks

pytestmark = pytest.mark.sample(4)

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "torchrun_training.py"
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
COUNT = 50  # not divisible by 4 ranks and batches of 3


def trained(loader: Any, sampler: Any) -> list[list[float]]:
    """Train for two epochs; return the parameters."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            for parameter in model.parameters():  # like DistributedDataParallel, which takes seconds to import
                dist.all_reduce(parameter.grad)
            optimizer.step()
    return [parameter.detach().flatten().tolist() for parameter in model.parameters()]


def parameters(rank: int, world_size: int, folder: Path) -> list[Any]:
    generator = torch.Generator().manual_seed(7)
    data = torch_data.TensorDataset(
        torch.randn(COUNT, 3, generator=generator), torch.randn(COUNT, 1, generator=generator)
    )
    found = []
    for kind, options in (
        (torch_data.DataLoader, {}),
        (DataLoader, {}),
        (DataLoader, {"num_workers": 2, "engine": "thread"}),
        (DataLoader, {"num_workers": 1}),
    ):
        sampler: Any = torch_data.DistributedSampler(data, seed=5)
        found.append(trained(kind(data, 3, sampler=sampler, **options), sampler))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_train_to_exactly_the_same_parameters(tmp_path: Path, world_size: int) -> None:
    reports = run_ranks(world_size, tmp_path, parameters)
    torchs, *ours = reports[0]
    assert ours == [torchs] * 3
    assert all(report == reports[0] for report in reports)


def run_example(folder: Path, ranks: int, *arguments: str) -> list[list[int]]:
    """Run the example with torchrun; return the samples that each rank trained on."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*LAUNCHER, f"--nproc-per-node={ranks}", str(EXAMPLE), str(folder), *arguments],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [ast.literal_eval(line) for line in re.findall(r"rank \d of \d: (\[.*?\])", done.stdout)]


@pytest.mark.slow
@pytest.mark.timeout(420)  # five interpreters import a large part of torch
def test_the_example_stops_with_two_ranks_and_resumes_with_three(tmp_path: Path) -> None:
    before = run_example(tmp_path, 2, "--stop-after", "5")
    after = run_example(tmp_path, 3)
    assert [len(seen) for seen in before] == [20, 20]
    counts = Counter(number for seen in before + after for number in seen)
    assert counts.keys() == {shard * 100 + number for shard in range(6) for number in range(20 + 7 * shard)}
    repeated = {number for number, count in counts.items() if count > 1}
    assert len(repeated) <= 4 * 3  # ranks without batches repeat their first ones until the end of the epoch
