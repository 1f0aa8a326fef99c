"""What happens when a program steps into one of the pitfalls of workers, with torch's loader and with feedline's?

The chapter runs the other pitfalls itself; these need more samples, h5py or a small /dev/shm. Each is a program in
`PROGRAMS` that uses a class `DataLoader`. It runs twice, in a process of its own, with this class from torch and from
feedline. Shown is what it printed, the names of the warnings, and the last line of its traceback. A program that does
not end within its time is a deadlock and is killed.

    python docs/learn/experiments/worker_pitfalls.py            # all of them
    python docs/learn/experiments/worker_pitfalls.py hdf5 shm   # some of them
"""

# ruff: noqa: T201 (a script that prints)

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT_S = 150
LOADERS = {"torch": "torch.utils.data", "feedline": "feedline"}

PROGRAMS = {
    "file": """
class Records(Dataset):
    def __init__(self, path):
        self.file = open(path, "rb")

    def __len__(self):
        return 2000

    def __getitem__(self, index):
        self.file.seek(index * 4096)
        time.sleep(0.0002)
        return int.from_bytes(self.file.read(4096)[:8], "little")

with open("records.bin", "wb") as file:
    for number in range(2000):
        file.write(number.to_bytes(8, "little") + bytes(4088))
read = torch.cat([batch.clone() for batch in DataLoader(Records("records.bin"), 50, num_workers=4)])
print("wrong samples:", int((read != torch.arange(2000)).sum()), "of 2000")
""",
    "shm": """
images = [torch.zeros(3, 256, 256) for _ in range(64)]  # collated into 25 MB
print("/dev/shm:", os.statvfs("/dev/shm").f_frsize * os.statvfs("/dev/shm").f_blocks >> 20, "MiB")
print("batches:", sum(1 for batch in DataLoader(images, 32, num_workers=2)))
""",
    "shm-own": """
batches = [torch.zeros(8, 3, 256, 256) for _ in range(8)]  # 6.3 MB each, made by the dataset
print("/dev/shm:", os.statvfs("/dev/shm").f_frsize * os.statvfs("/dev/shm").f_blocks >> 20, "MiB")
print("batches:", sum(1 for batch in DataLoader(batches, None, num_workers=2)))
""",
    "openmp": """
class Summed(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        torch.set_num_threads(2)
        return torch.ones(1000, 1000).exp().sum()

torch.set_num_threads(2)
torch.ones(1000, 1000).exp().sum()  # the program has used its OpenMP threads
print(len(list(DataLoader(Summed(), 2, num_workers=1, timeout=10))))
""",
}
HDF5 = """
import h5py

class Rows(Dataset):
    def __init__(self, path):
        self.rows = h5py.File(OPENED)["rows"]

    def __len__(self):
        return 2000

    def __getitem__(self, index):
        return int(self.rows[index][0])

with h5py.File("rows.h5", "w") as file:
    rows = np.repeat(np.arange(2000)[:, None], 512, axis=1)
    file.create_dataset("rows", data=rows, chunks=(4, 512), compression="gzip")
wrong = errors = 0
batches = iter(DataLoader(Rows("rows.h5"), 50, num_workers=4))
for number in range(40):
    try:
        wrong += int((next(batches) != torch.arange(number * 50, number * 50 + 50)).sum())
    except Exception as error:
        errors += 1
        print(type(error).__name__, str(error).splitlines()[-1][:90]) if errors == 1 else None
print("wrong samples:", wrong, "failed batches:", errors, "of 40")
"""
PROGRAMS["hdf5"] = HDF5.replace("OPENED", "path")
PROGRAMS["hdf5-object"] = HDF5.replace("OPENED", 'open(path, "rb")')

HEAD = """
import os, signal, sys, time
import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset
from {module} import DataLoader
"""


def outcome(name: str, module: str) -> str:
    """Return what the program printed, warned of and raised."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "program.py").write_text(HEAD.format(module=module) + PROGRAMS[name])
        command = [sys.executable, "-W", "default", "program.py"]
        if name.startswith("shm"):  # in a mount namespace of its own, with a small /dev/shm
            command = [
                "unshare",
                "-rm",
                "sh",
                "-c",
                'mount -t tmpfs -o size=16m none /dev/shm && exec "$0" "$@"',
                *command,
            ]
        with subprocess.Popen(
            command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        ) as process:
            try:
                printed, told = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                printed, told = process.communicate()
                told += f"\nDeadlock: not done after {LIMIT_S} s"
    lines = printed.splitlines()
    lines += re.findall(r"^\S+:\d+: (\w+Warning: .*)", told, re.MULTILINE)
    if process.returncode:
        raised = [
            line for line in told.splitlines() if re.match(r"[\w.]+(Error|Died|Timeout|Picklable|lock)\b.*", line)
        ]
        lines += [f"exit code {process.returncode}", *raised[-1:]]
    return "\n".join(f"    {line}" for line in lines)


if __name__ == "__main__":
    for name in sys.argv[1:] or PROGRAMS:
        for loader, module in LOADERS.items():
            print(f"{name}, {loader}\n{outcome(name, module)}")
