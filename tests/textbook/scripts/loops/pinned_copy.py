# mypy: ignore-errors
# Batches moved to the device: pin_memory where there is a GPU, non_blocking copies, a prefetcher around the loader.
import torch
from torch.utils.data import DataLoader
from torch.utils.data import TensorDataset

num_workers = 2
use_cuda = torch.cuda.is_available()
device = torch.device("cuda" if use_cuda else "cpu")
kwargs = {"num_workers": num_workers, "pin_memory": use_cuda}
dataset = TensorDataset(torch.randn(26, 3), torch.randint(0, 2, (26,)))
train_loader = DataLoader(dataset, batch_size=8, shuffle=True, **kwargs)
for batch_idx, (data, target) in enumerate(train_loader):
    data, target = data.to(device, non_blocking=True), target.to(device, non_blocking=True)
    print(
        "Train [{}/{} ({:.0f}%)]".format(
            batch_idx * len(data), len(train_loader.dataset), 100.0 * batch_idx / len(train_loader)
        )
    )
    print(data, target)


class data_prefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream() if use_cuda else None
        self.preload()

    def preload(self):
        try:
            self.next_input, self.next_target = next(self.loader)
        except StopIteration:
            self.next_input = None
            self.next_target = None
            return
        if self.stream is not None:
            with torch.cuda.stream(self.stream):
                self.next_input = self.next_input.cuda(non_blocking=True)
                self.next_target = self.next_target.cuda(non_blocking=True)
        self.next_input = self.next_input.float()

    def next(self):
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
        input, target = self.next_input, self.next_target
        self.preload()
        return input, target


prefetcher = data_prefetcher(train_loader)
input, target = prefetcher.next()
i = 0
while input is not None:
    i += 1
    print(i, input, target)
    input, target = prefetcher.next()
# asked for without a GPU: a warning, and ordinary memory
for data, target in DataLoader(dataset, batch_size=13, pin_memory=True, num_workers=num_workers):
    print(data.is_pinned() == use_cuda, data)
