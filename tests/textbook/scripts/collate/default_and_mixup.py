# mypy: ignore-errors
# default_collate called by the user's function: mixup and cutoff of a whole batch.
import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torch.utils.data import TensorDataset, default_collate
from torch.utils.data._utils.collate import default_collate as private_default_collate

num_workers = 2
NUM_CLASSES = 3
dataset = TensorDataset(torch.arange(40.0).view(20, 2), torch.arange(20) % NUM_CLASSES)


def mixup_collate(batch, alpha=0.4):
    images, labels = default_collate(batch)
    labels = F.one_hot(labels, NUM_CLASSES).float()
    lam = np.random.beta(alpha, alpha)
    index = torch.randperm(images.size(0))
    return lam * images + (1 - lam) * images[index], lam * labels + (1 - lam) * labels[index]


class Collater:
    def __init__(self, times):
        self.times = times

    def __call__(self, samples):
        data, target = private_default_collate(samples)
        return {"data": data.repeat(self.times, 1), "target": target.tolist(), "n": len(samples)}


for x, y in DataLoader(dataset, 6, True, num_workers=num_workers, collate_fn=mixup_collate):
    print(x, y)
for batch in DataLoader(dataset, 6, True, num_workers=num_workers, collate_fn=Collater(2)):
    print(batch)
