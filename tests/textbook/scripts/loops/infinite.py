# mypy: ignore-errors
# Batches without end, in the ways in which people write it.
import itertools

import torch
from torch.utils.data import DataLoader
from torch.utils.data import TensorDataset

num_workers = 2
dataset = TensorDataset(torch.arange(10))
loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=num_workers)

data_iter = iter(loader)
step = 0
while True:
    try:
        batch = next(data_iter)
    except StopIteration:
        data_iter = iter(loader)
        batch = next(data_iter)
    print(step, batch)
    step += 1
    if step == 7:
        break


def cycle(iterable):
    while True:
        for x in iterable:
            yield x


forever = cycle(loader)
for step in range(5):
    print("cycle", next(forever))
# itertools.cycle keeps the batches of the first epoch
for step, batch in zip(range(7), itertools.cycle(loader)):
    print("itertools", batch)
# a new iterator every time: always the first batch of another epoch
for step in range(3):
    print("next(iter())", next(iter(loader)))


class InfiniteDataLoader(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # Initialize an iterator over the dataset.
        self.dataset_iterator = super().__iter__()

    def __iter__(self):
        return self

    def __next__(self):
        try:
            batch = next(self.dataset_iterator)
        except StopIteration:
            # Dataset exhausted, use a new fresh iterator.
            self.dataset_iterator = super().__iter__()
            batch = next(self.dataset_iterator)
        return batch


infinite = InfiniteDataLoader(dataset, batch_size=4, shuffle=True, num_workers=num_workers)
for step, batch in zip(range(7), infinite):
    print("subclass", step, batch)
print(len(infinite))
