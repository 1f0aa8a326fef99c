# mypy: ignore-errors
# Workers started by spawn, as on Windows and macOS: a guarded main and everything importable.
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset


class Squares(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.tensor(i * i), torch.randint(100, ())


def collate(batch):
    return torch.utils.data.default_collate(batch)


def main():
    loader = DataLoader(
        Squares(10), batch_size=4, shuffle=True, num_workers=2, multiprocessing_context="spawn", collate_fn=collate
    )
    for squares, noise in loader:
        print(squares, noise)


if __name__ == "__main__":
    main()
