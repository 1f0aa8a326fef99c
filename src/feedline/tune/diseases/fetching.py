"""Samples that take longer than they must: the interpreter's lock, waiting, files, images, stragglers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from feedline.tune.finding import Finding, gain_of, seconds_text
from feedline.tune.measured import Measured, Samples
from feedline.values.sizes import bytes_text

_COSTLY_S = 2e-4
"""A usual sample that takes less is not what training waits for."""
_WAITING = 0.5
"""Share of computing below which a sample mostly waits."""
_LOCKED = 0.25
"""Share of the time with the interpreter's lock above which threads do not help. On a busy machine a thread that waits
for the lock also waits for a core, and the share is seen too small."""
_HELPED = 1.3
"""If the threads of a library compute beside the sample's, two samples at a time are slower for another reason."""
_MUCH_GAIN = 1.5
"""Less is not worth other workers."""
_OTHER_GAIN = 1.25
"""If another change gains so much, that comes first: samples are others then."""
_MANY_WORKERS = 8
_TOO_MANY_PIXELS = 4
_FEW = 100
_SPREAD = 10
_SLOW = 5
_SLOW_S = 1e-3
_SLOW_SHARE = 0.1
"""Of all the time, that goes into what the slowest samples take longer than others. All of these are guesses."""


def find(measured: Measured) -> list[Finding]:
    """Return what is found about single samples."""
    samples = measured.samples
    if samples is None:
        return []
    found = [
        *_failing(samples),
        *_ended(measured),
        *_failing_on_threads(measured),
        *_reopened(measured, samples),
        *_oversized(measured, samples),
        *_stragglers(measured, samples),
    ]
    if samples.usual_s >= _COSTLY_S and not any((finding.gain or 1.0) >= _OTHER_GAIN for finding in found):
        found += _waiting(measured, samples) if samples.cpu_share < _WAITING else _locked(measured, samples)
    return found


def _failing(samples: Samples) -> Iterator[Finding]:
    if samples.failed:
        tried = samples.failed + len(samples.seconds)
        yield Finding(
            "failing-samples",
            f"{samples.failed} of {tried} samples raised an exception. The first was {samples.failure.rstrip()}",
            "Correct or remove these samples, or have the loader leave them out and keep a list of them.",
            'DataLoader(dataset, on_error="skip")',
            is_serious=True,
        )


def _ended(measured: Measured) -> Iterator[Finding]:
    if measured.ended is not None:
        yield Finding(
            "ended-early",
            measured.ended,
            "Do not use threads with this dataset."
            if measured.ended_in == "threads"
            else "Try the same in a program of your own, and look at what it waits for: python -X faulthandler.",
            is_serious=measured.ended_in == "loader" or measured.engine == "thread",
        )


def _failing_on_threads(measured: Measured) -> Iterator[Finding]:
    if measured.threads is not None and measured.threads.failure and measured.engine == "thread":
        yield Finding(
            "fails-on-threads",
            f"Samples that could be made one after the other raised on several threads: {measured.threads.failure}",
            "Give each thread a handle or buffer of its own, in a threading.local(); or use worker processes.",
            'DataLoader(dataset, engine="process")',
            is_serious=True,
        )


def _waiting(measured: Measured, samples: Samples) -> Iterator[Finding]:
    """Waits of several workers overlap: with as many threads as were tried, or with so many processes."""
    if measured.making is not None and measured.making.is_async:
        return
    workers = 1 if measured.loader is None else max(measured.loader.workers, 1)
    rates = {} if measured.threads is None else measured.threads.rates
    if len(rates) > 1:
        count, engine = max(rates), "thread"
        many = rates[count] / rates[1]
        tried = f" {count} threads made {many:.1f} times the samples of one"
    else:  # threads cannot be used
        count, engine, tried = _MANY_WORKERS, "process", ""
        many = min(count, measured.room.cores / max(samples.cpu_share, 0.01))
    if many < _MUCH_GAIN * workers:
        return
    yield Finding(
        "waiting",
        f"A sample takes {seconds_text(samples.usual_s)} and computes for {samples.cpu_share:.0%} of that: it waits, "
        f"for storage or another program.{tried}",
        "Use more workers than there are cores, threads if the dataset allows them; or read ahead, with an async def "
        "__getitem__ or one of feedline.datasets.",
        f'DataLoader(dataset, engine="{engine}", num_workers={count})',
        gain=round(many / workers, 2),
    )


