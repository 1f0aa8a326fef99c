"""Samples that read more of their source than they need: rows, images, files opened again and again."""

from __future__ import annotations

from collections.abc import Iterator

from feedline.insight.stats import shown
from feedline.insight.worker_model import LEAST_GAIN
from feedline.system.shown import counted
from feedline.system.sizes import bytes_text
from feedline.tools.advise.finding import Finding, gain_of
from feedline.tools.measure.measured import Measured

_COSTLY_S = 1e-4
"""Rows of samples that take less are not looked at."""
_CLEARLY = 1.25
"""A smaller gain is not worth another source."""


def find(measured: Measured) -> list[Finding]:
    """Return the findings about the source of the samples."""
    return [*_rows(measured), *_images(measured)] or list(_reopened(measured))


def _rows(measured: Measured) -> Iterator[Finding]:
    """Name the source of ours that reads the rows, if it was measured to be faster."""
    samples, rows = measured.samples, measured.samples.rows
    if rows is None or samples.usual_s < _COSTLY_S:
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
