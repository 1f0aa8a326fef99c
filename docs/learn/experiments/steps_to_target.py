"""Question: how many steps does training need with batches of each size, if the learning rate is tuned for each?

It trains the network of batch_noise.py until the loss on the whole dataset falls below a target. For each batch size it
tries learning rates from a grid and keeps the one that needs the fewest steps (median of three seeds).

How to read it: while doubling the batch halves the steps, a larger batch costs no more samples. When the steps stop
falling, a larger batch only costs more samples.

    python docs/learn/experiments/steps_to_target.py
"""

# ruff: noqa: D103, T201

import json
import statistics
import sys

import torch
from batch_noise import COUNT, problem

TARGET = 0.22
RATES = [0.03125 * 2**k for k in range(10)]
LIMIT = 4000


def loss_of(weights, inputs, labels):
    first, bias, second, offset = weights
    logits = (torch.tanh(inputs @ first.T + bias) @ second.T)[:, 0] + offset
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)


def steps_needed(network, inputs, labels, size, rate, seed, limit):
    """Return after how many steps the loss over the dataset is below the target, or the limit."""
    drawn = torch.Generator().manual_seed(seed)
    weights = [value.detach().clone().requires_grad_() for value in network.parameters()]
    smooth = None
    order, at = torch.randperm(COUNT, generator=drawn), 0
    for step in range(1, limit + 1):
        if at + size > COUNT:
            order, at = torch.randperm(COUNT, generator=drawn), 0
        chosen = order[at : at + size]
        at += size
        loss = loss_of(weights, inputs[chosen], labels[chosen])
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for value, gradient in zip(weights, gradients, strict=True):
                value -= rate * gradient
            if step % 4 == 0:
                smooth = float(loss_of(weights, inputs, labels))
                if smooth < TARGET:
                    return step
                if smooth > 3:
                    return limit
    return limit


def main():
    torch.set_num_threads(1)
    network, inputs, labels = problem()
    rows = []
    for size in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
        best = (LIMIT, 0.0)
        for rate in RATES:
            first = steps_needed(network, inputs, labels, size, rate, 0, min(LIMIT, 2 * best[0]))
            if first < 1.5 * best[0] and first < LIMIT:
                others = [steps_needed(network, inputs, labels, size, rate, seed, 2 * best[0]) for seed in (1, 2)]
                best = min(best, (statistics.median([first, *others]), rate))
        print(f"batch {size:5}: {best[0]:5.0f} steps, {best[0] * size:8,.0f} samples, rate {best[1]}", flush=True)
        rows.append([size, *best])
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            json.dump(rows, file)


if __name__ == "__main__":
    main()
