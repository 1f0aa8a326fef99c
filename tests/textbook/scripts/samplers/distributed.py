# mypy: ignore-errors
# DistributedSampler of every rank, with and without set_epoch.
import torch
from torch.utils.data import DataLoader
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler

dataset = TensorDataset(torch.arange(22))
world_size = 3
for rank in range(world_size):
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True, drop_last=False)
    loader = DataLoader(dataset, batch_size=4, shuffle=(sampler is None), sampler=sampler, num_workers=1)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        print(rank, epoch, [batch[0].tolist() for batch in loader])
    print(len(loader), len(sampler), sampler.num_samples, sampler.total_size)

forgotten = DataLoader(dataset, 4, sampler=DistributedSampler(dataset, 2, 0, shuffle=True))
print([list(forgotten) for epoch in range(2)])
