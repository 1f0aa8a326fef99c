# mypy: ignore-errors
# Images in a folder, labels in a CSV file.
import os

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torch.utils.data import Dataset

num_workers = 2


def make_images(folder, count):
    os.makedirs(folder)
    rng = np.random.RandomState(0)
    rows = []
    for i in range(count):
        name = f"img_{i}.png"
        Image.fromarray(rng.randint(0, 256, (8, 8, 3), dtype=np.uint8)).save(os.path.join(folder, name))
        rows.append((name, i % 3))
    pd.DataFrame(rows).to_csv("labels.csv", index=False)


class CustomImageDataset(Dataset):
    def __init__(self, annotations_file, img_dir, transform=None, target_transform=None):
        self.img_labels = pd.read_csv(annotations_file)
        self.img_dir = img_dir
        self.transform = transform
        self.target_transform = target_transform

    def __len__(self):
        return len(self.img_labels)

    def __getitem__(self, idx):
        img_path = os.path.join(self.img_dir, self.img_labels.iloc[idx, 0])
        image = Image.open(img_path).convert("RGB")
        label = self.img_labels.iloc[idx, 1]
        if self.transform:
            image = self.transform(image)
        if self.target_transform:
            label = self.target_transform(label)
        return image, label


def to_tensor(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


make_images("images", 20)
training_data = CustomImageDataset("labels.csv", "images", transform=to_tensor)
train_dataloader = DataLoader(training_data, batch_size=8, shuffle=True, num_workers=num_workers)

# Display image and label.
train_features, train_labels = next(iter(train_dataloader))
print(f"Feature batch shape: {train_features.size()}")
print(f"Labels batch shape: {train_labels.size()}")
img = train_features[0].squeeze()
label = train_labels[0]
print(f"Label: {label}")

for features, labels in train_dataloader:
    print(features, labels)
