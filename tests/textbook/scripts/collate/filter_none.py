# mypy: ignore-errors
# Broken samples are None, and the collate function leaves them out.
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset

num_workers = 2


class MyDataset(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, idx):
        try:
            if idx % 5 == 3 or 12 <= idx < 16:
                raise IOError("corrupt image")
            return torch.full((2, 2), float(idx)), idx
        except Exception:
            return None


def collate_fn(batch):
    batch = list(filter(lambda x: x is not None, batch))
    if len(batch) == 0:
        return None
    return torch.utils.data.dataloader.default_collate(batch)


loader = DataLoader(MyDataset(), batch_size=4, num_workers=num_workers, collate_fn=collate_fn)
seen = 0
for i, batch in enumerate(loader):
    if batch is None:
        print(i, "nothing is left of this batch")
        continue
    images, targets = batch
    seen += len(targets)
    print(i, images, targets)
print(seen, "of", len(loader.dataset))
for batch in DataLoader(MyDataset(), batch_size=4, shuffle=True, num_workers=num_workers, collate_fn=lambda b: b):
    print(batch)