def _locked(measured: Measured, samples: Samples) -> Iterator[Finding]:
    two = None if measured.threads is None else measured.threads.speedup(2)
    if measured.threads is None or two is None or measured.engine in ("process", "inline"):
        return
    share = min(1.0, max(0.0, 2 / two - 1))
    if share < _LOCKED or measured.threads.helped > _HELPED:
        return
    workers = measured.room.cores if measured.loader is None else measured.loader.workers
    gain = min(workers, measured.room.cores) / max(two, 1.0)  # fewer than one thread makes: others took the cores
    yield Finding(
        "gil-bound",
        f"A sample holds the interpreter's lock (GIL) for {share:.0%} of its {seconds_text(samples.usual_s)}: two "
        f"threads made {two:.2f} times the samples of one",
        "Use worker processes: threads would wait for each other. Or do the work in NumPy, torch or another library "
        "that gives up the lock.",
        f'DataLoader(dataset, engine="process", num_workers={max(1, workers)})',
        gain=round(gain, 2) if gain > 1 else None,
        is_serious=measured.engine == "thread",
    )


def _reopened(measured: Measured, samples: Samples) -> Iterator[Finding]:
    if not samples.opened:
        return
    first, others = samples.opened[0], len(samples.opened) - 1
    again_s = sum(file.again_s * min(1.0, file.samples / max(len(samples.seconds), 1)) for file in samples.opened)
    kept_s = max(samples.usual_s - again_s, 0.0)
    if samples.kept_open_s is not None:
        kept_s = min(kept_s, samples.kept_open_s) or samples.kept_open_s
    reads = ""
    if first.read_bytes > 4 * samples.sample_bytes + 4096:
        reads = f", and each reads {bytes_text(first.read_bytes)} to deliver {bytes_text(samples.sample_bytes)}"
    more = f" and {others} other file{'' if others == 1 else 's'}" if others else ""
    yield Finding(
        "reopened-file",
        f"{first.samples} of {len(samples.seconds)} samples opened {first.path}{more} again{reads}: a sample takes "
        f"{seconds_text(samples.usual_s)}, and {seconds_text(kept_s)} if what is opened is kept",
        "Open it once in each worker, when it is first used, and keep it; an array in a file is better mapped than "
        "read.",
        "if self.file is None:\n    self.file = open(self.path)  # np.load(self.path, mmap_mode='r')",
        gain=gain_of(samples.usual_s + measured.batch_share_s, samples.usual_s - kept_s),
    )


def _oversized(measured: Measured, samples: Samples) -> Iterator[Finding]:
    images = samples.decoded
    if images is None or images.pixels < _TOO_MANY_PIXELS * images.used_pixels:
        return
    small, saved_s = "", images.decode_s
    if images.small_sample_s is not None:
        small = f"; with images stored in the size that is used the sample takes {seconds_text(images.small_sample_s)}"
        saved_s = samples.mean_s - images.small_sample_s
    yield Finding(
        "oversized-images",
        f"{images.by} decodes {images.pixels / 1e6:.2f} megapixels for a sample that has "
        f"{images.used_pixels / 1e6:.2f}, which takes {seconds_text(images.decode_s)} of "
        f"{seconds_text(samples.mean_s)}{small}",
        "Store the images smaller, once; or let the decoder make them smaller: feedline.images does, and "
        "PIL.Image.draft.",
        f"feedline pack SOURCE OUT --resize {max(1, round(images.used_pixels**0.5))}",
        gain=gain_of(samples.mean_s + measured.batch_share_s, saved_s),
    )


def _stragglers(measured: Measured, samples: Samples) -> Iterator[Finding]:
    times = np.array(samples.seconds[2:])  # the first ones are slow for reasons of their own
    if len(times) < _FEW:
        return
    usual, late = np.quantile(times, (0.5, 0.99)).tolist()
    slow = times[times > _SLOW * usual]
    excess = float((slow - usual).sum())
    confirmed = [index for index, seconds in samples.repeated if seconds > _SLOW / 2 * usual]
    if late < max(_SPREAD * usual, _SLOW_S) or excess < _SLOW_SHARE * times.sum() or len(confirmed) < 2:
        return
    yield Finding(
        "stragglers",
        f"{len(slow)} of {len(times)} samples take more than {_SLOW} times the usual {seconds_text(usual)}: one in a "
        f"hundred takes {seconds_text(late)} or more ({late / usual:.0f} times). Slow again when repeated: "
        f"{', '.join(confirmed[:5])}",
        "See what these samples have in common, such as their size. Until then give the loader a seed=, so that idle "
        "workers take over the work of late ones, or deliver batches as they come.",
        "DataLoader(dataset, in_order=False)",
        gain=gain_of(float(times.sum()) + len(times) * measured.batch_share_s, excess),
    )
