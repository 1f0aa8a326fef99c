# mypy: ignore-errors
# Rare classes drawn more often: weights from class counts.
import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import TensorDataset, WeightedRandomSampler

num_workers = 2
target = np.hstack((np.zeros(45, dtype=int), np.ones(5, dtype=int), np.full(10, 2)))
class_sample_count = np.array([len(np.where(target == t)[0]) for t in np.unique(target)])
weight = 1.0 / class_sample_count
samples_weight = np.array([weight[t] for t in target])
samples_weight = torch.from_numpy(samples_weight)
sampler = WeightedRandomSampler(samples_weight.type("torch.DoubleTensor"), len(samples_weight))

target = torch.from_numpy(target).long()
train_dataset = TensorDataset(torch.arange(len(target)), target)
train_loader = DataLoader(train_dataset, batch_size=20, num_workers=num_workers, sampler=sampler)
for i, (data, target) in enumerate(train_loader):
    print(f"batch index {i}, 0/1/2: {[(target == c).sum().item() for c in range(3)]}")
    print(data, target)

try:
    DataLoader(train_dataset, batch_size=20, shuffle=True, sampler=sampler)
except ValueError as e:
    print(e)
