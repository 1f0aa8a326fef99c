# mypy: ignore-errors
# Sequences padded to the longest of their batch, sorted and packed for an RNN.
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader
from torch.utils.data import Dataset

num_workers = 2


class VariableLength(Dataset):
    def __init__(self):
        self.lengths = [5, 2, 9, 1, 7, 3, 3, 8, 6, 4, 2]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        n = self.lengths[index]
        return torch.arange(n * 2, dtype=torch.float).view(n, 2), index % 2


class PadSequence:
    def __call__(self, batch):
        # sort in decreasing order, as pack_padded_sequence wants it
        sorted_batch = sorted(batch, key=lambda x: x[0].shape[0], reverse=True)
        sequences = [x[0] for x in sorted_batch]
        sequences_padded = pad_sequence(sequences, batch_first=True, padding_value=-1)
        lengths = torch.LongTensor([len(x) for x in sequences])
        labels = torch.LongTensor(list(map(lambda x: x[1], sorted_batch)))
        return sequences_padded, lengths, labels


def pad_with_mask(batch):
    (xx, yy) = zip(*batch)
    x_lens = [len(x) for x in xx]
    xx_pad = pad_sequence(xx, batch_first=True, padding_value=0)
    mask = torch.arange(xx_pad.size(1))[None, :] < torch.tensor(x_lens)[:, None]
    return {"x": xx_pad, "y": torch.tensor(yy), "lens": x_lens, "mask": mask}


loader = DataLoader(VariableLength(), batch_size=4, shuffle=True, collate_fn=PadSequence(), num_workers=num_workers)
rnn = torch.nn.GRU(2, 3, batch_first=True)
for padded, lengths, labels in loader:
    packed = pack_padded_sequence(padded, lengths, batch_first=True)
    output, hidden = rnn(packed)
    print(padded, lengths, labels, hidden)
for batch in DataLoader(VariableLength(), batch_size=4, collate_fn=pad_with_mask, num_workers=num_workers):
    print(batch)
