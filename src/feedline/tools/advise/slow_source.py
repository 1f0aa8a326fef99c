"""Samples that read more of their source than they need: rows, files, images."""

from __future__ import annotations

from collections.abc import Iterator

from feedline.insight.stats import shown
from feedline.insight.worker_model import LEAST_GAIN
from feedline.system.sizes import bytes_text
from feedline.tools.advise.finding import Finding, gain_of
from feedline.tools.measure.measured import Measured, Opened, Samples

_COSTLY_S = 1e-4
"""Rows of samples that take less are not looked at."""
_PACKED = "feedline pack {} OUT.lmdb"
_ROWS = 0.5
"""A library that takes a smaller share of a sample's time is not replaced."""
_OTHER_GAIN = 1.25
_TOO_MANY_PIXELS = 4


def find(measured: Measured) -> list[Finding]:
    """Return the findings about the source of the samples."""
    samples = measured.samples
    if samples is None:
        return []
    rows = list(_rows(measured, samples))
    return [*rows, *([] if rows else _reopened(measured, samples)), *_oversized(measured, samples)]


def _rows(measured: Measured, samples: Samples) -> Iterator[Finding]:
    """Name the source of ours that reads the rows, if it was measured to be faster."""
    rows = samples.rows
    if rows is None or rows.share < _ROWS or samples.usual_s < _COSTLY_S:
        return
    read_s = rows.share * samples.usual_s
    gain = 1.0 if rows.row_s is None else gain_of(measured.pipeline_s, read_s - rows.row_s)
    is_chunked = rows.chunk_rows > 1 and bool(rows.compression)
    if gain < _OTHER_GAIN and not is_chunked:
        return
    fix, code = f"Read the rows with feedline.datasets.{rows.source}", rows.code
    if gain < _OTHER_GAIN:
        fix, code = "Store the rows once in a way in which a sample reads only its own", _PACKED.format(repr(rows.path))
    elif is_chunked:
        fix += ", which keeps unpacked chunks (cache_bytes=); if the file is much larger, store it without compression"
    elif rows.path and rows.library == "pandas":
        fix += ", or keep columns that you compute as arrays in an ArrayDataset"
    chunk = where = ""
    if is_chunked:
        size = bytes_text(rows.chunk_bytes)
        chunk = f" A sample unpacks a whole chunk for its row: {rows.chunk_rows:,} rows, {size}, {rows.compression}."
    if rows.row_s is not None:
        of = f" of {rows.path}" if rows.path else ""
        more = f": there are {rows.unused:,} rows more than samples, which would come, too" if rows.unused else ""
        where = (
            f" {rows.source} took {shown(rows.row_s)} for a row{of}, in batches of random order. Check that its "
            f"row i is your sample i{more}"
        )
    yield Finding(
        "slow-rows",
        f"{rows.library} takes {rows.share:.0%} of a sample's time to read a row.",
        f"{fix}.",
        code,
        gain=gain if gain >= _OTHER_GAIN else None,
        evidence=f"{rows.library} takes {shown(read_s)} of a sample's {shown(samples.usual_s)}.{chunk}{where}",
        margin=gain / _OTHER_GAIN if gain >= _OTHER_GAIN else None,
    )


def _reopened(measured: Measured, samples: Samples) -> Iterator[Finding]:
    if not samples.opened:
        return
    first, others = samples.opened[0], len(samples.opened) - 1
    again_s = sum(file.again_s * min(1.0, file.samples / max(len(samples.seconds), 1)) for file in samples.opened)
    kept_s = samples.kept_open_s
    if kept_s is None:
        kept_s = max(samples.usual_s - again_s, 0.0)
    elif gain_of(samples.usual_s, samples.usual_s - kept_s) < LEAST_GAIN:
        return  # opening is not what takes the time
    reads = ""
    if first.read_bytes > 4 * samples.sample_bytes + 4096:
        reads = f", and each reads {bytes_text(first.read_bytes)} to deliver {bytes_text(samples.sample_bytes)}"
    more = f" and {others} other file{'' if others == 1 else 's'}" if others else ""
    fix, code = _kept(first)
    yield Finding(
        "reopened-file",
        f"Samples {'read all of' if first.read_by else 'open'} the same file again and again.",
        fix,
        code,
        gain=gain_of(measured.pipeline_s, samples.usual_s - kept_s),
        evidence=f"{first.samples} of {len(samples.seconds)} samples opened {first.path}{more}{reads}. A sample takes "
        f"{shown(samples.usual_s)}, and {shown(kept_s)} if opened files are kept",
    )


