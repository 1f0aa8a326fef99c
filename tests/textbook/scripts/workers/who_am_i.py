# mypy: ignore-errors
# Workers that say who they are, in samples and on the terminal.
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset

num_workers = 2


class WhoAmI(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, idx):
        info = torch.utils.data.get_worker_info()
        if info is None:
            print(f"sample {idx} in the main process", flush=True)
            return idx, -1, 0, torch.get_num_threads()
        print(f"sample {idx} in worker {info.id} of {info.num_workers}", flush=True)
        assert info.dataset is self
        return idx, info.id, info.seed, torch.get_num_threads()


def hello(worker_id):
    print(f"worker {worker_id} starts, seed {torch.initial_seed()}", flush=True)


print(torch.utils.data.get_worker_info())
for batch in DataLoader(WhoAmI(), batch_size=2, num_workers=num_workers, worker_init_fn=hello):
    print(batch)
