# mypy: ignore-errors
# A loader whose workers live for all epochs, since its batch sampler never ends; two spellings of it.
import torch
from torch.utils.data import DataLoader
from torch.utils.data import TensorDataset

num_workers = 2
dataset = TensorDataset(torch.arange(10))


class _RepeatSampler:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class InfiniteDataLoader(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", _RepeatSampler(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for i in range(len(self)):
            yield next(self.iterator)


class MultiEpochsDataLoader(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._DataLoader__initialized = False
        self.batch_sampler = _RepeatSampler(self.batch_sampler)
        self._DataLoader__initialized = True
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for i in range(len(self)):
            yield next(self.iterator)


for cls in (InfiniteDataLoader, MultiEpochsDataLoader):
    loader = cls(dataset, batch_size=3, shuffle=True, num_workers=num_workers)
    for epoch in range(3):
        print(cls.__name__, epoch, [batch[0].tolist() for batch in loader], len(loader))
    del loader
