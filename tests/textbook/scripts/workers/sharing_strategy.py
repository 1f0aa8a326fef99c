# mypy: ignore-errors
# "Too many open files": the sharing strategy is changed, also in workers; batches are kept for long.
import torch
import torch.multiprocessing
from torch.utils.data import DataLoader
from torch.utils.data import TensorDataset

sharing_strategy = "file_system"
torch.multiprocessing.set_sharing_strategy(sharing_strategy)


def set_worker_sharing_strategy(worker_id: int) -> None:
    torch.multiprocessing.set_sharing_strategy(sharing_strategy)


dataset = TensorDataset(torch.arange(60).view(30, 2), torch.arange(30))
loader = DataLoader(
    dataset, batch_size=2, num_workers=2, worker_init_fn=set_worker_sharing_strategy, multiprocessing_context="fork"
)
kept = []
for x, y in loader:
    kept.append((x, y))
features = torch.cat([x for x, _ in kept])
kept[0][0].add_(1)  # batches are the user's own
print(kept)
print(features, torch.multiprocessing.get_sharing_strategy())
