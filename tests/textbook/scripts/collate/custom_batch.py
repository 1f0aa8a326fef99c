# mypy: ignore-errors
# A batch of a class of its own, with pin_memory.
import torch
from torch.utils.data import DataLoader
from torch.utils.data import TensorDataset

num_workers = 2


class SimpleCustomBatch:
    def __init__(self, data):
        transposed_data = list(zip(*data))
        self.inp = torch.stack(transposed_data[0], 0)
        self.tgt = torch.stack(transposed_data[1], 0)

    # custom memory pinning method on custom type
    def pin_memory(self):
        self.inp = self.inp.pin_memory()
        self.tgt = self.tgt.pin_memory()
        return self


def collate_wrapper(batch):
    return SimpleCustomBatch(batch)


inps = torch.arange(10 * 5, dtype=torch.float32).view(10, 5)
tgts = torch.arange(10 * 5, dtype=torch.float32).view(10, 5)
dataset = TensorDataset(inps, tgts)
loader = DataLoader(
    dataset, batch_size=2, collate_fn=collate_wrapper, pin_memory=torch.cuda.is_available(), num_workers=num_workers
)
for batch_ndx, sample in enumerate(loader):
    print(batch_ndx, type(sample).__name__, sample.inp, sample.tgt, sample.inp.is_pinned())
