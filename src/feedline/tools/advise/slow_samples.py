"""Samples that are slow: they read more of their source than they need, or wait for storage or for a lock."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from feedline.insight.stats import shown
from feedline.insight.worker_model import LEAST_GAIN
from feedline.system.shown import counted
from feedline.system.sizes import bytes_text
from feedline.tools.advise.finding import Finding, gain_of
from feedline.tools.measure.measured import Measured

_COSTLY_ROW_S = 1e-4
"""Rows of samples that take less are not looked at."""
_CLEARLY = 1.25
"""A smaller gain is not worth another source."""
_COSTLY_S = 2e-4
"""Training does not wait for samples whose median time is below this."""
_WAITING = 0.5
"""A sample that computes for a smaller share of its time mostly waits."""
_LOCKED = 0.4
"""If samples hold a lock for this share of their time, two threads make at most 1.4 times what one makes."""
_MUCH_GAIN = 1.5
"""A smaller gain does not justify a change of workers."""
_OTHER_GAIN = 1.25
"""If another fix gains this much, apply it first: it changes the samples."""
_MANY_WORKERS = 8
_FEW = 100
_SPREAD = 10
_SLOW = 5
_SLOW_S = 1e-3
_SLOW_SHARE = 0.1
"""Share of the total time by which the slowest samples exceed the others. All of these are guesses."""


def find(measured: Measured) -> list[Finding]:
    """Return the findings about the time that a sample takes."""
    source = [*_rows(measured), *_images(measured)] or list(_reopened(measured))
    first = [*source, *_stragglers(measured)]
    is_other = any((one.gain or 1.0) >= _OTHER_GAIN or one.name in ("stragglers", "slow-source") for one in first)
    if measured.samples.usual_s < _COSTLY_S or is_other:
        return first
    return first + (list(_serialised(measured)) or list(_waiting(measured)))


def _rows(measured: Measured) -> Iterator[Finding]:
    """Name the source of ours that reads the rows, if it was measured to be faster."""
    samples, rows = measured.samples, measured.samples.rows
    if rows is None or samples.usual_s < _COSTLY_ROW_S:
        return
    reader = rows.library or "the dataset's own code"
    gain = 1.0 if rows.row_s is None else gain_of(measured.pipeline_s, rows.read_s - rows.row_s)
    unpacked = f" A sample unpacks whole chunks for its row: {rows.chunks}." if rows.chunks else ""
    if gain >= _CLEARLY and rows.row_s is not None:
        fix = f"Read the rows with feedline.datasets.{rows.source}"
        if unpacked:
            fix += ", which keeps unpacked chunks (cache_bytes=); if the file is much larger, do not compress it"
        elif rows.path and rows.library == "pandas":
            fix += ", or keep columns that you compute as arrays in an ArrayDataset"
        more = f"; there are {rows.unused:,} rows more than samples, which would come, too" if rows.unused else ""
        timed = (
            f" {rows.source} took {shown(rows.row_s)} for a row{f' of {rows.path}' if rows.path else ''}, in batches "
            f"of random order. Check that its row i is your sample i{more}."
        )
    elif unpacked:
        fix = "Write the rows once more, without compression or with a few rows in a chunk"
        timed = ""
    else:
        return
    yield Finding(
        "slow-source",
        f"Reading a row takes {rows.read_s / samples.usual_s:.0%} of a sample's time.",
        f"{fix}.",
        rows.code if timed else f"feedline pack {rows.path!r} OUT.h5",
        gain=gain if timed else None,
        evidence=f"{reader[0].upper() if not rows.library else reader[0]}{reader[1:]} takes {shown(rows.read_s)} of a "
        f"sample's {shown(samples.usual_s)} to read a row.{unpacked}{timed}",
        margin=gain / _CLEARLY if timed else None,
    )


def _images(measured: Measured) -> Iterator[Finding]:
    """Name the time of `feedline.images`, if images are stored much larger than they are used."""
    samples, images = measured.samples, measured.samples.images
    if images is None:
        return
    gain = gain_of(measured.pipeline_s, images.library_s - images.image_s)
    if gain < _CLEARLY:
        return
    height, width = images.size
    crops = (
        f"Your samples keep as little as {images.kept:.0%} of an image, so that it is decoded larger than the sample: "
        "feedline.images.RandomResizedCrop in place of Resize decodes what a crop needs"
        if images.kept < 1
        else "Pillow was not seen to crop them: if your own code does, decode more than the sample has, or use "
        "feedline.images.RandomResizedCrop"
    )
    yield Finding(
        "slow-source",
        f"Images are decoded with {images.pixels / (height * width):.0f} times the pixels that are needed.",
        "Let the decoder scale them, as feedline.images does; or store smaller images once (feedline pack --resize).",
        f"# in __init__:\nself.decode = feedline.images.Compose([feedline.images.Resize(({height}, {width}))])\n"
        "# in __getitem__, with the path of the sample, instead of opening, decoding and resizing the file:\n"
        f"with open({images.path!r}, 'rb') as file:\n    image = self.decode(file.read())",
        gain=gain,
        evidence=f"{images.library} decodes {images.pixels:,.0f} pixels, and {height * width:,} are needed. It takes "
        f"{shown(images.library_s)} of a sample's {shown(samples.usual_s)} to decode and resize files such as "
        f"{images.path}; feedline.images took {shown(images.image_s)}. {crops}",
        margin=gain / _CLEARLY,
    )


def _reopened(measured: Measured) -> Iterator[Finding]:
    samples, files = measured.samples, measured.samples.reopened
    saved_s = sum(file.again_s * min(1.0, file.samples / len(samples.seconds)) for file in files)
    if (gain := gain_of(measured.pipeline_s, saved_s)) < LEAST_GAIN:
        return  # opening is not what takes the time
    first, others = max(files, key=lambda file: file.again_s), len(files) - 1
    reads = ""
    if first.read_bytes > 4 * samples.sample_bytes + 4096:
        reads = f", and each reads {bytes_text(first.read_bytes)} to deliver {bytes_text(samples.sample_bytes)}"
    more = f" and {counted(others, 'other file')}" if others else ""
    yield Finding(
        "reopened-file",
        f"Samples {'read all of' if first.is_read else 'open'} the same file again and again.",
        first.fix,
        first.code,
        gain=gain,
        evidence=f"{first.samples} of {len(samples.seconds)} samples opened {first.path}{more}{reads}. A sample takes "
        f"{shown(samples.usual_s)}, and {shown(saved_s)} of that would be saved",
    )


def _waiting(measured: Measured) -> Iterator[Finding]:
    """Suggest more workers, whose waits overlap: as many threads as were tried, or 8 processes."""
    samples, rates = measured.samples, measured.threads.rates
    if samples.cpu_share >= _WAITING or measured.making.is_async:
        return
    workers = 1 if measured.loader is None else max(measured.loader.workers, 1)
    if len(rates) > 1:
        count, engine = max(rates), "thread"
        many = rates[count] / rates[1]
        tried = f"{count} threads made {many:.1f} times the samples of one"
    else:  # threads cannot be used
        count, engine = _MANY_WORKERS, "process"
        many = min(count, measured.headroom.cores / max(samples.cpu_share, 0.01))
        tried = "The rest of the time it sleeps"
    if many < _MUCH_GAIN * workers:
        return
    now_s = measured.pipeline_s / workers
    yield Finding(
        "waiting",
        f"A sample sleeps for {1 - samples.cpu_share:.0%} of its time.",
        "Use more workers than cores, or read ahead with an async def __getitem__ or feedline.datasets.",
        f'DataLoader(dataset, engine="{engine}", num_workers={count})',
        gain=gain_of(now_s, now_s - samples.usual_s / many - measured.batch_share_s),
        evidence=f"It takes {shown(samples.usual_s)} and computes for "
        f"{shown(samples.usual_s * samples.cpu_share)} of that. {tried}",
        margin=min(_WAITING / max(samples.cpu_share, 0.01), many / (_MUCH_GAIN * workers)),
    )


def _serialised(measured: Measured) -> Iterator[Finding]:
    """Report a lock for which threads wait: one of the dataset, or the interpreter's."""
    samples, two, path = measured.samples, measured.threads.speedup, measured.state.lock
    if two is None or (share := min(1.0, max(0.0, 2 / two - 1))) < _LOCKED or measured.engine in ("process", "inline"):
        return
    fix, other = "guard less with it, and give each thread its own handle in a threading.local()", ""
    if samples.cpu_share >= _WAITING:
        path, other = "the interpreter's lock (GIL)", f"; or they wait for {path}" if path else ""
        fix = "do the work in a library that releases the lock, such as NumPy or torch"
    elif not path:
        return  # they wait for each other elsewhere, as in a connection
    yield Finding(
        "serialised",
        f"Samples hold {path} for {share:.0%} of their time.",
        f"Use worker processes, each of which has its own lock; or {fix}.",
        f'DataLoader(dataset, engine="process", num_workers={max(measured.workers, 1)})',
        is_serious=measured.engine == "thread",
        evidence=f"Only one thread at a time can hold it, and two made {two:.2f} times the samples of one{other}. A "
        f"sample takes {shown(samples.usual_s)}. `feedline tune` measures what processes gain",
    )


