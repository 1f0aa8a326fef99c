from __future__ import annotations

import numpy as np
import pytest
import torch

from feedline import collate
from feedline.audio import length_mask
from tests.audio.sounds import sound


@pytest.mark.parametrize("kind", ["numpy", "torch", "list"])
def test_the_mask_is_true_where_there_is_sound(kind: str) -> None:
    lengths = {"numpy": np.array([2, 0, 3]), "torch": torch.tensor([2, 0, 3]), "list": [2, 0, 3]}[kind]
    mask = length_mask(lengths, 4)
    assert isinstance(mask, torch.Tensor) == (kind == "torch")
    assert mask.tolist() == [[True, True, False, False], [False] * 4, [True, True, True, False]]
    assert length_mask(lengths).shape == (3, 3)


def test_the_mask_of_a_padded_batch() -> None:
    padded, labels, lengths = collate.pad(axis=-1)([(sound(0.2), 1), (sound(0.1), 0)])
    assert padded.shape == (2, 1, 3200)
    assert labels.tolist() == [1, 0]
    mask = length_mask(lengths, padded.shape[-1])
    assert not padded[:, 0][~mask].any()
    assert np.array_equal(padded[:, 0][mask], np.concatenate([sound(0.2)[0], sound(0.1)[0]]))


def test_the_mask_of_an_empty_batch_is_empty() -> None:
    assert length_mask(torch.zeros(0, dtype=torch.int64)).shape == (0, 0)
    assert length_mask([]).shape == (0, 0)
