"""Collects all findings about a dataset or a run, and summarises the measurements."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace

import numpy as np

from feedline.errors import BadOption
from feedline.insight.recording import Recording
from feedline.insight.stats import shown
from feedline.loader.base import LoaderBase
from feedline.system.sizes import bytes_text
from feedline.tools.advise import running, slow_batches, slow_samples, workers, wrong_data
from feedline.tools.advise.finding import Findings, beyond_noise
from feedline.tools.measure.measured import LEAST_SAMPLES, Measured
from feedline.types import JsonObject

_NOISY = 0.2
"""The summary mentions noise from this share on. A guess."""
_GROUPS = (wrong_data.find, slow_samples.find, slow_batches.find, workers.find)


def doctor(run: LoaderBase | Recording | str | os.PathLike[str], *, seconds: float | None = None) -> Findings:
    """Report what to change about a loader, from its own measurements or from a recording.

    Does not probe the dataset or block unless you pass `seconds`. You may call it while the loader is being iterated.
    From a shell, use `feedline doctor run.json` and `feedline doctor module:dataset`.

    Args:
        run: a loader, a recording, or the path of a recording.
        seconds: also probe the loader's dataset for at most this long, in a separate process; Linux only.

    Returns:
        A list of findings with `name`, `evidence`, `fix`, `code`, `gain`; serious ones first, then by gain. Print it to
        read them.

    Raises:
        BadOption: `run` is not a feedline loader; or `seconds` was given with a recording, which has no dataset.
        BadRecording: the file is not a recording, is truncated, or has another version.
        DatasetFailed: no sample could be made within `seconds`.

    Example:
        >>> import feedline
        >>> loader = feedline.Loader(list(range(8)), 2)
        >>> batches = list(loader)
        >>> print(feedline.doctor(loader))
        Found nothing to change.
    """
    if isinstance(run, LoaderBase):
        found = running.of_loader(run)
        return found if seconds is None else Findings([*found, *_tried(run, seconds, found)])
    if not isinstance(run, (str, os.PathLike, Recording)):
        raise BadOption(
            f"doctor() was given {type(run).__name__}, which is neither a feedline loader nor a recording. Pass the "
            "DataLoader or Loader itself, or a recording from feedline.record. For a dataset or torch's loader, run in "
            "a shell: feedline doctor module:dataset."
        )
    if seconds is not None:
        raise BadOption(
            "seconds= was given, but there is no dataset in a recording to probe. Leave it out, or pass the loader."
        )
    return running.of_recording(run if isinstance(run, Recording) else Recording.load(run))


def _tried(loader: LoaderBase, seconds: float, known: Findings) -> Findings:
    """Probe the dataset of a loader; leave out findings that its run already gave."""
    if sys.platform != "linux":
        raise BadOption("A dataset can be probed only on Linux, where its process can be watched. Leave out seconds=.")
    from feedline.tools.measure.probe import probe  # Linux only

    names = {finding.name for finding in known}
    return Findings(finding for finding in diagnose(probe(loader, seconds=seconds)) if finding.name not in names)


def diagnose(measured: Measured) -> Findings:
    """Return the findings about a probed dataset; those that noise may have caused become `not-sure`.

    Gains are promised only if enough samples were made.
    """
    found = [finding for find in _GROUPS for finding in find(measured)]
    if len(measured.samples.seconds) < LEAST_SAMPLES:
        found = [replace(finding, gain=None) for finding in found]
    return Findings(beyond_noise(found, measured.noise.floor, str(measured.noise)))


def summary(measured: Measured) -> list[str]:
    """Return the measurements as lines of text."""
    making, samples, batch = measured.making, measured.samples, measured.batch
    length = "an unknown number of samples" if making.length is None else f"{making.length:,} samples"
    usual, late = np.quantile(samples.seconds, (0.5, 0.99)).tolist()
    lines = [
        f"{making.kind}: {length}",
        f"{len(samples.seconds)} samples tried: {shown(samples.mean_s)} each (p50 {shown(usual)}, p99 {shown(late)}), "
        f"{1 / samples.mean_s:,.0f} a second; {samples.cpu_share:.0%} computing; {bytes_text(samples.sample_bytes)}",
    ]
    if len(samples.seconds) < LEAST_SAMPLES:
        few = f"These are fewer than {LEAST_SAMPLES} samples, so no gains are promised."
        lines.append(f"{few} Allow more time (--seconds).")
    if batch is not None:
        lines.append(
            f"A batch of {batch.size}: {bytes_text(batch.bytes)}, collated in {shown(batch.collate_s)}; "
            f"sent in {shown(batch.sent_s)} through shared memory"
        )
    elif measured.loader is None:
        why = (
            "the default collate function cannot combine the samples. If your loader has a collate_fn=, name the loader"
        )
        lines.append(f"No batch was measured: {why} in place of the dataset")
    elif measured.loader.batch_size is not None:
        lines.append("No batch was measured: the loader's collate function failed")
    rates = measured.threads.rates
    several = [(count, rate / rates[1]) for count, rate in rates.items() if count > 1]
    lines += [f"{count} threads made {times:.2f} times the samples of one" for count, times in several]
    noise = measured.noise
    if noise.floor >= _NOISY or noise.queued >= _NOISY:
        lines.append(f"This machine is busy. {noise}")
    return lines


def as_dict(measured: Measured) -> JsonObject:
    """Return the figures of `summary` for programs."""
    making, samples, batch = measured.making, measured.samples, measured.batch
    p50, p90, p99 = np.quantile(samples.seconds, (0.5, 0.9, 0.99)).tolist()
    # object: JSON values.
    figures: dict[str, object] = {
        "cores": measured.headroom.cores, "ended": measured.ended, "noise": asdict(measured.noise),
        "dataset": making.kind, "length": making.length, "samples": len(samples.seconds), "failed": samples.failed,
        "sample_s": samples.mean_s, "p50_s": p50, "p90_s": p90, "p99_s": p99, "cpu_share": samples.cpu_share,
        "sample_bytes": samples.sample_bytes,
    }  # fmt: skip
    if batch is not None:
        figures.update(batch_size=batch.size, batch_bytes=batch.bytes, collate_s=batch.collate_s, sent_s=batch.sent_s)
    if rates := measured.threads.rates:
        figures["samples_per_s_by_threads"] = {str(count): rate for count, rate in rates.items()}
    return figures
