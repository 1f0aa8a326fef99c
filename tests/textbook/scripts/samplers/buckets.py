# mypy: ignore-errors
# Texts of similar length in one batch: pools of random samples, sorted by length.
import random

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

num_workers = 2
train_list = [(i % 2, list(range(1 + (i * 7) % 13))) for i in range(45)]
batch_size = 4


def batch_sampler():
    indices = [(i, len(s[1])) for i, s in enumerate(train_list)]
    random.shuffle(indices)
    pooled_indices = []
    # create pool of indices with similar lengths
    for i in range(0, len(indices), batch_size * 5):
        pooled_indices.extend(sorted(indices[i : i + batch_size * 5], key=lambda x: x[1]))
    pooled_indices = [x[0] for x in pooled_indices]
    # yield indices for current batch
    for i in range(0, len(pooled_indices), batch_size):
        yield pooled_indices[i : i + batch_size]


def collate_batch(batch):
    return torch.tensor([y for y, _ in batch]), pad_sequence([torch.tensor(x) for _, x in batch], padding_value=3.0)


bucket_dataloader = DataLoader(
    train_list, batch_sampler=list(batch_sampler()), collate_fn=collate_batch, num_workers=num_workers
)
for labels, texts in bucket_dataloader:
    print(labels, texts.shape, texts)

# A generator can be gone through only once.
once = DataLoader(train_list, batch_sampler=batch_sampler(), collate_fn=collate_batch, num_workers=num_workers)
print(sum(len(labels) for labels, _ in once), sum(len(labels) for labels, _ in once))