def _kept(file: Opened) -> tuple[str, str | None]:
    """Return the fix for a file that is opened repeatedly, as a sentence and as code."""
    path = repr(file.path)
    if file.path.endswith(".npy"):
        return (
            "Map the array on first use: rows are then read from the file as they are needed.",
            "# in __init__:\nself.rows = None\n"
            f"# in __getitem__:\nif self.rows is None:\n    self.rows = np.load({path}, mmap_mode='c')\n"
            "# and instead of loading the file:\nrows = self.rows",
        )
    if file.how in ("h5py", "sqlite3"):
        call = f"h5py.File({path}, 'r')" if file.how == "h5py" else f"sqlite3.connect({path})"
        return (
            "Open it once in each worker, when it is first used, and keep it open.",
            f"# in __init__:\nself.file = None\n# in __getitem__:\nif self.file is None:\n    self.file = {call}\n"
            "# and instead of opening the file, without closing it:\nfile = self.file",
        )
    if file.read_by == "lines":
        return (
            "Read the lines once and share them between all workers.",
            f"# in __init__:\nwith open({path}) as file:\n    self.lines = feedline.share(file.readlines())\n"
            "# in __getitem__, instead of opening the file and reading its lines:\nlines = self.lines",
        )
    if file.read_by == "whole" and file.path.endswith(".json"):
        return (
            "Parse the file once and share its content between all workers.",
            f"# in __init__:\nwith open({path}) as file:\n    self.items = feedline.share(json.load(file))\n"
            "# in __getitem__, instead of opening and loading the file:\nitems = self.items",
        )
    if file.read_by == "whole":
        kind = "BytesIO" if "b" in file.mode else "StringIO"
        return (
            "Read the file once and keep its content; better still, keep the parsed result.",
            f"# in __init__:\nwith open({path}, {file.mode!r}) as file:\n    self.content = file.read()\n"
            f"# in __getitem__, instead of opening the file:\nfile = io.{kind}(self.content)",
        )
    if not file.mode:
        return "Open it once in each worker, when it is first used, and keep it open.", None
    return (
        "Open it once in each worker, when it is first used, and keep it open.",
        f"# in __init__:\nself.file = None\n"
        f"# in __getitem__:\nif self.file is None:\n    self.file = open({path}, {file.mode!r})\n"
        "# and instead of opening the file, without closing it:\nfile = self.file\nfile.seek(0)",
    )


def _oversized(measured: Measured, samples: Samples) -> Iterator[Finding]:
    images = samples.decoded
    if images is None or images.pixels < _TOO_MANY_PIXELS * images.used_pixels:
        return
    small, saved_s = "", images.decode_s
    crops = (
        f", because crops keep as little as {images.kept:.0%} of an image"
        if images.kept < 1
        else ". Pillow was not seen to crop them; if your own code does, resize them to more, or you lose resolution"
    )
    if images.small_sample_s is not None:
        small = f". With images stored at the size used, the sample takes {shown(images.small_sample_s)}"
        saved_s = samples.usual_s - images.small_sample_s
    yield Finding(
        "oversized-images",
        f"Images are decoded with {images.pixels / images.used_pixels:.0f} times the pixels that are needed.",
        "Let the decoder scale them (feedline.images, PIL.Image.draft), or store smaller images once; a stored image "
        "that is cropped later needs more pixels than the crop.",
        f"feedline pack SOURCE OUT.tar --resize {max(1, round(images.used_pixels**0.5))}",
        gain=gain_of(measured.pipeline_s, saved_s),
        evidence=f"{images.by} decodes {images.pixels:,.0f} pixels for a sample that needs "
        f"{images.used_pixels:,.0f}{crops}. Decoding takes {shown(images.decode_s)} of the sample's "
        f"{shown(samples.usual_s)}{small}",
    )
