# mypy: ignore-errors
# Errors in the middle of an epoch, caught in the loop and around it.
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset

num_workers = 2


class SometimesCorrupt(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        if index in (5, 13):
            raise ValueError(f"cannot read sample {index}")
        return torch.tensor(index)


loader = DataLoader(SometimesCorrupt(), batch_size=3, num_workers=num_workers)
it = iter(loader)
i = 0
while True:
    try:
        batch = next(it)
        print(i, batch)
    except StopIteration:
        print("done")
        break
    except Exception as e:
        print(i, "skipped:", type(e).__name__)
    i += 1

for epoch in range(2):
    try:
        for i, batch in enumerate(loader):
            print(epoch, i, batch)
    except ValueError as e:
        print("epoch ended early", type(e).__name__, "cannot read sample 5" in str(e))

try:
    for batch in DataLoader([torch.zeros(2), torch.zeros(3)], batch_size=2, num_workers=num_workers):
        print(batch)
except RuntimeError as e:
    print(type(e).__name__, "stack expects each tensor to be equal size" in str(e))
try:
    for batch in DataLoader([1, None], batch_size=2, num_workers=num_workers):
        print(batch)
except (TypeError, RuntimeError) as e:
    print(type(e).__name__, "NoneType" in str(e))
for batch in loader:  # not caught: ends the script
    print(batch)
