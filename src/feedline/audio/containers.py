"""What the container of an audio file says: which format it is, and whether the file is complete.

libsndfile reads a file that was cut off as if it were shorter, unless its format has checksums. The sizes that WAV and
AIFF files declare, and the mark at the end of Ogg files, show what is missing. FLAC frames have checksums, and an MP3
that is cut off ends before the frames that its header declares.

libsndfile skips damaged pages of Ogg files without an error, and the sound after them comes too early. So the pages
that hold the wanted sound are compared with their checksums here.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import NamedTuple

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
_NO_GRANULE = (1 << 64) - 1
"""Of a page on which no packet of sound ends."""
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
"""Each byte with its bits in the reverse order."""


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
    """Reject a file that ends too early, and an Ogg file whose first pages are damaged.

    Args:
        name: names the file in errors.
        format_: one of `FORMATS`.
        size: the size of the file in bytes.
        read: reads from it.

    Raises:
        CorruptSource: it is cut off or damaged.
    """
    missing, what = 0, ""
    if format_ in ("WAV", "RF64", "AIFF"):
        missing = _missing_in_chunks(format_, size, read)
        what = f"{missing} bytes of sound are"
    elif format_ == "OGG":
        page = _last_page(size, read)
        missing, what = page is None or not (page.is_last and page.is_whole), "its last page is"
    if missing > 0:
        raise CorruptSource(
            f"{name} is cut off: it has {size} bytes, and {what} missing. Write or copy it again, or leave it out."
        )
    if format_ == "OGG":  # without the first page of sound, the length that libsndfile finds would be wrong
        _check_pages_from(0, 1, name, size, read)


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


class _Page(NamedTuple):
    """A page of an Ogg file."""

    place: int
    end: int
    granule: int
    """The number of frames from the beginning of the sound to the end of the page."""
    is_last: bool
    is_whole: bool
    """True if its checksum is right."""


def check_pages(name: str, size: int, read: Read, first: int, last: int) -> None:
    """Compare pages of an Ogg file with their checksums: those that hold the wanted sound.

    Args:
        name: names the file in errors.
        size: the size of the file in bytes.
        read: reads from it.
        first: where the wanted sound begins, in granules before the end of the sound.
        last: where it ends.

    Raises:
        CorruptSource: one of them is damaged.
    """
    final = _last_page(size, read)
    length = 0 if final is None else final.granule
    place, end = 0, size
    while length > first and end - place > _LARGEST_PAGE:  # look for a page that ends before the wanted sound
        middle = (place + end) // 2
        page = _page_after(middle, read)
        if page is not None and page.granule < length - first:
            place = page.place
        else:
            end = middle
    _check_pages_from(place, length - last, name, size, read)


def _check_pages_from(place: int, stop: int, name: str, size: int, read: Read) -> None:
    """Check the pages from this place on, up to the one that holds the granule `stop`."""
    while place < size:
        page = _page_at(place, read)
        if page is None or not page.is_whole:
            raise CorruptSource(f"{name} is damaged at byte {place}. Write or copy it again, or leave it out.")
        place = page.end
        if page.is_last or (page.granule != _NO_GRANULE and page.granule >= stop):
            return


def _page_after(place: int, read: Read) -> _Page | None:
    """Return the next whole page that begins there or later; None if there is none within the length of a page."""
    data = read(place, _LARGEST_PAGE)
    offset = data.find(b"OggS\0")
    while offset >= 0:
        page = _page_at(place + offset, read)
        if page is not None and page.is_whole:
            return page
        offset = data.find(b"OggS\0", offset + 1)
    return None


def _page_at(place: int, read: Read) -> _Page | None:
    """Return the page that begins there; None if none does."""
    data = read(place, _LARGEST_PAGE)
    if len(data) < 27 or data[:5] != b"OggS\0":
        return None
    size = 27 + data[26] + sum(data[27 : 27 + data[26]])
    # The checksum is a CRC-32 that takes the bits of each byte in the other order than zlib's, and begins with 0.
    reverse = (data[:22] + bytes(4) + data[26:size]).translate(_REVERSED)
    crc = int(f"{zlib.crc32(reverse, 0xFFFFFFFF) ^ 0xFFFFFFFF:032b}"[::-1], 2)
    is_whole = len(data) >= size and crc == int.from_bytes(data[22:26], "little")
    granule = int.from_bytes(data[6:14], "little")
    return _Page(place, place + size, granule, bool(data[5] & _LAST_PAGE), is_whole)


def _last_page(size: int, read: Read) -> _Page | None:
    tail = max(0, size - _LARGEST_PAGE)
    place = read(tail, _LARGEST_PAGE).rfind(b"OggS\0")
    return None if place < 0 else _page_at(tail + place, read)
