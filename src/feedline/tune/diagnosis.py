"""All of what is found about a dataset, and what was measured of it in a few words."""

from __future__ import annotations

from typing import Any

import numpy as np

from feedline.tune.diseases import batching, fetching, loading, state
from feedline.tune.finding import Finding, in_order, seconds_text
from feedline.tune.measured import Measured
from feedline.values.sizes import bytes_text

_GROUPS = (fetching.find, batching.find, state.find, loading.find)


def diagnose(measured: Measured) -> list[Finding]:
    """Return what is found, the most serious first and then by gain."""
    return in_order(finding for find in _GROUPS for finding in find(measured))


def summary(measured: Measured) -> list[str]:
    """Return what was measured, a line each."""
    making, samples, batch = measured.making, measured.samples, measured.batch
    lines = []
    if making is not None:
        length = "samples without a known end" if making.length is None else f"{making.length:,} samples"
        lines.append(f"{making.kind}: {length}, made in {seconds_text(making.make_s)}")
    if samples is not None:
        usual, late = np.quantile(samples.seconds, (0.5, 0.99)).tolist()
        lines.append(
            f"{len(samples.seconds)} samples tried: {seconds_text(samples.mean_s)} each (p50 {seconds_text(usual)}, "
            f"p99 {seconds_text(late)}), {1 / samples.mean_s:,.0f} a second; {samples.cpu_share:.0%} computing; "
            f"{bytes_text(samples.sample_bytes)}"
        )
    if batch is not None:
        lines.append(
            f"A batch of {batch.size}: {bytes_text(batch.bytes)}, put together in {seconds_text(batch.collate_s)}; "
            f"sent in {seconds_text(batch.arena_s)} through shared memory, in {seconds_text(batch.pickle_s)} by pickle"
        )
    elif samples is not None and (measured.loader is None or measured.loader.batch_size is not None):
        lines.append("The samples could not be put together into a batch")
    rates = {} if measured.threads is None else measured.threads.rates
    several = [(count, rate / rates[1]) for count, rate in rates.items() if count > 1]
    lines += [f"{count} threads made {times:.2f} times the samples of one" for count, times in several]
    return lines


# Any: values that JSON keeps.
def as_dict(measured: Measured) -> dict[str, Any]:
    """Return the figures of `summary` for programs."""
    making, samples, batch, threads = measured.making, measured.samples, measured.batch, measured.threads
    facts: dict[str, Any] = {"cores": measured.room.cores, "ended": measured.ended}
    if making is not None:
        facts.update(dataset=making.kind, length=making.length, make_s=making.make_s)
    if samples is not None:
        p50, p90, p99 = np.quantile(samples.seconds, (0.5, 0.9, 0.99)).tolist()
        facts.update(
            samples=len(samples.seconds), failed=samples.failed, sample_s=samples.mean_s, p50_s=p50, p90_s=p90,
            p99_s=p99, cpu_share=samples.cpu_share, sample_bytes=samples.sample_bytes,
        )  # fmt: skip
    if batch is not None:
        facts.update(
            batch_size=batch.size, batch_bytes=batch.bytes, collate_s=batch.collate_s, arena_s=batch.arena_s,
            pickle_s=batch.pickle_s,
        )  # fmt: skip
    if threads is not None:
        facts["samples_per_s_by_threads"] = {str(count): rate for count, rate in threads.rates.items()}
    return facts
