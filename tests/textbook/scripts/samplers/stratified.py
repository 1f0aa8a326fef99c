# mypy: ignore-errors
# Every batch has the classes in the proportions of the dataset; then n-way k-shot episodes.
import random

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset, Sampler

num_workers = 2


class ToyDataset(Dataset):
    def __init__(self):
        self.labels = [0] * 12 + [1] * 6 + [2] * 6

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return torch.tensor([i, i + 0.5]), self.labels[i]


class StratifiedBatchSampler:
    def __init__(self, y, batch_size, shuffle=True):
        self.y = np.asarray(y)
        self.n_batches = len(y) // batch_size
        self.shuffle = shuffle

    def __iter__(self):
        batches = [[] for _ in range(self.n_batches)]
        for c in np.unique(self.y):
            members = np.where(self.y == c)[0]
            if self.shuffle:
                members = np.random.permutation(members)
            for place, index in enumerate(members):
                batches[place % self.n_batches].append(index)
        for batch in batches:
            yield batch

    def __len__(self):
        return self.n_batches


class EpisodicBatchSampler(Sampler):
    def __init__(self, labels, n_way, k_shot, n_episodes):
        self.by_class = {}
        for i, label in enumerate(labels):
            self.by_class.setdefault(label, []).append(i)
        self.n_way = n_way
        self.k_shot = k_shot
        self.n_episodes = n_episodes

    def __len__(self):
        return self.n_episodes

    def __iter__(self):
        for _ in range(self.n_episodes):
            classes = random.sample(sorted(self.by_class), self.n_way)
            yield [i for c in classes for i in random.sample(self.by_class[c], self.k_shot)]


ds = ToyDataset()
loader = DataLoader(ds, batch_sampler=StratifiedBatchSampler(ds.labels, batch_size=4), num_workers=num_workers)
for epoch in range(2):
    for x, y in loader:
        print(epoch, x, y, torch.bincount(y))
print(len(loader), loader.batch_size, loader.drop_last)
episodes = EpisodicBatchSampler(ds.labels, n_way=2, k_shot=3, n_episodes=5)
for x, y in DataLoader(ds, batch_sampler=episodes, num_workers=num_workers):
    support, query = x.view(2, 3, -1)[:, :1], x.view(2, 3, -1)[:, 1:]
    print(support, query, y)
