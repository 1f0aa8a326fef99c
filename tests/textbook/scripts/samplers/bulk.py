# mypy: ignore-errors
# Samplers of torch by hand: batches read by one call of the dataset, draws with replacement, generators.
import torch
from torch.utils.data import DataLoader
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, TensorDataset

num_workers = 2


class BatchReader:
    def __init__(self):
        self.table = torch.arange(60).view(20, 3)

    def __len__(self):
        return len(self.table)

    def __getitem__(self, indices):
        return self.table[indices], indices


ds = BatchReader()
sampler = BatchSampler(RandomSampler(ds), batch_size=6, drop_last=False)
for rows, indices in DataLoader(ds, sampler=sampler, batch_size=None, num_workers=num_workers):
    print(rows, indices)

numbers = TensorDataset(torch.arange(20))
g = torch.Generator()
g.manual_seed(0)
for sampler in (
    SequentialSampler(numbers),
    RandomSampler(numbers, replacement=True, num_samples=13),
    RandomSampler(numbers, generator=g),
    SubsetRandomSampler([3, 1, 4, 15, 9, 2, 6], generator=g),
):
    print(type(sampler).__name__, [x.tolist() for (x,) in DataLoader(numbers, 5, sampler=sampler)])
batches = BatchSampler(SequentialSampler(numbers), batch_size=8, drop_last=True)
print(list(DataLoader(numbers, batch_sampler=batches, num_workers=num_workers)))
print(list(DataLoader(numbers, batch_size=5, shuffle=True, generator=g, num_workers=num_workers)))
print(g.initial_seed(), torch.rand(2, generator=g))
