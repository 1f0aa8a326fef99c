# mypy: ignore-errors
# Images of several sizes with boxes of several counts: tuple(zip(*batch)).
import torch
from torch.utils.data import DataLoader

num_workers = 2


class PennFudanDataset(torch.utils.data.Dataset):
    def __init__(self, n):
        self.imgs = list(range(n))

    def __getitem__(self, idx):
        img = torch.full((3, 6 + idx % 3, 5 + idx % 2), idx, dtype=torch.uint8)
        num_objs = idx % 4
        boxes = []
        for i in range(num_objs):
            boxes.append([i, i, i + 2, i + 3])
        boxes = torch.as_tensor(boxes, dtype=torch.float32).reshape(-1, 4)
        labels = torch.ones((num_objs,), dtype=torch.int64)
        area = (boxes[:, 3] - boxes[:, 1]) * (boxes[:, 2] - boxes[:, 0])
        target = {}
        target["boxes"] = boxes
        target["labels"] = labels
        target["image_id"] = idx
        target["area"] = area
        target["iscrowd"] = torch.zeros((num_objs,), dtype=torch.int64)
        return img, target

    def __len__(self):
        return len(self.imgs)


def collate_fn(batch):
    return tuple(zip(*batch))


dataset = PennFudanDataset(11)
indices = torch.randperm(len(dataset)).tolist()
dataset = torch.utils.data.Subset(dataset, indices[:-1])
data_loader = DataLoader(dataset, batch_size=2, shuffle=True, num_workers=num_workers, collate_fn=collate_fn)
device = torch.device("cpu")
for images, targets in data_loader:
    images = list(image.to(device) for image in images)
    targets = [{k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in t.items()} for t in targets]
    print(images, targets)


# YOLO style: the number of the image in the batch is the first column.
def yolo_collate(batch):
    imgs, targets = zip(*batch)
    boxes = []
    for i, t in enumerate(targets):
        boxes.append(torch.cat([torch.full((len(t["boxes"]), 1), float(i)), t["boxes"]], 1))
    return [img.float() for img in imgs], torch.cat(boxes, 0)


for imgs, boxes in DataLoader(dataset, batch_size=4, num_workers=num_workers, collate_fn=yolo_collate):
    print(len(imgs), boxes)
