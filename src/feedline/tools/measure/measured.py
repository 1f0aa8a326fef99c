"""What was measured about a dataset: plain values, sent from the process that probed it.

Times are in seconds. They exclude time in which a thread was ready to run but had no core, so that a busy machine does
not look like a slow dataset.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass, field

import numpy as np

from feedline.system.limits import memory_limit, physical_bytes, usable_cores
from feedline.system.ranks import local_rank_count

LEAST_SAMPLES = 20
"""No gain is promised from times of fewer samples: a promise of 21 times from three samples turned out to be 14.6."""
STAGES = ("import", "samples", "batch", "loader", "threads")
"""The stages of a probe, in order; "loader" only if a loader was given."""


@dataclass(frozen=True)
class Making:
    """The dataset before its first sample."""

    kind: str = ""
    """The name of its class."""
    length: int | None = None
    """None if the dataset does not report its length."""
    is_map: bool = True
    is_async: bool = False
    """True if all samples of a batch are awaited together."""


@dataclass(frozen=True)
class Held:
    """A large container of Python objects in the dataset."""

    path: str
    items: int
    bytes: int
    """Estimated from some of the items."""
    shared_bytes: int | None
    """Size in `feedline.share`, also estimated; None if it cannot hold the items."""


@dataclass(frozen=True)
class OpenHandle:
    """An open handle that workers must not share."""

    path: str
    is_called: str
    trouble: str
    advice: str
    opening: str = "open(self.path, 'rb')"
    """The call that opens it again; of an attribute of the dataset if its own path is unknown."""


@dataclass(frozen=True)
class State:
    """The parts of the dataset that workers receive."""

    handles: tuple[OpenHandle, ...] = ()
    """Open before the first sample, so forked workers inherit them."""
    thread_handles: tuple[OpenHandle, ...] = ()
    """Open after some samples, and not safe to use from several threads."""
    held: tuple[Held, ...] = ()
    global_generators: tuple[str, ...] = ()
    """Generators of the process that samples draw from."""
    own_generators: tuple[str, ...] = ()
    """Generators in the dataset that samples draw from."""
    not_picklable: str | None = None
    """What cannot be pickled, and why; None if everything can."""
    pickle_advice: str = ""
    lock: str = ""
    """The name of a lock of `threading` in the dataset or its module; empty if there is none."""


@dataclass(frozen=True)
class Reopened:
    """A file that many samples open again."""

    path: str
    samples: int
    """How many of the probed samples opened it."""
    read_bytes: int
    """Bytes that one sample reads from all files."""
    again_s: float
    """What a sample saves if the file is kept."""
    is_read: bool
    """True if samples read all of it."""
    fix: str
    """How to keep it, as a sentence and as code."""
    code: str


@dataclass(frozen=True)
class SlowRows:
    """Rows that samples read, and the source of ours that reads the same rows."""

    library: str
    """What reads them; empty for Python's own code."""
    path: str
    """The file; empty if the rows are in memory, or if it is unknown."""
    read_s: float
    """The time of a sample that the source would replace."""
    source: str = ""
    """The name of our source; empty if none reads these rows."""
    code: str = ""
    """The source as code."""
    row_s: float | None = None
    """The time that our source takes for a row, in batches of random order."""
    unused: int = 0
    """How many more rows our source has than there are samples."""
    chunks: str = ""
    """The compressed chunks of many rows that a sample unpacks, in words; empty if it unpacks none."""


@dataclass(frozen=True)
class SlowImages:
    """Images that are stored much larger than samples need them."""

    library: str
    path: str
    """One of the files."""
    pixels: float
    """Of a stored image."""
    size: tuple[int, int]
    """Height and width of the image in a sample; more if samples crop it."""
    library_s: float
    """Time of a sample in which the library decodes and resizes."""
    image_s: float
    """Time in which `feedline.images` decodes the same files at this size."""
    kept: float = 1.0
    """The smallest share of an image that Pillow has kept of it in a crop; 1 if it was not seen to crop any."""


@dataclass(frozen=True)
class Samples:
    """Samples made one after the other."""

    seconds: tuple[float, ...] = ()
    cpu_share: float = 1.0
    """The share of the median sample's time spent computing."""
    sample_bytes: float = 0.0
    repeated: tuple[tuple[str, float], ...] = ()
    """The slowest samples, and their times when made again."""
    failed: int = 0
    failure: str = ""
    """The exception of the first failed sample, with the user's frames."""
    reopened: tuple[Reopened, ...] = ()
    rows: SlowRows | None = None
    images: SlowImages | None = None
    lengths: tuple[int, ...] = ()
    """Lengths of the first axis of the largest field whose samples differ in length; empty if none differ."""
    length_field: str = "sample"
    """The name of that field."""
    in_a_row_s: float | None = None
    """Time of a sample among many that were made without reading a clock; None for samples that take long."""
    reused: str = ""
    """The field of a sample that changed when later samples were made; empty if none did."""
    sorted_labels: str = ""
    """A field of class labels that are sorted by index; empty if there is none."""

    @property
    def usual_s(self) -> float:
        """The time of most samples: the median, or `in_a_row_s`."""
        return float(np.median(self.seconds)) if self.in_a_row_s is None else self.in_a_row_s

    @property
    def mean_s(self) -> float:
        """The mean without the first samples, which include warm-up."""
        return float(np.mean(self.seconds[2:] or self.seconds))


