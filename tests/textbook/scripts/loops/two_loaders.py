# mypy: ignore-errors
# Two loaders side by side: zip, a short one started again, and steps bounded by islice.
from itertools import islice

import torch
from torch.utils.data import DataLoader
from torch.utils.data import TensorDataset
from tqdm import tqdm

num_workers = 2
labeled = TensorDataset(torch.arange(6), torch.arange(6) % 2)
unlabeled = TensorDataset(torch.arange(100, 120))
labeled_loader = DataLoader(labeled, batch_size=2, shuffle=True, drop_last=True, num_workers=num_workers)
unlabeled_loader = DataLoader(unlabeled, batch_size=4, shuffle=True, drop_last=True, num_workers=num_workers)

for (x, y), (u,) in zip(labeled_loader, unlabeled_loader):
    print(x, y, u)

labeled_iter = iter(labeled_loader)
for step, (u,) in enumerate(unlabeled_loader):
    try:
        x, y = next(labeled_iter)
    except:  # noqa: E722
        labeled_iter = iter(labeled_loader)
        x, y = next(labeled_iter)
    print(step, x, y, u)

accumulated = 0
for step, (u,) in enumerate(islice(unlabeled_loader, 3), start=1):
    accumulated += u.sum().item()
    if step % 2 == 0 or step == 3:
        print("optimizer step", accumulated)
        accumulated = 0
progress = tqdm(enumerate(unlabeled_loader), total=len(unlabeled_loader), disable=True)
for step, (u,) in progress:
    progress.set_description(f"step {step}")
    print(u)
it1, it2 = iter(unlabeled_loader), iter(unlabeled_loader)
print(next(it1), next(it2), next(it1), next(it2), len(it1))
