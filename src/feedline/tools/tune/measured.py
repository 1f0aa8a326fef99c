"""What was measured of a dataset: facts only, in plain values that cross from the process that tried it.

Times are in seconds. They leave out the time in which a thread was ready to run and had no core, so that a busy machine
does not look like a slow dataset.
"""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from feedline.insight.worker_model import HANDOVER_S
from feedline.system.limits import limits_of, memory_limit, physical_bytes, shared_bytes, usable_cores
from feedline.types.ranks import local_rank_count

STAGES = ("import", "samples", "batch", "loader", "threads")
"""What is measured, in this order; "loader" only if one was given."""


@dataclass(frozen=True)
class Making:
    """The dataset before its first sample."""

    kind: str
    """The name of its class."""
    length: int | None
    """None for a dataset that does not tell."""
    make_s: float
    """Of the user's own code, until there was a dataset; imports of other modules are not counted."""
    is_map: bool = True
    is_async: bool = False
    """True if all samples of a batch are awaited at once."""
    cpu_share: float = 1.0
    """How much of `make_s` was computing."""


@dataclass(frozen=True)
class Held:
    """A large container of Python objects in the dataset."""

    path: str
    items: int
    bytes: int
    """Estimated from some of the items."""
    shared_bytes: int | None
    """What `feedline.share` would take, estimated likewise; None if it cannot hold them."""


@dataclass(frozen=True)
class OpenHandle:
    """Something open that workers must not share."""

    path: str
    is_called: str
    trouble: str
    advice: str


@dataclass(frozen=True)
class State:
    """What the dataset is made of, as far as workers get it."""

    handles: tuple[OpenHandle, ...] = ()
    """Open before the first sample: forked workers inherit them."""
    thread_handles: tuple[OpenHandle, ...] = ()
    """Open after some samples, and of no use to several threads."""
    held: tuple[Held, ...] = ()
    global_generators: tuple[str, ...] = ()
    """Of the process, from which samples draw."""
    own_generators: tuple[str, ...] = ()
    """In the dataset itself, from which samples draw."""
    pickle_s: float | None = None
    """To pickle the dataset and to read it again, arrays aside; None if it cannot be pickled or was not tried."""
    pickle_bytes: int = 0
    pickle_cpu_share: float = 1.0
    """How much of `pickle_s` was computing."""
    not_picklable: str | None = None
    """What cannot be pickled, and why; None if everything can."""
    pickle_advice: str = ""


@dataclass(frozen=True)
class Opened:
    """A file that several samples opened."""

    path: str
    samples: int
    """By how many of those tried."""
    again_s: float
    """To open it and read as much as one sample does."""
    read_bytes: int
    """By one sample, of all files."""
    how: str = "open"
    """What opened it: "open", "sqlite3" or "h5py"."""
    mode: str = ""
    """With "open", how: "r" for text, "rb" for bytes; empty if that is not known."""
    read_by: str = ""
    """How samples read it: "lines", "whole"; empty if in parts, or if that is not known."""


@dataclass(frozen=True)
class Decoded:
    """Images that were decoded, per sample."""

    by: str
    pixels: float
    used_pixels: float
    decode_s: float
    small_sample_s: float | None
    """What a whole sample takes if its images are stored in the size that is used; None if it fails then."""


@dataclass(frozen=True)
class Samples:
    """Samples, made one after the other."""

    seconds: tuple[float, ...]
    cpu_share: float
    """Of the usual sample: how much of its time is computing."""
    sample_bytes: float
    repeated: tuple[tuple[str, float], ...] = ()
    """The slowest samples, and their time when they were made again."""
    failed: int = 0
    failure: str = ""
    """What the first that failed raised, with the user's frames."""
    opened: tuple[Opened, ...] = ()
    kept_open_s: float | None = None
    """What a usual sample takes if these files stay open; None if that could not be tried."""
    decoded: Decoded | None = None
    lengths: tuple[int, ...] = ()
    """Of the first axis of the largest field whose samples differ in it; empty if they do not differ."""
    length_field: str = "sample"
    """The name of that field."""
    growth: float = 0.0
    """Bytes of memory per 1,000 samples, once the first samples were made; 0 if it does not grow steadily."""

    @property
    def usual_s(self) -> float:
        """The median."""
        return float(np.median(self.seconds))

    @property
    def mean_s(self) -> float:
        """The mean, without the first ones: they are slow for reasons of their own."""
        return float(np.mean(self.seconds[2:] or self.seconds))


_STEADY_BYTES = 2 << 20
"""Growth of the memory while samples are made that is not just noise."""


