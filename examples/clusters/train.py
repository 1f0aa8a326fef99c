"""One training script for torchrun, SLURM and Kubernetes: it stops on SIGTERM, and continues where it stopped.

    torchrun --standalone --nproc-per-node=2 examples/clusters/train.py --folder run

Every launcher sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; the script reads nothing else.

Shows: the ranks agree after each step whether one of them got SIGTERM. Then all of them stop after the same step, and
rank 0 saves the model, the optimizer and the loader's state. The file `stopped` and the exit status 75 mean "start me
again". With `--metrics-port`, each rank serves `loader.stats().flat()` for Prometheus under `/metrics`, and `/healthz`
for a probe.

Look at: "stopped after step", and "continues after step" when you run the same command again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import feedline
from feedline.samplers import DistributedSampler

START_AGAIN = 75
"""The exit status of a rank that was told to stop. `sysexits.h` calls it EX_TEMPFAIL."""


class Points(torch.utils.data.Dataset[Any]):
    """Your dataset: here, noisy points of a line, and their numbers."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Return x, y and the number of the sample."""
        x = torch.tensor([index / self.size])
        noise = torch.from_numpy(feedline.rng().normal(0, 0.01, 1)).float()
        return x, 3 * x + 1 + noise, index


class Health:
    """What a scraper and a probe ask for. The training loop updates it, and a thread serves it."""

    def __init__(self, stuck_after_s: float) -> None:
        self.text = ""
        self.stuck_after_s = stuck_after_s
        self.stepped_s: float | None = None
        """When the last step ended; None before the first, since ranks may have to wait for each other for long."""

    def update(self, stats: feedline.Stats) -> None:
        """Take in new figures; the loader calls this every few seconds."""
        figures = {re.sub("[^a-zA-Z0-9]", "_", name): value for name, value in stats.flat().items()}
        self.text = "".join(f"{name} {value}\n" for name, value in figures.items())

    def answer(self, path: str) -> tuple[int, str]:
        """Return the status and the body for a request."""
        if path == "/metrics":
            return 200, self.text
        if path != "/healthz":
            return 404, "try /metrics or /healthz\n"
        waited_s = 0.0 if self.stepped_s is None else time.monotonic() - self.stepped_s
        return (200 if waited_s < self.stuck_after_s else 503), f"the last step ended {waited_s:.0f} s ago\n"

    def serve(self, port: int) -> ThreadingHTTPServer:
        """Serve from a thread that ends with the program."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler) -> None:  # noqa: N805  # self is the Health
                status, body = self.answer(handler.path)
                handler.send_response(status)
                handler.send_header("Content-Type", "text/plain; version=0.0.4")
                handler.end_headers()
                handler.wfile.write(body.encode())

            def log_message(handler, *_: object) -> None:  # noqa: N805
                """Leave the log of the training to the training."""

        server = ThreadingHTTPServer(("", port), Handler)
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        return server


class Stop:
    """Becomes true on every rank after the same step, once one of them got SIGTERM."""

    def __init__(self) -> None:
        self._told = False
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, *_: object) -> None:
        self._told = True
        os.write(2, b"SIGTERM: stopping after this step\n")

    def agreed(self) -> bool:
        """Ask all ranks. A few bytes over gloo, so it costs much less than the gradients."""
        told = torch.tensor([float(self._told)])
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return bool(told.item())


def save(file: Path, **values: object) -> None:
    """Write a checkpoint that is there as a whole or not at all. All ranks go through one order: rank 0 is enough."""
    if dist.get_rank() == 0:
        torch.save(values, file.with_suffix(".new"))
        os.replace(file.with_suffix(".new"), file)
    dist.barrier()


def train(options: argparse.Namespace) -> int:
    """Train on this rank, from the checkpoint on if there is one; returns the exit status."""
    health, local = Health(options.stuck_after), int(os.environ.get("LOCAL_RANK", "0"))
    if options.metrics_port:
        health.serve(options.metrics_port + local)
    has_gpu = torch.cuda.is_available()
    dist.init_process_group("cpu:gloo,cuda:nccl" if has_gpu else "gloo")
    rank, stop = dist.get_rank(), Stop()
    device = torch.device("cuda", local) if has_gpu else torch.device("cpu")

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = Points(options.samples)
    loader = feedline.DataLoader(
        dataset,
        options.batch_size,
        sampler=DistributedSampler(dataset, seed=0),
        seed=0,
        num_workers="auto" if options.workers == "auto" else int(options.workers),
        persistent_workers=options.workers != "0",
        device=device,
    )
    loader.on_stats(health.update, every_s=5)

    file, marker, step = options.folder / "checkpoint.pt", options.folder / "stopped", 0
    if file.exists():
        saved = torch.load(file, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
        if rank == 0:
            print(f"continues after step {step}", flush=True)
    dist.barrier()  # every rank has read the checkpoint
    if rank == 0:
        marker.unlink(missing_ok=True)

    def checkpoint() -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        save(file, step=step, **state)

    with contextlib.closing(loader), open(options.seen / f"rank-{rank}.txt", "a", buffering=1) as seen:
        for epoch in range(loader.state_dict()["epoch"], options.epochs):
            for x, y, numbers in loader:
                loss = torch.nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                health.stepped_s = time.monotonic()
                seen.write(f"{epoch} {' '.join(map(str, numbers.tolist()))}\n")
                stops = stop.agreed()
                if stops or step % options.save_every == 0:
                    checkpoint()
                if stops:
                    return stopped(marker, step)
            if rank == 0:
                print(f"epoch {epoch} is complete after step {step}", flush=True)
    checkpoint()
    dist.destroy_process_group()
    return 0


def stopped(marker: Path, step: int) -> int:
    """Leave a note that this was no failure; returns the exit status."""
    if dist.get_rank() == 0:
        marker.touch()
        print(f"stopped after step {step}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    return START_AGAIN


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="for checkpoints: one that all ranks see")
    parser.add_argument("--seen", type=Path, help="for the numbers of the samples that each rank has seen (--folder)")
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=4, help="of one rank")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", default="auto", help="of one rank: a number, or auto, which minds cgroup limits")
    parser.add_argument("--save-every", type=int, default=200, metavar="STEPS", help="for deaths without a signal")
    parser.add_argument(
        "--metrics-port", type=int, default=0, help="of local rank 0; rank 1 takes the next; 0 for none"
    )
    parser.add_argument("--stuck-after", type=float, default=900, metavar="SECONDS", help="when /healthz gives up")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    options.seen = options.seen or options.folder
    return train(options)


if __name__ == "__main__":
    sys.exit(main())
