# mypy: ignore-errors
# Functions train(dataloader, ...) and test(dataloader, ...); lengths of loader and dataset; a dict of loaders.
import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data import TensorDataset

num_workers = 2
device = "cuda" if torch.cuda.is_available() else "cpu"
training_data = TensorDataset(torch.randn(50, 6), torch.randint(0, 4, (50,)))
test_data = TensorDataset(torch.randn(18, 6), torch.randint(0, 4, (18,)))
datasets = {"train": training_data, "val": test_data}
dataloaders = {
    x: DataLoader(datasets[x], batch_size=16, shuffle=True, num_workers=num_workers) for x in ["train", "val"]
}
dataset_sizes = {x: len(dataloaders[x].dataset) for x in ["train", "val"]}
for X, y in dataloaders["val"]:
    print(f"Shape of X [N, C]: {X.shape}")
    print(f"Shape of y: {y.shape} {y.dtype}")
    break

model = nn.Linear(6, 4).to(device)
loss_fn = nn.CrossEntropyLoss()


def train(dataloader, model, loss_fn):
    size = len(dataloader.dataset)
    model.train()
    for batch, (X, y) in enumerate(dataloader):
        X, y = X.to(device), y.to(device)
        loss = loss_fn(model(X), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad.zero_()
        loss, current = loss.item(), (batch + 1) * len(X)
        print(f"loss: {loss:>7f}  [{current:>5d}/{size:>5d}]")


def test(dataloader, model, loss_fn):
    size = len(dataloader.dataset)
    num_batches = len(dataloader)
    model.eval()
    test_loss, correct = 0, 0
    with torch.no_grad():
        for X, y in dataloader:
            X, y = X.to(device), y.to(device)
            pred = model(X)
            test_loss += loss_fn(pred, y).item()
            correct += (pred.argmax(1) == y).type(torch.float).sum().item()
    test_loss /= num_batches
    correct /= size
    print(f"Test Error: \n Accuracy: {(100 * correct):>0.1f}%, Avg loss: {test_loss:>8f} \n")


for t in range(2):
    print(f"Epoch {t + 1}\n-------------------------------")
    train(dataloaders["train"], model, loss_fn)
    test(dataloaders["val"], model, loss_fn)
print(dataset_sizes)