@dataclass(frozen=True)
class Noise:
    """How much the machine disturbed the measurements."""

    spread: float = 0.0
    """Relative spread of the times of a constant loop, from medians of several runs."""
    stolen: float = 0.0
    """The share of all cores' time that went to other virtual machines."""
    queued: float = 0.0
    """The share of the time in which the dataset was ready to run but had no core. Times exclude it."""

    @property
    def floor(self) -> float:
        """The share by which a time may be off."""
        return self.spread + self.stolen

    def __str__(self) -> str:
        stolen = f", other virtual machines took {self.stolen:.0%} of the cores" if self.stolen >= 0.005 else ""
        return (
            f"The time of a constant loop varied by {self.spread:.0%}{stolen}, and for {self.queued:.0%} of the time "
            "the dataset waited for a core"
        )


@dataclass(frozen=True)
class FloatField:
    """A field of floats whose values fit into bytes."""

    name: str
    dtype: str
    is_scaled: bool
    """True if the values are k/255, False if they are whole numbers from 0 to 255."""
    sample_bytes: int
    convert_s: float
    """Time to convert one sample from bytes."""
    carried_s: float
    """What a sample saves of `Batch.carry_s` as bytes."""


@dataclass(frozen=True)
class Faster:
    """What takes the time of a batch, and how to save it."""

    cause: str
    fix: str
    code: str | None = None
    carry_s: float | None = None
    """`Batch.carry_s` with the fix; None if it was not measured."""


@dataclass(frozen=True)
class Batch:
    """One batch of the samples made."""

    size: int
    collate_s: float
    copy_s: float
    """Time to copy the arrays of its samples into one block."""
    bytes: int
    carry_s: float = 0.0
    """Time of a worker process for a batch whose samples are ready; on threads, only to collate it."""
    sent_s: float = 0.0
    """Time to write it into shared memory and to read it back."""
    object_bytes: int = 0
    """Pickled size of everything that is not an array."""
    faster: Faster | None = None
    floats: tuple[FloatField, ...] = ()
    not_picklable: str | None = None


@dataclass(frozen=True)
class Threads:
    """The same samples made by several threads."""

    rates: dict[int, float] = field(default_factory=dict)
    """Samples per second, by number of threads."""
    speedup: float | None = None
    """The speedup of two threads over one, if each had its own core. None if that is unknown: they were not tried, or a
    library's own threads computed, too."""
    failure: str = ""
    """The exception of a sample on threads, with the user's frames."""


@dataclass(frozen=True)
class LoaderSetup:
    """The settings of a loader, and how it begins an epoch."""

    workers: int
    engine: str
    depth: int
    batch_size: int | None
    is_persistent: bool
    start_method: str = "fork"
    moves: bool = False
    """True if idle workers already take over the work of late ones."""
    is_sequential: bool = False
    """True if samples come in the order of their indices."""
    start_s: float | None = None
    """Time from starting an epoch to the first batch, minus the time of that batch; None if not tried, or if workers
    are kept."""
    failure: str = ""
    """The exception of a batch, with the user's frames."""


@dataclass(frozen=True)
class Headroom:
    """The resources that the system grants the program."""

    cores: int
    memory_bytes: int | None
    """Available now."""
    start_method: str = "fork"
    """Default start method of worker processes."""
    local_ranks: int = 1


def headroom_now() -> Headroom:
    """Return the resources that the system grants this process."""
    _, free = physical_bytes()
    return Headroom(
        cores=usable_cores(),
        memory_bytes=None if free is None else min(free, memory_limit()),
        start_method=multiprocessing.get_all_start_methods()[0],  # asking for the current one would set it for good
        local_ranks=local_rank_count(),
    )


@dataclass
class Measured:
    """All measurements, as far as the probe has come; those of samples are there if it has not raised an exception."""

    headroom: Headroom
    making: Making = field(default_factory=Making)
    state: State = field(default_factory=State)
    samples: Samples = field(default_factory=Samples)
    batch: Batch | None = None
    """None if the samples cannot be collated."""
    threads: Threads = field(default_factory=Threads)
    loader: LoaderSetup | None = None
    noise: Noise = field(default_factory=Noise)
    ended: str | None = None
    """Why the probe ended early, in words; None if it did not."""
    ended_in: str = ""
    """The stage in which it ended."""

    @property
    def is_useful(self) -> bool:
        """True if there is enough to report even if the probe ends early."""
        return bool(self.samples.seconds)

    @property
    def engine(self) -> str | None:
        """The engine of the given loader; None without one."""
        return None if self.loader is None else self.loader.engine

    @property
    def workers(self) -> int:
        """The number of the loader's workers; without a loader, one for each core."""
        return self.headroom.cores if self.loader is None else self.loader.workers

    @property
    def batch_share_s(self) -> float:
        """Time per sample in which a worker collates and sends its batch."""
        return 0.0 if self.batch is None else self.batch.carry_s / self.batch.size

    @property
    def pipeline_s(self) -> float:
        """Total time of a median sample: making it, and its share of the batch. Gains are relative to this."""
        return self.samples.usual_s + self.batch_share_s
