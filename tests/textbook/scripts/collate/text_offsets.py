# mypy: ignore-errors
# Text classification: labels, one long tensor of words, and offsets.
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataset import random_split

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
reviews = [(i % 4 + 1, " ".join(f"w{(i * j) % 17}" for j in range(1, 3 + i % 5))) for i in range(30)]
vocab = {}
for _, sentence in reviews:
    for word in sentence.split():
        vocab.setdefault(word, len(vocab))

text_pipeline = lambda x: [vocab[word] for word in x.split()]  # noqa: E731
label_pipeline = lambda x: int(x) - 1  # noqa: E731


def collate_batch(batch):
    label_list, text_list, offsets = [], [], [0]
    for _label, _text in batch:
        label_list.append(label_pipeline(_label))
        processed_text = torch.tensor(text_pipeline(_text), dtype=torch.int64)
        text_list.append(processed_text)
        offsets.append(processed_text.size(0))
    label_list = torch.tensor(label_list, dtype=torch.int64)
    offsets = torch.tensor(offsets[:-1]).cumsum(dim=0)
    text_list = torch.cat(text_list)
    return label_list.to(device), text_list.to(device), offsets.to(device)


num_train = int(len(reviews) * 0.9)
split_train_, split_valid_ = random_split(reviews, [num_train, len(reviews) - num_train])
train_dataloader = DataLoader(split_train_, batch_size=8, shuffle=True, collate_fn=collate_batch)
valid_dataloader = DataLoader(split_valid_, batch_size=8, shuffle=True, collate_fn=collate_batch)

model = torch.nn.EmbeddingBag(len(vocab), 4)
criterion = torch.nn.CrossEntropyLoss()

for epoch in range(1, 3):
    total_acc, total_count = 0, 0
    for idx, (label, text, offsets) in enumerate(train_dataloader):
        model.zero_grad()
        predicted_label = model(text, offsets)
        loss = criterion(predicted_label, label)
        loss.backward()
        with torch.no_grad():
            for param in model.parameters():
                param -= 0.5 * param.grad
        total_acc += (predicted_label.argmax(1) == label).sum().item()
        total_count += label.size(0)
        print(f"| epoch {epoch:3d} | {idx:5d}/{len(train_dataloader):5d} | accuracy {total_acc / total_count:8.3f}")
for batch in valid_dataloader:
    print(batch)
