"""Question: how does the variance of a mini-batch gradient depend on the batch size?

It computes the gradient of every one of 4,096 samples of a small network, at its starting weights and after some
training. The gradient of a batch is the mean of the gradients of its samples. For each batch size it draws batches in
two ways, with replacement and as an epoch does (a shuffled order cut into batches), and compares the mean squared
distance to the gradient of the whole dataset with the formulas: V / B, and V / B * (N - B) / (N - 1).

How to read it: `bias` is the distance between the mean of all batches of all epochs and the gradient of the dataset,
divided by the length of the latter: without replacement it is 0 but for rounding.

    python docs/learn/experiments/batch_noise.py
"""

# ruff: noqa: D103, T201

import json
import sys

import torch
from torch.func import functional_call, grad, vmap

from feedline import Loader

COUNT = 4096
SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]


def problem():
    """Return a small network and a dataset of two noisy classes."""
    torch.manual_seed(0)
    inputs = torch.randn(COUNT, 16)
    hidden = torch.tanh(inputs @ torch.randn(16, 8)) @ torch.randn(8)
    labels = ((hidden + torch.randn(COUNT)) > 0).float()
    network = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    return network, inputs, labels


def sample_gradients(network, inputs, labels):
    """Return one row per sample: the gradient of its loss."""
    weights = {name: value.detach() for name, value in network.named_parameters()}

    def loss(weights, x, y):
        logit = functional_call(network, weights, (x[None],))[0, 0]
        return torch.nn.functional.binary_cross_entropy_with_logits(logit, y)

    rows = vmap(grad(loss), in_dims=(None, 0, 0), chunk_size=512)(weights, inputs, labels)
    return torch.cat([part.flatten(1) for part in rows.values()], dim=1).double()


def noise(rows, size, batches):
    """Return the mean squared distance of batches of this size from the whole, with and without replacement."""
    whole = rows.mean(0)
    drawn = torch.Generator().manual_seed(size)
    squares = [
        float((rows[torch.randint(COUNT, (size,), generator=drawn)].mean(0) - whole).square().sum())
        for _ in range(batches)
    ]
    loader = Loader(range(COUNT), size, shuffle=True, seed=size)
    means, epochs = [], max(1, batches * size // COUNT)
    for _ in range(epochs):
        means += [rows[torch.as_tensor(batch)].mean(0) for batch in loader]
    gathered = torch.stack(means)
    bias = float((gathered.mean(0) - whole).norm() / whole.norm())
    return sum(squares) / batches, float((gathered - whole).square().sum(1).mean()), bias


def main():
    torch.set_num_threads(1)
    network, inputs, labels = problem()
    results = {}
    for name in ("at the start", "after training"):
        rows = sample_gradients(network, inputs, labels)
        whole = rows.mean(0)
        variance = float((rows - whole).square().sum(1).mean())
        scale = variance / float(whole.square().sum())
        print(f"{name}: V = {variance:.3f}, |G|^2 = {float(whole.square().sum()):.5f}, V / |G|^2 = {scale:.0f}")
        print("  batch   V/B      replaced  V/B*(N-B)/(N-1)  epoch     bias")
        for size in SIZES:
            replaced, epoch, bias = noise(rows, size, max(60, min(400, 30_000 // size)))
            law, finite = variance / size, variance / size * (COUNT - size) / (COUNT - 1)
            print(f"  {size:5}  {law:.6f}  {replaced:.6f}  {finite:.6f}         {epoch:.6f}  {bias:.0e}")
            results.setdefault(name, []).append([size, law, replaced, finite, epoch])
        optimizer = torch.optim.SGD(network.parameters(), 0.5)
        for _ in range(300):
            loss = torch.nn.functional.binary_cross_entropy_with_logits(network(inputs)[:, 0], labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main()