def steady_growth(memory: Sequence[tuple[float, float]]) -> float:
    """Return by how many bytes the memory grows with 1,000 samples; 0 if it does not do so all the time.

    Args:
        memory: how many samples had been made, and the bytes at that moment.
    """
    later = np.array(memory[len(memory) // 4 :], float).reshape(-1, 2)
    if len(later) < 8:
        return 0.0
    means = [part.mean(axis=0) for part in np.array_split(later, 4)]
    steps = np.diff([mean[1] for mean in means])
    grown = later[-1][1] - later[0][1]
    made = means[-1][0] - means[0][0]
    if grown < _STEADY_BYTES or steps.min() < grown / 16 or made <= 0:
        return 0.0
    return float(1000 * (means[-1][1] - means[0][1]) / made)


@dataclass(frozen=True)
class Noise:
    """How much the machine itself disturbed what was timed."""

    spread: float = 0.0
    """By how much a loop that always does the same differed in time, as a share; by medians of some runs."""
    stolen: float = 0.0
    """The share of the time of all cores that went to other virtual machines."""
    queued: float = 0.0
    """The share of the time in which the dataset could have run and had no core. Times are without that."""

    @property
    def floor(self) -> float:
        """By how much a time may be off, as a share of it."""
        return self.spread + self.stolen

    def __str__(self) -> str:
        stolen = f", other virtual machines took {self.stolen:.0%} of the cores" if self.stolen >= 0.005 else ""
        return (
            f"A loop that always does the same differed in time by {self.spread:.0%}{stolen}, and for "
            f"{self.queued:.0%} of the time the dataset waited for a core"
        )


@dataclass(frozen=True)
class OtherCollate:
    """Another way to put samples together that was tried, and gave the same batch."""

    code: str
    """The function; empty if it is the default, so that none need be given."""
    seconds: float
    carry_s: float | None = None
    """As `Measured.carry_s`, with this function."""


def field_in(whole: str, name: str) -> str:
    """Return the expression for a field of a sample or batch, by the name that the probe has for it.

    Example:
        >>> field_in("batch", "sample"), field_in("batch", "sample[0]"), field_in("batch", "boxes[1].id")
        ('batch', 'batch[0]', 'batch["boxes"][1]["id"]')
    """
    steps = re.findall(r"\[\d+\]|[^.\[]+", name.removeprefix("sample"))
    return whole + "".join(step if step.startswith("[") else f'["{step}"]' for step in steps)


@dataclass(frozen=True)
class FloatField:
    """A field of floats whose values fit into bytes."""

    name: str
    dtype: str
    is_scaled: bool
    """True if they are k/255, False if they are whole numbers from 0 to 255."""
    convert_s: float
    """To make them of bytes, for one sample."""
    sample_bytes: int
    carry_s: float | None = None
    """As `Measured.carry_s`, if samples had bytes instead."""


@dataclass(frozen=True)
class Batch:
    """One batch of the samples that were made."""

    size: int
    collate: str
    """The name of the function."""
    is_custom: bool
    collate_s: float
    copy_s: float
    """To copy the arrays of its samples into one place."""
    bytes: int
    pickle_s: float
    """To pickle it and to read it again, as a whole."""
    pickle_bytes: int
    write_s: float
    """To write it into memory that processes share, which a worker does."""
    arena_s: float
    """To write it into memory that processes share, and to read it again."""
    as_arrays_s: float
    """To put as many bytes together as its objects have, if they were arrays."""
    object_bytes: int
    """What of it is not arrays, as pickles."""
    objects: str = ""
    """What these objects are: type and field of the largest."""
    object_kind: str = ""
    """What the largest is in a sample: "numbers" for a list of them, "texts" likewise; empty for anything else."""
    object_carry_s: float | None = None
    """As `Measured.carry_s`, if these objects were what the finding asks for; None if that was not tried."""
    fields: int = 1
    """Of a sample, that are put together one by one."""
    other: OtherCollate | None = None
    """A quicker way to make the same batch of the loader's; None if none was found, or it has the default."""
    floats: tuple[FloatField, ...] = ()
    not_picklable: str | None = None


@dataclass(frozen=True)
class Threads:
    """The same samples made by several threads."""

    rates: dict[int, float]
    """Samples a second by number of threads."""
    helped: float = 1.0
    """Computing of the whole process, as a multiple of that of the thread that makes samples: libraries have threads,
    too."""
    failure: str = ""
    """What a sample raised on threads, with the user's frames."""
    awake: dict[int, float] = field(default_factory=dict)
    """By number of threads: the share of their time in which they computed or waited for a core. The rest they slept,
    or waited for the interpreter's lock."""

    def speedup(self, count: int) -> float | None:
        """Return how many times as many samples so many threads make on cores of their own; None if not tried.

        By the time that they were not waiting for each other: rates depend on who else uses the cores.
        """
        if count not in self.rates:
            return None
        if self.awake.get(1) and count in self.awake:
            return count * self.awake[count] / self.awake[1]
        return self.rates[count] / self.rates[1]


@dataclass(frozen=True)
class LoaderFacts:
    """A loader that was given, and what it does."""

    kind: str
    """Whose it is: "feedline" or "torch"."""
    workers: int
    engine: str
    depth: int
    batch_size: int | None
    is_persistent: bool
    start_method: str
    moves: bool = False
    """True if idle workers take over the work of late ones already."""
    start_s: float | None = None
    """From asking for an epoch until the first batch came, less what that batch takes, and from the last batch to the
    end; None if it was not tried, or if workers are kept."""
    rest_s: float | None = None
    """From the first batch of an epoch to the last; estimated from some batches if there are many."""
    failure: str = ""
    """What a batch raised, with the user's frames."""
    shuffle_s: float | None = None
    """To draw the order of an epoch as a list; None if no list is drawn."""
    shuffle_bytes: int = 0


@dataclass(frozen=True)
class Room:
    """What the system grants the program."""

    cores: int
    memory_bytes: int | None
    """That can be had now."""
    shared_bytes: int | None
    """Size of /dev/shm."""
    open_files: int | None
    start_method: str = "fork"
    """Of worker processes, by default."""
    local_ranks: int = 1

    @property
    def rank_cores(self) -> int:
        """Cores that each rank has."""
        return max(1, self.cores // self.local_ranks)


def room_now() -> Room:
    """Return what the system grants this process."""
    _, free = physical_bytes()
    return Room(
        cores=usable_cores(),
        memory_bytes=None if free is None else min(free, memory_limit()),
        shared_bytes=shared_bytes(),
        open_files=limits_of("RLIMIT_NOFILE")[0],
        start_method=multiprocessing.get_all_start_methods()[0],  # asking for the current one would settle it
        local_ranks=local_rank_count(),
    )


@dataclass
class Measured:
    """All of it. What is None was not reached."""

    room: Room
    making: Making | None = None
    state: State = field(default_factory=State)
    samples: Samples | None = None
    batch: Batch | None = None
    threads: Threads | None = None
    loader: LoaderFacts | None = None
    handover_s: float = HANDOVER_S
    """What a batch is taken to need beside being put together and written, where `carry_s` was not measured."""
    carry_s: float | None = None
    """What a loader of the same engine needs for the batch once its samples are made, all together: measured in one
    whose samples are ready. None if that was not tried."""
    noise: Noise = field(default_factory=Noise)
    ended: str | None = None
    """What ended the probe early, in words; None if nothing did."""
    ended_in: str = ""
    """In which stage."""

    @property
    def is_useful(self) -> bool:
        """True if so much was measured that it can be told, whatever ends the probe."""
        return self.samples is not None

    @property
    def engine(self) -> str | None:
        """The engine of the loader that was given; None if none was."""
        return None if self.loader is None else self.loader.engine

    @property
    def start_method(self) -> str:
        """How worker processes are started."""
        return self.room.start_method if self.loader is None else self.loader.start_method

    @property
    def batch_share_s(self) -> float:
        """What a sample takes of the time in which a worker puts its batch together and sends it."""
        if self.batch is None:
            return 0.0
        if self.carry_s is not None:
            return self.carry_s / self.batch.size
        write_s = 0.0 if self.engine in ("inline", "thread") else self.batch.write_s
        return (self.batch.collate_s + self.handover_s + write_s) / self.batch.size

    @property
    def pipeline_s(self) -> float:
        """What a usual sample takes in all: to be made, and its part of the batch. Gains are shares of this."""
        return (0.0 if self.samples is None else self.samples.usual_s) + self.batch_share_s

    @property
    def epoch_s(self) -> float | None:
        """How long an epoch takes with the workers of the loader, or one per core; None if it is not known."""
        if self.loader is not None and self.loader.rest_s is not None:
            return self.loader.rest_s
        if self.samples is None or self.making is None or self.making.length is None:
            return None
        workers = self.room.cores if self.loader is None else min(self.loader.workers, self.room.cores)
        return self.making.length * (self.samples.mean_s + self.batch_share_s) / max(workers, 1)
