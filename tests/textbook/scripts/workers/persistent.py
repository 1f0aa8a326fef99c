# mypy: ignore-errors
# Workers that stay: caches, prefetch_factor, several epochs; options that need workers.
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset


class CachedDataset(Dataset):
    def __init__(self):
        self.cache = {}
        self.reads = 0

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index not in self.cache:
            self.reads += 1
            self.cache[index] = torch.full((2,), float(index))
        return self.cache[index], self.reads


dataset = CachedDataset()
for persistent in (False, True):
    loader = DataLoader(
        dataset, batch_size=3, num_workers=2, persistent_workers=persistent, prefetch_factor=4, drop_last=True
    )
    for epoch in range(3):
        for batch, reads in loader:
            print(persistent, epoch, batch, reads)
    print(loader.num_workers, loader.prefetch_factor, loader.persistent_workers, dataset.reads)
print(list(DataLoader(dataset, batch_size=6)), dataset.reads)
for options in ({"persistent_workers": True}, {"prefetch_factor": 4}, {"timeout": -1}, {"num_workers": -1}):
    try:
        DataLoader(dataset, **options)
    except ValueError as e:
        print(options, e)
