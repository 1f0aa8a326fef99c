# mypy: ignore-errors
# Random numbers in workers: NumPy's seeds by worker_init_fn, and the recipe for reproducible runs.
import random

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset

num_workers = 2


class RandomDataset(Dataset):
    def __getitem__(self, index):
        return np.random.randint(0, 1000, 3), torch.randint(1000, (2,)), random.randint(0, 1000)

    def __len__(self):
        return 8


def worker_init_fn(worker_id):
    np.random.seed(np.random.get_state()[1][0] + worker_id)


def seed_worker(worker_id):
    worker_seed = torch.initial_seed() % 2**32
    np.random.seed(worker_seed)
    random.seed(worker_seed)


def by_epoch(worker_id):
    np.random.seed((torch.utils.data.get_worker_info().seed + 7) % 2**32)


dataset = RandomDataset()
g = torch.Generator()
g.manual_seed(0)
for options in (
    {},
    {"worker_init_fn": worker_init_fn},
    {"worker_init_fn": seed_worker, "generator": g, "shuffle": True},
    {"worker_init_fn": by_epoch},
):
    loader = DataLoader(dataset, batch_size=2, num_workers=num_workers, **options)
    for batch in loader:
        print(batch)
# the same seed before each epoch: the same numbers
for epoch in range(2):
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    print([batch for batch in DataLoader(dataset, batch_size=4, shuffle=True, num_workers=num_workers)])
