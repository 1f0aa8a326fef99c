"""Question: how long does a GPU work, and how long does it wait, when one loop loads, copies and computes?

It makes JPEG files of 500x375 pixels and trains a ResNet-50 on them: bfloat16, channels last, batches of 256. First it
times the three parts of a step separately, each with a synchronisation before and after. Then it runs whole loops: the
naive one, and torch's loader with more and more workers. It needs a GPU, Pillow and torchvision.

How to read it: `busy` is the time that the same number of steps takes on a batch that lies on the GPU already, divided
by the time that the loop took.

    python docs/learn/experiments/naive_loop.py
"""

# ruff: noqa: D101, D103, T201

import itertools
import os
import statistics
import tempfile
import time

import numpy as np
import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms

BATCH, FILES, STEPS = 256, 2048, 6


def write_files(folder: str) -> list[str]:
    noise, paths = np.random.default_rng(0), []
    for number in range(FILES):
        coarse = Image.fromarray(noise.integers(0, 256, (47, 63, 3), dtype=np.uint8)).resize((500, 375), Image.BICUBIC)
        pixels = np.asarray(coarse) + noise.normal(0, 8, (375, 500, 3))
        paths.append(os.path.join(folder, f"{number}.jpg"))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(paths[-1], quality=90)
    return paths


class Photos(torch.utils.data.Dataset):
    def __init__(self, paths):
        self.paths = paths
        normalize = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        crop, flip = transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()
        self.transform = transforms.Compose([crop, flip, transforms.ToTensor(), normalize])

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB")), index % 1000


def main():
    torch.set_num_threads(1)
    paths = write_files(tempfile.mkdtemp())
    print(torch.__version__, torch.cuda.get_device_name(), os.cpu_count(), "cores;", end=" ")
    print(f"{sum(map(os.path.getsize, paths)) / FILES / 1e3:.0f} KB per file")
    data = Photos(paths)
    net = torchvision.models.resnet50().to("cuda", torch.bfloat16, memory_format=torch.channels_last)
    sgd = torch.optim.SGD(net.parameters(), 0.1, 0.9)

    def train(x, y):
        x = x.to(torch.bfloat16, memory_format=torch.channels_last)
        loss = torch.nn.functional.cross_entropy(net(x), y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()

    def load(number):
        chosen = [data[(number * BATCH + k) % FILES] for k in range(BATCH)]
        return torch.utils.data.default_collate(chosen)

    def timed(function, *given):
        torch.cuda.synchronize()
        began = time.perf_counter()
        result = function(*given)
        torch.cuda.synchronize()
        return result, time.perf_counter() - began

    def copy(x, y):
        return x.cuda(), y.cuda()

    def consume(batches):
        for x, y in batches:
            train(x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True))

    held = copy(*load(0))
    for _ in range(5):
        timed(train, *held)
    parts = [(timed(load, k), timed(copy, *load(k)), timed(train, *held)) for k in range(STEPS)]
    load_s, copy_s, train_s = (statistics.median(part[k][1] for part in parts) for k in range(3))
    x, y = load(0)
    pinned = x.pin_memory(), y.pin_memory()
    pinned_s = statistics.median(timed(copy, *pinned)[1] for _ in range(STEPS))
    _, many_s = timed(lambda: [train(*held) for _ in range(50)])
    print(f"bytes of a batch {x.nbytes / 1e6:.1f} MB")
    print(f"load {load_s * 1e3:.0f} ms, copy {copy_s * 1e3:.1f} ms, copy pinned {pinned_s * 1e3:.1f} ms, ", end="")
    print(f"train {train_s * 1e3:.1f} ms, 50 steps in a row {many_s / 50 * 1e3:.1f} ms each")
    _, naive_s = timed(lambda: [train(*copy(*load(k))) for k in range(STEPS)])
    print(f"naive loop: {naive_s / STEPS * 1e3:.0f} ms per step, busy {many_s / 50 / (naive_s / STEPS):.1%}")
    for workers in (1, 2, 4, 8, 12, 16):
        steps = 6 * workers
        order = [k % FILES for k in range(BATCH * (steps + workers))]
        loader = DataLoader(data, BATCH, sampler=order, num_workers=workers, pin_memory=True)
        batches = iter(loader)
        consume(itertools.islice(batches, workers))  # these wait for the workers to start
        _, loop_s = timed(consume, batches)
        print(f"{workers} workers: {loop_s / steps * 1e3:.0f} ms per step, busy {many_s / 50 / (loop_s / steps):.1%}")


if __name__ == "__main__":
    main()
