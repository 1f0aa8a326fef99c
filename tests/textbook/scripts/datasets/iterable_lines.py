# mypy: ignore-errors
# Lines of text files, a worker takes every n-th one; a shuffle buffer behind it.
import itertools
import random

import torch
from torch.utils.data import DataLoader
from torch.utils.data import IterableDataset, get_worker_info

num_workers = 2
for name in ("a.txt", "b.txt"):
    with open(name, "w") as f:
        f.writelines(f"{name} {i} {i * i}\n" for i in range(11))


class TextLines(IterableDataset):
    def __init__(self, files):
        self.files = files

    def parse_file(self, path):
        with open(path, "r") as f:
            for line in f:
                name, i, square = line.strip("\n").split(" ")
                yield name, int(i), torch.tensor([float(square)])

    def __iter__(self):
        stream = itertools.chain.from_iterable(map(self.parse_file, self.files))
        info = get_worker_info()
        if info is not None:
            stream = itertools.islice(stream, info.id, None, info.num_workers)
        return stream


class ShuffleBuffer(IterableDataset):
    def __init__(self, dataset, buffer_size):
        super().__init__()
        self.dataset = dataset
        self.buffer_size = buffer_size

    def __iter__(self):
        shufbuf = []
        try:
            dataset_iter = iter(self.dataset)
            for i in range(self.buffer_size):
                shufbuf.append(next(dataset_iter))
        except StopIteration:
            self.buffer_size = len(shufbuf)
        for item in dataset_iter:
            evict_idx = random.randint(0, self.buffer_size - 1)
            yield shufbuf[evict_idx]
            shufbuf[evict_idx] = item
        random.shuffle(shufbuf)
        while shufbuf:
            yield shufbuf.pop()


dataset = TextLines(["a.txt", "b.txt"])
for batch in DataLoader(dataset, batch_size=4, num_workers=num_workers):
    print(batch)
loader = DataLoader(ShuffleBuffer(dataset, 6), batch_size=4, drop_last=True, num_workers=num_workers)
for epoch in range(2):
    for names, numbers, squares in loader:
        print(epoch, names, numbers, squares)
try:
    print(len(loader))
except TypeError as e:
    print("TypeError", e)
