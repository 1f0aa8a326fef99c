# mypy: ignore-errors
# random_split, Subset and ConcatDataset; transforms set after the fact.
import torch
from torch.utils.data import DataLoader
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, random_split

num_workers = 2


class Numbers(Dataset):
    def __init__(self, n, transform=None):
        self.data = torch.arange(n, dtype=torch.float32)
        self.transform = transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        x = self.data[i]
        if self.transform is not None:
            x = self.transform(x)
        return x, i


full = Numbers(40)
train_size = int(0.7 * len(full))
train_set, val_set = random_split(full, [train_size, len(full) - train_size])
train_loader = DataLoader(train_set, batch_size=8, shuffle=True, num_workers=num_workers)
val_loader = DataLoader(val_set, batch_size=8, shuffle=False, num_workers=num_workers)

# oops: this changes the validation set as well
train_set.dataset.transform = lambda x: x * 2
for name, loader in [("train", train_loader), ("val", val_loader)]:
    for batch in loader:
        print(name, batch)
full.transform = None
print(next(iter(val_loader)))

small = Subset(full, range(0, 40, 9))
both = ConcatDataset([small, TensorDataset(torch.zeros(3), torch.full((3,), -1))])
print(len(both), list(DataLoader(both, batch_size=4)))
parts = random_split(range(10), [0.5, 0.3, 0.2], generator=torch.Generator().manual_seed(42))
print([list(DataLoader(part, batch_size=2)) for part in parts])
