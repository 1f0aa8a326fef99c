"""SpeechBrain's loader and its checkpoints: reports the samples before a checkpoint, and after loading it."""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import torch
import torch.utils.data

from tests.frameworks_real.bases import use_base, without

use_base(sys.argv[1])
without("torchaudio")

from speechbrain.dataio.dataloader import make_dataloader  # noqa: E402
from speechbrain.utils.checkpoints import Checkpointer  # noqa: E402


class Numbers(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> int:
        return index


def resumed(taken: int, epoch: int, options: dict[str, Any]) -> dict[str, Any]:
    """Save after `taken` batches, load into another loader, and continue in this epoch and the next one."""

    def make() -> Any:
        loader = make_dataloader(Numbers(), batch_size=2, **options)
        if options["shuffle"]:
            loader.sampler.set_epoch(epoch)
        return loader

    first, second = make(), make()
    with tempfile.TemporaryDirectory() as folder:
        batches = iter(first)
        got = [next(batches).tolist() for _ in range(taken)]
        Checkpointer(folder, {"loader": first}).save_checkpoint(end_of_epoch=False)
        del batches
        Checkpointer(folder, {"loader": second}).recover_if_possible()
        batches = iter(second)
        rest = [batch.tolist() for batch in batches]
        return {"got": got, "rest": rest, "count": batches._num_yielded, "next": [batch.tolist() for batch in second]}


def main() -> None:
    answers = {
        f"{shuffle} {workers} {epoch} {taken}": resumed(taken, epoch, {"shuffle": shuffle, "num_workers": workers})
        for shuffle, workers, epoch, taken in [
            (False, 0, 0, 2),
            (True, 0, 0, 0),
            (True, 0, 1, 2),
            (True, 0, 1, 6),
            (True, 2, 1, 3),
        ]
    }
    print(json.dumps(answers))  # noqa: T201


if __name__ == "__main__":
    main()
