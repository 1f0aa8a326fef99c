"""What users do with batches. Those of workers are views of memory that is reused, which must never be visible."""

import copy
import io
import itertools
import multiprocessing
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing
import torch.utils.dlpack
from torch import Tensor

import feedline
from tests.parity import datasets
from tests.parity.sides import Side, same

pytestmark = pytest.mark.workers(1)

N = 40  # with two samples per batch, ten times as many batches as a worker has in flight

Derive = Callable[[Any], Any]  # Any: everything that can be derived from a batch


class Rows(datasets.Squares):
    """Rows large enough for shared memory rather than a message."""

    def __getitem__(self, index: int) -> Tensor:
        return torch.arange(512, dtype=torch.float32) + 1000 * index


def rows(side: Side, **options: Any) -> Any:
    return side.loader(Rows(N), batch_size=2, **options)


def checksum(value: Any) -> list[float]:
    """A few numbers that tell one batch from another."""
    flat = torch.as_tensor(np.asarray(value)).double().flatten()
    return [float(flat[0]), float(flat[-1]), float(flat.sum()), float(flat.numel())]


# Keeping batches


@same
def test_keeping_all_batches_over_several_epochs(side: Side) -> object:
    loader = rows(side, shuffle=True)
    return [checksum(batch) for batch in [*loader, *loader, *loader]]


def test_keeping_more_than_the_memory_budget() -> None:
    """Beyond the budget, ordinary memory is used; nothing waits for batches that the user keeps."""
    loader = feedline.DataLoader(Rows(N), batch_size=2, num_workers=2, engine="process", memory_budget=64 * 1024)
    kept = list(loader)
    expected = torch.stack([Rows(N)[index] for index in range(N)])
    assert torch.equal(torch.cat(kept), expected)


# Objects derived from a batch keep its memory


DERIVED: dict[str, Derive] = {
    "the batch": lambda batch: batch,
    "a row": lambda batch: batch[0],
    "a slice": lambda batch: batch[:, 10:20],
    "viewed as bytes": lambda batch: batch.view(torch.uint8),
    "one of an iteration": lambda batch: list(batch)[1],
    "as NumPy": lambda batch: batch.numpy(),
    "NumPy and back": lambda batch: torch.from_numpy(batch.numpy()),
    "dlpack": lambda batch: torch.utils.dlpack.from_dlpack(batch),
    "as a subclass": lambda batch: batch.as_subclass(datasets.TaggedTensor),
    "a parameter": lambda batch: torch.nn.Parameter(batch).data,
    "from its storage": lambda batch: torch.empty(0).set_(batch.untyped_storage(), 0, (2, 512), (512, 1)),
    "deep copy": copy.deepcopy,
}


@same
def test_derived_objects_outlive_the_batch(side: Side) -> object:
    kept = []
    for batch, derive in zip(side.loader(Rows(4 * N), batch_size=2), itertools.cycle(DERIVED.values()), strict=False):
        kept.append(derive(batch))
        del batch
    return [checksum(part) for part in kept]


# Changing batches in place


@same
def test_changing_a_batch_in_place_changes_no_other(side: Side) -> object:
    kept = []
    for batch in rows(side):
        batch.mul_(2).add_(1)
        batch[0].zero_()
        kept.append(batch)
    return [checksum(batch) for batch in kept]


# Tensors of one batch that share memory keep sharing it


@same
def test_views_of_one_tensor_in_a_batch_stay_views_of_it(side: Side) -> object:
    seen = []
    for base, part, transposed, column in side.loader(datasets.Squares(6), batch_size=2, collate_fn=datasets.to_views):
        base.fill_(9)
        seen.append((part.tolist(), transposed.tolist(), column.tolist()))
    return seen


@same
def test_a_tensor_that_occurs_twice_in_a_batch_stays_one(side: Side) -> object:
    def twice(samples: list[Tensor]) -> Any:
        stacked = torch.stack(samples)
        return {"one": stacked, "two": stacked, "list": [stacked]}

    return [
        (batch["one"] is batch["two"], batch["one"] is batch["list"][0])
        for batch in side.loader(datasets.Squares(6), batch_size=2, collate_fn=twice)
    ]


# Sizes of saved batches


@same
def test_saving_a_batch_does_not_save_the_memory_around_it(side: Side) -> object:
    sizes = []
    for batch in itertools.islice(rows(side), 4):
        buffer = io.BytesIO()
        torch.save(batch, buffer)
        sizes.append((len(buffer.getvalue()) // 1024, len(pickle.dumps(batch)) // 1024))
        buffer.seek(0)
        assert torch.equal(torch.load(buffer), batch)
    return sizes


# Other processes and threads


@same
def test_sharing_a_batch_with_a_child_process(side: Side) -> object:
    context = multiprocessing.get_context("fork")
    seen = []
    for batch in itertools.islice(rows(side), 2):
        shared = batch.share_memory_()
        child = context.Process(target=shared.fill_, args=(5.0,))
        child.start()
        child.join()
        seen.append((shared.is_shared(), shared is batch, checksum(batch)))
    return seen


def answer_with_checksums(received: Any, answers: Any) -> None:
    for batch in iter(received.get, None):
        answers.put(checksum(batch))


@same
def test_sending_batches_to_another_process(side: Side) -> object:
    context = torch.multiprocessing.get_context("fork")
    sent, answers = context.SimpleQueue(), context.SimpleQueue()
    child = context.Process(target=answer_with_checksums, args=(sent, answers))
    child.start()
    results = []
    for batch in itertools.islice(rows(side), 4):
        sent.put(batch)
        results.append(answers.get())
    sent.put(None)
    child.join()
    sent.close()
    answers.close()
    return results


@same
def test_dropping_batches_in_a_forked_child_does_not_affect_the_parent(side: Side) -> object:
    context = multiprocessing.get_context("fork")
    iterator = iter(rows(side))
    kept = [next(iterator) for _ in range(3)]
    child = context.Process(target=kept.clear)  # the child's copy of the list
    child.start()
    child.join()
    rest = [checksum(batch) for batch in iterator]
    return [checksum(batch) for batch in kept], rest
