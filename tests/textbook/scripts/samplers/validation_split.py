# mypy: ignore-errors
# A validation set by SubsetRandomSampler, then folds of a cross-validation.
import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import TensorDataset
from torch.utils.data.sampler import SubsetRandomSampler

num_workers = 2
dataset = TensorDataset(torch.randn(37, 2), torch.arange(37))
batch_size = 8
validation_split = 0.2
shuffle_dataset = True
random_seed = 42

# Creating data indices for training and validation splits:
dataset_size = len(dataset)
indices = list(range(dataset_size))
split = int(np.floor(validation_split * dataset_size))
if shuffle_dataset:
    np.random.seed(random_seed)
    np.random.shuffle(indices)
train_indices, val_indices = indices[split:], indices[:split]

train_sampler = SubsetRandomSampler(train_indices)
valid_sampler = SubsetRandomSampler(val_indices)
train_loader = DataLoader(dataset, batch_size=batch_size, sampler=train_sampler, num_workers=num_workers)
validation_loader = DataLoader(dataset, batch_size=batch_size, sampler=valid_sampler, num_workers=num_workers)
print(len(train_loader), len(train_loader.sampler), len(train_loader.dataset), len(validation_loader))
for epoch in range(2):
    for batch_index, (faces, labels) in enumerate(train_loader):
        print(epoch, batch_index, faces, labels)
    for faces, labels in validation_loader:
        print("val", labels)

folds = np.array_split(np.random.permutation(dataset_size), 3)
for fold in range(3):
    test_ids = folds[fold]
    train_ids = np.concatenate([f for i, f in enumerate(folds) if i != fold])
    trainloader = DataLoader(dataset, batch_size=10, sampler=SubsetRandomSampler(train_ids))
    testloader = DataLoader(dataset, batch_size=10, sampler=SubsetRandomSampler(test_ids))
    print(f"FOLD {fold}", [y.tolist() for _, y in trainloader], [y.tolist() for _, y in testloader])
