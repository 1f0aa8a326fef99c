# mypy: ignore-errors
# Mean and standard deviation of a dataset, then normalised by a transform that is set later.
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset

num_workers = 2


class Images(Dataset):
    def __init__(self, transform=None):
        g = torch.Generator().manual_seed(3)
        self.images = torch.rand(22, 3, 4, 4, generator=g)
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = self.images[i]
        return self.transform(image) if self.transform else image


dataset = Images()
loader = DataLoader(dataset, batch_size=8, num_workers=num_workers, shuffle=False)
mean = 0.0
std = 0.0
for images in loader:
    batch_samples = images.size(0)  # the last batch can have smaller size
    images = images.view(batch_samples, images.size(1), -1)
    mean += images.mean(2).sum(0)
    std += images.std(2).sum(0)
mean /= len(loader.dataset)
std /= len(loader.dataset)
print(mean, std)

dataset.transform = lambda image: (image - mean[:, None, None]) / std[:, None, None]
for images in loader:
    print(images)
