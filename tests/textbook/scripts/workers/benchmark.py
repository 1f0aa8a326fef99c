# mypy: ignore-errors
# Which num_workers is the fastest? A loop that everybody has written.
import time

import torch
from torch.utils.data import DataLoader
from torch.utils.data import TensorDataset

train_dataset = TensorDataset(torch.randn(64, 10), torch.arange(64))


def benchmark(num_workers, pin_memory):
    train_loader = DataLoader(
        train_dataset, shuffle=True, num_workers=num_workers, batch_size=16, pin_memory=pin_memory
    )
    start = time.time()
    seen = 0
    for epoch in range(1, 3):
        for i, data in enumerate(train_loader, 0):
            seen += data[1].sum().item()
    end = time.time()
    print("Finish with:{} second, num_workers={}".format(end - start, num_workers))
    print(f"{end - start:.3f} s, {(end - start) * 1000 / (i + 1):.1f} ms per batch, {seen} seen")
    return seen


results = {n: benchmark(n, torch.cuda.is_available()) for n in range(0, 4, 2)}
print("number of different sums:", len(set(results.values())))
