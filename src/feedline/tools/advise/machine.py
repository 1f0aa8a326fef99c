"""Interpret the details about a machine for a loader, and recommend changes. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Iterator

from feedline.system import cuda_queues
from feedline.system.sizes import bytes_text
from feedline.tools.advise.finding import Finding
from feedline.tools.measure.machine import Machine

OLDEST_TORCH = (2, 4)
LOADER_FILES = 5  # measured on Linux: a selector, the arena, a pipe for stacks
WORKER_FILES = 5  # a socket pair, two of multiprocessing's, one of the process
FEW_FILES = 1024  # the default of most systems; a program with many files and loaders comes close
FEW_PROCESSES = 512  # a guess: threads count, too, and a program with torch has a few dozen
SMALL_SHARED_BYTES = 1 << 30  # torch's prefetched batches of images do not fit into less
DEFAULT_CUDA_QUEUES = 8
LITTLE_MEMORY = 0.1  # as a share of what the process may use


def find(machine: Machine) -> list[Finding]:
    """Return findings on what the details mean for a loader, and what to change."""
    return [
        _cores(machine),
        *_memory(machine),
        _shared_memory(machine),
        *_open_files(machine),
        _processes(machine),
        _addresses(machine),
        _files(machine),
        _engine(machine),
        _start_method(machine),
        *_torch(machine),
    ]


def _cores(machine: Machine) -> Finding:
    cores = machine.cores
    if machine.cpu_quota is not None:
        cores = max(1, min(cores, int(machine.cpu_quota)))
    less = f" of the machine's {machine.machine_cores}" if cores < machine.machine_cores else ""
    ranks = f", shared by {machine.local_ranks} ranks" if machine.local_ranks > 1 else ""
    found = f"{cores} core{'' if cores == 1 else 's'}{less} for this process{ranks}"
    workers = cores // machine.local_ranks
    if workers > 1:
        return Finding(
            "cores",
            f"{found}: up to {workers} workers.",
            evidence='More workers help only if samples wait for I/O; num_workers="auto" measures that',
        )
    more = " Or request more cores: taskset, the container's --cpus, the job's request." if less else ""
    return Finding(
        "cores",
        f"{found}.",
        f"Workers compete with the training loop: use num_workers=0.{more}",
    )


def _memory(machine: Machine) -> Iterator[Finding]:
    limit, total, free = machine.memory_limit_bytes, machine.memory_bytes, machine.free_bytes
    if limit is None or total is None:
        return
    whose = (
        f"{bytes_text(limit)} of the machine's {bytes_text(total)} (control group)"
        if limit < total
        else bytes_text(total)
    )
    budget = f"Batches in flight may take {bytes_text(limit // 4 // machine.local_ranks)} of it (memory_budget)"
    advice = None
    if free is not None and free < limit * LITTLE_MEMORY:
        advice = (
            f"Only {bytes_text(free)} is free right now, and the system kills processes when memory runs out. Stop "
            f"other programs here, or use fewer workers and memory_budget={max(free // 4, 1)}."
        )
    yield Finding("memory", f"{whose}.", advice, evidence=budget)


def _shared_memory(machine: Machine) -> Finding:
    size = machine.shared_bytes
    found = "no /dev/shm" if size is None else f"{bytes_text(size)} in /dev/shm"
    is_small = size is None or size < SMALL_SHARED_BYTES
    if machine.shares_arenas:
        torch = "; torch's own loader needs more (docker run --shm-size=8g)" if is_small else ""
        return Finding("shared memory", f"{found}.", evidence=f"feedline does not use it{torch}")
    if not is_small or not machine.system.startswith("Linux"):
        return Finding("shared memory", f"{found}.")
    return Finding(
        "shared memory",
        f"{found}.",
        "Give the container more: docker run --shm-size=8g.",
        evidence="The portable process engine puts large batches there; those that do not fit go through a pipe",
    )


def _open_files(machine: Machine) -> Iterator[Finding]:
    limit, most = machine.open_files, machine.open_files_most
    if limit is None:
        return
    found, taken = f"{limit} (ulimit -n).", f"A loader takes {LOADER_FILES}, each worker {WORKER_FILES}, a batch none"
    if limit >= FEW_FILES:
        yield Finding("open files", found, evidence=taken)
        return
    workers = max(1, (limit // 2 - LOADER_FILES) // WORKER_FILES)  # the other half is for the program
    if most is not None and most <= limit:
        advice = f"The hard limit is no higher: use at most {workers} workers, or ask an administrator to raise it."
    else:
        advice = f"Run `ulimit -n {min(most or 65536, 65536)}` in the shell, or use at most {workers} workers."
    yield Finding("open files", found, advice, evidence=taken)


def _processes(machine: Machine) -> Finding:
    limit = machine.processes
    if limit is None:
        return Finding("processes", "No limit (ulimit -u).")
    found = f"{limit} (ulimit -u, or the container's limit); threads count."
    if limit >= FEW_PROCESSES:
        return Finding("processes", found)
    return Finding("processes", found, "Raise it (`ulimit -u`, docker run --pids-limit), or use few workers.")


def _addresses(machine: Machine) -> Finding:
    limit = machine.address_bytes
    if limit is None:
        return Finding("addresses", "No limit (ulimit -v).")
    return Finding(
        "addresses",
        f"{bytes_text(limit)} (ulimit -v).",
        "Run `ulimit -v unlimited`. A control group limits memory better: it counts only memory in use.",
        evidence="Buffers for batches reserve address space, little of which becomes memory",
    )


def _files(machine: Machine) -> Finding:
    limit = machine.file_bytes
    if limit is None:
        return Finding("size of files", "No limit (ulimit -f).")
    return Finding(
        "size of files",
        f"{bytes_text(limit)} (ulimit -f).",
        "Run `ulimit -f unlimited`, or use engine='thread'.",
        evidence="The limit applies to shared memory, too: no batch of a worker process can be larger, and slots are "
        "smaller, so more batches are copied",
    )


def _engine(machine: Machine) -> Finding:
    if machine.shares_arenas:
        return Finding("process engine", "Workers write batches into one shared arena.")
    found = "The portable one, which is as fast as torch's loader."
    each = "Each large batch is sent in its own block of shared memory"
    if machine.system.startswith("Linux"):
        return Finding(
            "process engine",
            found,
            "The kernel is older than 5.3, or a sandbox forbids memfd_create or pidfd_open: allow them, or use "
            "engine='thread'.",
            evidence=each,
        )
    return Finding("process engine", found, evidence=f"{each}. The shared arena needs Linux")


def _start_method(machine: Machine) -> Finding:
    if machine.start_method == "fork":
        return Finding("start method", "fork by default: workers inherit the dataset, nothing is pickled.")
    return Finding("start method", f"{machine.start_method} by default: dataset and functions must be picklable.")


def _torch(machine: Machine) -> Iterator[Finding]:
    if machine.torch_trouble is not None:
        yield Finding(
            "torch",
            "torch is installed, but it cannot be imported.",
            "Reinstall it: pip install --force-reinstall torch. feedline.Loader works without it.",
            evidence=machine.torch_trouble,
        )
        return
    if machine.torch is None:
        yield Finding("torch", "Not installed: feedline.Loader works, feedline.DataLoader needs it.")
        return
    oldest = ".".join(map(str, OLDEST_TORCH))
    is_old = _version(machine.torch) < OLDEST_TORCH
    yield Finding("torch", machine.torch, f"feedline needs {oldest} or later: upgrade torch." if is_old else None)
    if machine.devices:
        yield Finding("CUDA", f"{machine.cuda}. Use pin_memory=True.", evidence=", ".join(machine.devices))
    else:
        yield Finding("CUDA", "No device: pin_memory=True has no effect.")
    yield _device(machine)


def _device(machine: Machine) -> Finding:
    """Return what `device=` does on this machine."""
    if not machine.devices:
        return Finding("device", 'No GPU: device="cpu" leaves batches where they are.')
    if not machine.decodes_jpegs:
        return Finding(
            "device",
            'device="cuda" copies batches. Workers decode: nvJPEG is not installed.',
            "Run `pip install 'feedline[gpu]'`; then the GPU decodes the files of feedline.images pipelines.",
        )
    queues = machine.cuda_queues
    is_narrow = queues is not None and queues.isdigit() and int(queues) <= DEFAULT_CUDA_QUEUES
    return Finding(
        "device",
        'device="cuda" copies batches ahead of time, and decodes JPEG files.',
        f"Set {cuda_queues.VARIABLE}=32 instead of {queues}, or decoding may wait for training kernels. Keep it if "
        "your training framework needs that value."
        if is_narrow
        else None,
        evidence="The files of feedline.images pipelines are decoded there",
    )


def _version(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