def _stragglers(measured: Measured) -> Iterator[Finding]:
    samples = measured.samples
    times = np.array(samples.seconds[2:])  # the first ones include warm-up
    if len(times) < _FEW:
        return
    usual, late = np.quantile(times, (0.5, 0.99)).tolist()
    slow = times[times > _SLOW * usual]
    excess = float((slow - usual).sum())
    confirmed = [index for index, seconds in samples.repeated if seconds > _SLOW / 2 * usual]
    limit_s = max(_SPREAD * usual, _SLOW_S)
    if late < limit_s or excess < _SLOW_SHARE * times.sum() or len(confirmed) < 2:
        return
    fix, code = bridging_stragglers(moves=measured.loader is not None and measured.loader.moves)
    yield Finding(
        "stragglers",
        f"{len(slow)} of {len(times)} samples take more than {_SLOW} times as long as most.",
        f"See what these samples have in common, such as their size. {fix}",
        code,
        evidence=f"Most take {shown(usual)}, one in a hundred {shown(late)} or more. Slow again when "
        f"repeated: {', '.join(confirmed[:5])}. If they took as long as the others, all samples together would take "
        f"{1 - excess / times.sum():.0%} of the time",
        margin=min(late / limit_s, excess / (_SLOW_SHARE * float(times.sum()))),
    )


def bridging_stragglers(*, moves: bool) -> tuple[str, str]:
    """Return what a loader can do about slow samples, as a sentence and as code.

    Args:
        moves: True if its idle workers already take over the work of late ones.
    """
    if moves:
        return "Until then, deliver batches as they come.", "DataLoader(dataset, in_order=False)"
    return (
        "Until then, give the loader a seed=, so that idle workers take over the work of late ones, or deliver batches "
        "as they come.",
        "DataLoader(dataset, seed=0)  # or in_order=False",
    )
