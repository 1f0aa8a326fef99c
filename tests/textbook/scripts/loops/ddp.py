# mypy: ignore-errors
# The loop of a rank under DistributedDataParallel, as torchrun starts it; here a group of one.
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler

num_workers = 2


def setup():
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    store = f"file://{os.path.abspath('store')}"  # env:// under torchrun
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)


def prepare(dataset, batch_size=4, pin_memory=False):
    sampler = DistributedSampler(dataset, shuffle=True, drop_last=False)
    return DataLoader(
        dataset,
        batch_size=batch_size,
        pin_memory=pin_memory,
        num_workers=num_workers,
        drop_last=False,
        shuffle=False,
        sampler=sampler,
    )


def main():
    setup()
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(18, 3), torch.randn(18, 1))
    dataloader = prepare(dataset)
    model = DDP(torch.nn.Linear(3, 1))
    loss_fn = torch.nn.MSELoss()
    for epoch in range(2):
        # if we are using DistributedSampler, we have to tell it which epoch this is
        dataloader.sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(dataloader):
            model.zero_grad(set_to_none=True)
            loss = loss_fn(model(x), y)
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
            print(f"[rank {dist.get_rank()}] epoch {epoch} step {step}", x, loss.item())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
