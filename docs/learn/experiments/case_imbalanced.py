"""Question: what do samplers do to the classes in a batch and to recall, and what does a leak between patients hide?

Synthetic scans of 16x16 pixels: 500 patients with one to eight scans each. Each patient has an anatomy of their own,
one patient in 16 is ill, and the scans of ill patients have a faint spot. A small network is trained on three quarters.

How to read it: means over seeds, on validation data with its natural share of ill patients. Recall and precision are at
a probability of 0.5; AUC is the chance that an ill scan is ranked above a healthy one, whatever the threshold.

    python docs/learn/experiments/case_imbalanced.py
"""

# ruff: noqa: D103, T201

import numpy as np
import torch

import feedline
from feedline import DataLoader
from feedline.samplers import BalancedSampler, StratifiedBatchSampler, WeightedRandomSampler

BATCH, EPOCHS, SEEDS = 32, 6, 5


class Scans(torch.utils.data.Dataset):
    """Scans of patients; an item is (pixels, label)."""

    def __init__(self, patients=500, ill_share=1 / 16, seed=0):
        drawn = np.random.default_rng(seed)
        counts = drawn.integers(1, 9, patients)
        ill = drawn.permutation(patients) < round(patients * ill_share)
        self.patient = np.repeat(np.arange(patients), counts)
        self.label = ill[self.patient].astype(np.int64)
        anatomy = drawn.normal(size=(patients, 16, 16))
        spot = np.zeros((16, 16))
        spot[5:11, 5:11] = 0.45
        noise = drawn.normal(size=(len(self.patient), 16, 16)) * 0.6
        self.pixels = (anatomy[self.patient] + noise + spot * self.label[:, None, None]).astype(np.float32)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, index):
        return self.pixels[index], self.label[index]


def orders(labels, seed):
    """Return arguments of a loader for each way to draw samples."""
    weights = (1 / np.bincount(labels))[labels]
    return {
        "shuffle": {"batch_size": BATCH, "shuffle": True, "seed": seed},
        "weighted": {"batch_size": BATCH, "sampler": WeightedRandomSampler(weights, len(labels), seed=seed)},
        "balanced": {"batch_size": BATCH, "sampler": BalancedSampler(labels, seed=seed)},
        "proportional": {"batch_sampler": StratifiedBatchSampler(labels, BATCH, seed=seed)},
        "each": {"batch_sampler": StratifiedBatchSampler(labels, BATCH, mode="each", seed=seed)},
    }


def train(loader, *, positive_weight=1.0, seed=0, epochs=EPOCHS):
    torch.manual_seed(seed)
    network = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(256, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1), torch.nn.Flatten(0)
    )
    optimizer = torch.optim.AdamW(network.parameters(), 2e-3, weight_decay=0.05)
    loss = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(positive_weight))
    for _ in range(epochs):
        for pixels, labels in loader:
            optimizer.zero_grad()
            loss(network(pixels), labels.float()).backward()
            optimizer.step()
    return network


def scores(network, part):
    """Return recall, precision and AUC on every sample of a part, each once and in order."""
    batches = DataLoader(part, batch_size=256)
    with torch.no_grad():
        pairs = [(torch.sigmoid(network(pixels)), labels) for pixels, labels in batches]
    chance, labels = (torch.cat(values) for values in zip(*pairs, strict=True))
    called, ill = chance > 0.5, labels == 1
    right = int((called & ill).sum())
    above = (chance[ill][:, None] > chance[~ill][None]).float().mean()
    return right / int(ill.sum()), right / max(1, int(called.sum())), float(above), float(chance.mean())


def main():
    torch.set_num_threads(1)
    scans = Scans()
    print(f"{len(scans)} scans of 500 patients, {scans.label.mean():.1%} ill")
    training, validation = feedline.split(scans, [0.75, 0.25], groups=scans.patient, seed=1)
    labels = scans.label[training.indices]
    print(f"training {len(labels)} scans, {labels.sum()} ill; validation {len(validation)} scans, ", end="")
    print(f"{scans.label[validation.indices].sum()} ill")
    print("positives in a batch: mean, least, most, share of batches without; distinct scans used of ill, of healthy")
    for name, given in orders(labels, 0).items():
        loader = DataLoader(
            torch.utils.data.TensorDataset(torch.from_numpy(labels), torch.arange(len(labels))), **given
        )
        counts, used = [], []
        for found, index in loader:
            counts.append(int(found.sum()))
            used.append(index)
        used = torch.cat(used).numpy()
        distinct = np.unique(used)
        ill = int(labels[distinct].sum())
        none = np.mean([count == 0 for count in counts])
        print(
            f"  {name:13} {np.mean(counts):5.1f} {min(counts):3} {max(counts):3} {none:5.0%}  {ill} of {labels.sum()}, "
            f"{len(distinct) - ill} of {(1 - labels).sum()}; {len(used)} samples in {len(counts)} batches"
        )
    print("recall, precision, AUC, mean probability (validation, split by patient)")
    rows = {}
    for seed in range(SEEDS):
        training, validation = feedline.split(scans, [0.75, 0.25], groups=scans.patient, seed=seed)
        labels = scans.label[training.indices]
        for name, given in orders(labels, seed).items():
            network = train(DataLoader(training, **given), seed=seed)
            rows.setdefault(name, []).append(scores(network, validation))
        weight = float((1 - labels).sum() / labels.sum())
        plain = DataLoader(training, **orders(labels, seed)["shuffle"])
        rows.setdefault("loss weight", []).append(scores(train(plain, positive_weight=weight, seed=seed), validation))
        leaky, held = feedline.split(scans, [0.75, 0.25], stratify=scans.label, seed=seed)
        network = train(DataLoader(leaky, **orders(scans.label[leaky.indices], seed)["balanced"]), seed=seed)
        rows.setdefault("balanced, leaky split", []).append(scores(network, held))
    for name, found in rows.items():
        print(f"  {name:22}" + "".join(f"{value:7.2f}" for value in np.mean(found, axis=0)))
    shared = set(scans.patient[leaky.indices]) & set(scans.patient[held.indices])
    print(f"patients of the leaky split's validation part that training has seen, too: {len(shared)} of ", end="")
    print(len(set(scans.patient[held.indices])))


if __name__ == "__main__":
    main()
