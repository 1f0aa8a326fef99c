# mypy: ignore-errors
# Windows over a time series in a memory-mapped file.
import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset

num_workers = 2
np.save("series.npy", np.sin(np.arange(200) / 10).astype(np.float32))


class WindowDataset(Dataset):
    def __init__(self, filename, window=16, horizon=4):
        super(WindowDataset, self).__init__()
        self.series = np.load(filename, mmap_mode="r")
        self.window = window
        self.horizon = horizon

    def __len__(self):
        return len(self.series) - self.window - self.horizon + 1

    def __getitem__(self, i):
        x = self.series[i : i + self.window]
        y = self.series[i + self.window : i + self.window + self.horizon]
        return torch.tensor(x).unsqueeze(-1), torch.tensor(y)


ds = WindowDataset("series.npy")
train_loader = DataLoader(ds, batch_size=32, shuffle=False, drop_last=True, num_workers=num_workers)
total = 0.0
for x, y in train_loader:
    total += x.sum().item() + y.sum().item()
    print(x.shape, x.dtype, y)
print(len(ds), len(train_loader), total)
