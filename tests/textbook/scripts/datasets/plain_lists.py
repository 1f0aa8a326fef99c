# mypy: ignore-errors
# Lists, pandas columns and arrays in the place of datasets.
import numpy as np
import pandas as pd
from torch.utils.data import DataLoader
from torch.utils.data import Dataset


class CustomTextDataset(Dataset):
    def __init__(self, txt, labels):
        self.labels = labels
        self.text = txt

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        label = self.labels[idx]
        text = self.text[idx]
        sample = {"Text": text, "Class": label}
        return sample


text = ["Happy", "Amazing", "Sad", "Unhappy", "Glum"]
labels = ["Positive", "Positive", "Negative", "Negative", "Negative"]
frame = pd.DataFrame({"Text": text, "Labels": labels})
TD = CustomTextDataset(frame["Text"], frame["Labels"])
print("\nFirst iteration of data set: ", next(iter(TD)), "\n")
print("Length of data set: ", len(TD), "\n")
print("Entire data set: ", list(DataLoader(TD)), "\n")

DL_DS = DataLoader(TD, batch_size=2, shuffle=True)
for idx, batch in enumerate(DL_DS):
    print(idx, "Text data: ", batch["Text"])
    print(idx, "Class data: ", batch["Class"], "\n")

print(list(DataLoader(list(zip(text, range(5))), batch_size=3)))
print(list(DataLoader(range(5), batch_size=2)))
print(list(DataLoader(np.eye(3), batch_size=2)))
print([batch for batch in DataLoader("abcde", batch_size=2)])
