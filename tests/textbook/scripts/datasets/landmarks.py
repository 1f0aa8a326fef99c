# mypy: ignore-errors
# Samples are dicts; transforms are classes that are composed.
import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset

num_workers = 2


class FaceLandmarksDataset(Dataset):
    def __init__(self, count, transform=None):
        rng = np.random.RandomState(1)
        self.landmarks = rng.rand(count, 4, 2).astype("float64")
        self.images = rng.randint(0, 256, (count, 10, 12, 3))
        self.transform = transform

    def __len__(self):
        return len(self.landmarks)

    def __getitem__(self, idx):
        if torch.is_tensor(idx):
            idx = idx.tolist()
        sample = {"image": self.images[idx], "landmarks": self.landmarks[idx], "name": f"face{idx}"}
        if self.transform:
            sample = self.transform(sample)
        return sample


class RandomCrop:
    def __init__(self, output_size):
        assert isinstance(output_size, (int, tuple))
        self.output_size = (output_size, output_size) if isinstance(output_size, int) else output_size

    def __call__(self, sample):
        image, landmarks = sample["image"], sample["landmarks"]
        h, w = image.shape[:2]
        new_h, new_w = self.output_size
        top = np.random.randint(0, h - new_h + 1)
        left = np.random.randint(0, w - new_w + 1)
        image = image[top : top + new_h, left : left + new_w]
        return {**sample, "image": image, "landmarks": landmarks - [left, top]}


class ToTensor:
    def __call__(self, sample):
        image = sample["image"].transpose((2, 0, 1))
        return {**sample, "image": torch.from_numpy(image), "landmarks": torch.from_numpy(sample["landmarks"])}


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, sample):
        for t in self.transforms:
            sample = t(sample)
        return sample


transformed_dataset = FaceLandmarksDataset(14, transform=Compose([RandomCrop(6), ToTensor()]))
for i, sample in enumerate(transformed_dataset):
    print(i, sample["image"].size(), sample["landmarks"].size())
    if i == 3:
        break

dataloader = DataLoader(transformed_dataset, batch_size=4, shuffle=True, num_workers=num_workers)
for i_batch, sample_batched in enumerate(dataloader):
    print(i_batch, sample_batched["image"].size(), sample_batched["landmarks"].size())
    print(sample_batched)
    # observe 4th batch and stop.
    if i_batch == 3:
        break
