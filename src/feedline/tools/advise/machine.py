"""What the facts about a machine mean for a loader, and what to change. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Iterator

from feedline.system import cuda_queues
from feedline.system.shown import counted
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
        *_limits(machine),
        *_workers(machine),
        *_torch(machine),
    ]


def _cores(machine: Machine) -> Finding:
    cores = machine.cores
    if machine.cpu_quota is not None:
        cores = max(1, min(cores, int(machine.cpu_quota)))
    less = f" of the machine's {machine.machine_cores}" if cores < machine.machine_cores else ""
    ranks = f", shared by {machine.local_ranks} ranks" if machine.local_ranks > 1 else ""
    found = f"{counted(cores, 'core')}{less} for this process{ranks}"
    workers = cores // machine.local_ranks
    if workers > 1:
        more = 'More workers help only if samples wait for I/O; num_workers="auto" measures that'
        return Finding("cores", f"{found}: up to {workers} workers.", evidence=more)
    more = " Or request more cores: taskset, the container's --cpus, the job's request." if less else ""
    return Finding("cores", f"{found}.", f"Workers compete with the training loop: use num_workers=0.{more}")


def _memory(machine: Machine) -> Iterator[Finding]:
    limit, total, free = machine.memory_limit_bytes, machine.memory_bytes, machine.free_bytes
    if limit is None or total is None:
        return
    whose = bytes_text(total)
    if limit < total:
        whose = f"{bytes_text(limit)} of the machine's {bytes_text(total)} (control group)"
    advice = None
    if free is not None and free < limit * LITTLE_MEMORY:
        advice = (
            f"Only {bytes_text(free)} is free right now, and the system kills processes when memory runs out. Stop "
            f"other programs here, or use fewer workers and memory_budget={max(free // 4, 1)}."
        )
    budget = f"Batches in flight may take {bytes_text(limit // 4 // machine.local_ranks)} of it (memory_budget)"
    yield Finding("memory", f"{whose}.", advice, evidence=budget)


def _shared_memory(machine: Machine) -> Finding:
    size = machine.shared_bytes
    found = "No /dev/shm." if size is None else f"{bytes_text(size)} in /dev/shm."
    is_small = size is None or size < SMALL_SHARED_BYTES
    if machine.shares_arenas:
        torch = "; torch's own loader needs more (docker run --shm-size=8g)" if is_small else ""
        return Finding("shared memory", found, evidence=f"feedline does not use it{torch}")
    if not is_small or not machine.system.startswith("Linux"):
        return Finding("shared memory", found)
    used = "The portable process engine puts large batches there; those that do not fit go through a pipe"
    return Finding("shared memory", found, "Give the container more: docker run --shm-size=8g.", evidence=used)


def _limits(machine: Machine) -> Iterator[Finding]:
    """Report the limits of the shell, which fewer programs set on purpose than by mistake."""
    files, most = machine.open_files, machine.open_files_most
    if files is not None:
        workers = max(1, (files // 2 - LOADER_FILES) // WORKER_FILES)  # the other half is for the program
        advice = f"Run `ulimit -n {min(most or 65536, 65536)}` in the shell, or use at most {workers} workers."
        if most is not None and most <= files:
            advice = f"The hard limit is no higher: use at most {workers} workers, or ask an administrator to raise it."
        taken = f"A loader takes {LOADER_FILES}, each worker {WORKER_FILES}, a batch none"
        yield Finding("open files", f"{files} (ulimit -n).", None if files >= FEW_FILES else advice, evidence=taken)
    if machine.processes is not None:
        advice = "Raise it (`ulimit -u`, docker run --pids-limit), or use few workers."
        is_few = machine.processes < FEW_PROCESSES
        found = f"{machine.processes} (ulimit -u, or the container's limit); threads count."
        yield Finding("processes", found, advice if is_few else None)
    counted_only = "A control group limits memory better: it counts only memory in use."
    for subject, size, option, advice, why in (
        ("addresses", machine.address_bytes, "v", counted_only, "Buffers for batches reserve addresses, not memory"),
        ("size of files", machine.file_bytes, "f", "Or use engine='thread'.", "It applies to shared memory, too"),
    ):
        if size is not None:
            fix = f"Run `ulimit -{option} unlimited`. {advice}"
            yield Finding(subject, f"{bytes_text(size)} (ulimit -{option}).", fix, evidence=why)


def _workers(machine: Machine) -> Iterator[Finding]:
    """Report how worker processes start, and how they send batches."""
    if machine.shares_arenas:
        yield Finding("process engine", "Workers write batches into one shared arena.")
    else:
        allow = "The kernel is older than 5.3, or a sandbox forbids memfd_create or pidfd_open: allow them, or use "
        yield Finding(
            "process engine",
            "The portable one, which is as fast as torch's loader.",
            f"{allow}engine='thread'." if machine.system.startswith("Linux") else None,
            evidence="Each large batch is sent in its own block of shared memory. The shared arena needs Linux",
        )
    pickled = "dataset and functions must be picklable"
    if machine.start_method == "fork":
        pickled = "workers inherit the dataset, nothing is pickled"
    yield Finding("start method", f"{machine.start_method} by default: {pickled}.")


def _torch(machine: Machine) -> Iterator[Finding]:
    """Report torch, the GPUs that it sees, and what `device=` does with them."""
    if machine.torch_trouble is not None:
        advice = "Reinstall it: pip install --force-reinstall torch. feedline.Loader works without it."
        problem = "torch is installed, but it cannot be imported."
        yield Finding("torch", problem, advice, evidence=machine.torch_trouble)
        return
    if machine.torch is None:
        yield Finding("torch", "Not installed: feedline.Loader works, feedline.DataLoader needs it.")
        return
    version = tuple(int(part) for part in machine.torch.split(".")[:2] if part.isdigit())
    oldest = ".".join(map(str, OLDEST_TORCH))
    advice = f"feedline needs {oldest} or later: upgrade torch."
    yield Finding("torch", machine.torch, advice if version < OLDEST_TORCH else None)
    if not machine.devices:
        yield Finding("CUDA", "No device: pin_memory=True and device= have no effect.")
        return
    yield Finding("CUDA", f"{machine.cuda}. Use pin_memory=True.", evidence=", ".join(machine.devices))
    if not machine.decodes_jpegs:
        yield Finding(
            "device",
            'device="cuda" copies batches. Workers decode: nvJPEG is not installed.',
            "Run `pip install 'feedline[gpu]'`; then the GPU decodes the files of feedline.images pipelines.",
        )
        return
    queues = machine.cuda_queues
    is_narrow = queues is not None and queues.isdigit() and int(queues) <= DEFAULT_CUDA_QUEUES
    yield Finding(
        "device",
        'device="cuda" copies batches ahead of time, and decodes JPEG files.',
        f"Set {cuda_queues.VARIABLE}=32 instead of {queues}, or decoding may wait for training kernels. Keep it if "
        "your training framework needs that value."
        if is_narrow
        else None,
        evidence="The files of feedline.images pipelines are decoded there",
    )
