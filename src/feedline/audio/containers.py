"""What the container of an audio file says: which format it is, and whether the file is complete.

libsndfile reads a file that was cut off as if it were shorter, unless its format has checksums. The sizes that WAV and
AIFF files declare, and the mark at the end of Ogg files, show what is missing. FLAC frames have checksums, and an MP3
that is cut off ends before the frames that its header declares.
"""

from __future__ import annotations

from collections.abc import Callable

from feedline.errors import CorruptSource

FORMATS = ("WAV", "RF64", "AIFF", "FLAC", "OGG", "MP3")
"""What is read; libsndfile has parsers for many more formats, most of them old and rarely tested."""

Read = Callable[[int, int], bytes]
"""Returns bytes of a file, given where they begin and how many there are; fewer at its end."""

_MOST_CHUNKS = 4096
_OPEN_ENDED = 0x7FFFF000
"""Programs that write to a pipe declare a size from here up, because they do not know it yet."""
_LARGEST_PAGE = 27 + 255 + 255 * 255
_LAST_PAGE = 4


def format_of(head: bytes) -> str | None:
    """Return the format of a file that begins with these bytes; None if it is not one of `FORMATS`.

    Example:
        >>> format_of(b"fLaC...."), format_of(b"RIFF....WEBPVP8 ")
        ('FLAC', None)
    """
    first = head[:4]
    if first in (b"RIFF", b"RF64"):
        return None if head[8:12] != b"WAVE" else "WAV" if first == b"RIFF" else "RF64"
    if first == b"FORM":
        return "AIFF" if head[8:12] in (b"AIFF", b"AIFC") else None
    if first in (b"fLaC", b"OggS"):
        return "FLAC" if first == b"fLaC" else "OGG"
    if first[:3] == b"ID3" or (first[:1] == b"\xff" and len(first) > 1 and first[1] & 0xE0 == 0xE0):
        return "MP3"  # an ID3 tag may also precede FLAC
    return None


def check_complete(name: str, format_: str, size: int, read: Read) -> None:
    """Reject a file that ends too early.

    Args:
        name: names the file in errors.
        format_: one of `FORMATS`.
        size: the size of the file in bytes.
        read: reads from it.

    Raises:
        CorruptSource: it is cut off.
    """
    missing = 0
    if format_ in ("WAV", "RF64", "AIFF"):
        missing = _missing_in_chunks(format_, size, read)
    elif format_ == "OGG" and not _has_last_page(size, read):
        missing = 1
    if missing > 0:
        what = "its last page is" if format_ == "OGG" else f"{missing} bytes of sound are"
        raise CorruptSource(
            f"{name} is cut off: it has {size} bytes, and {what} missing. Write or copy it again, or leave it out."
        )


def _missing_in_chunks(format_: str, size: int, read: Read) -> int:
    """Return how many bytes of sound are declared, but missing."""
    order, wanted = ("big", b"SSND") if format_ == "AIFF" else ("little", b"data")
    place, size_64 = 12, 0
    for _ in range(_MOST_CHUNKS):
        head = read(place, 8)
        declared = int.from_bytes(head[4:], order)  # type: ignore[arg-type]  # one of two literals
        if head[:4] == wanted:
            if format_ == "RF64" and declared == 0xFFFFFFFF:
                declared = size_64
            elif declared >= _OPEN_ENDED:
                return 0
            return place + 8 + declared - size
        if len(head) < 8:
            return 0  # libsndfile reports that there is no sound
        if head[:4] == b"ds64":
            size_64 = int.from_bytes(read(place + 16, 8), "little")
        place += 8 + declared + declared % 2
    return 0


def _has_last_page(size: int, read: Read) -> bool:
    """True if an Ogg file ends with a whole page that is marked as the last one."""
    tail = read(max(0, size - _LARGEST_PAGE), _LARGEST_PAGE)
    place = tail.rfind(b"OggS\0")
    page = tail[place:]
    if place < 0 or len(page) < 27:
        return False
    lengths = page[27 : 27 + page[26]]
    return bool(page[5] & _LAST_PAGE) and len(page) >= 27 + page[26] + sum(lengths)
