# mypy: ignore-errors
# An HDF5 file that each worker opens for itself, with the first sample.
import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils import data

num_workers = 2

with h5py.File("train.h5", "w") as f:
    f.create_dataset("images", data=np.arange(30 * 5, dtype="float32").reshape(30, 5))
    f.create_dataset("labels", data=np.arange(30) % 4)


class H5Dataset(data.Dataset):
    def __init__(self, path):
        self.file_path = path
        self.dataset = None
        with h5py.File(self.file_path, "r") as file:
            self.dataset_len = len(file["images"])

    def __getitem__(self, index):
        if self.dataset is None:
            self.file = h5py.File(self.file_path, "r")
            self.dataset = self.file["images"]
            self.labels = self.file["labels"]
        return torch.from_numpy(self.dataset[index]), self.labels[index]

    def __len__(self):
        return self.dataset_len


loader = DataLoader(H5Dataset("train.h5"), batch_size=7, shuffle=True, num_workers=num_workers)
for epoch in range(2):
    for batch_idx, (x, y) in enumerate(loader):
        print(f"epoch {epoch}, batch {batch_idx}", x, y)
print(len(loader), len(loader.dataset))
