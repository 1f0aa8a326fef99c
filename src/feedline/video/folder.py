"""Videos in folders, one folder per class."""

from __future__ import annotations

import os
from collections.abc import Iterable

from feedline.datasets.formats.files.dataset import FileDataset, LabelSource, Path
from feedline.datasets.framework.form import Fields
from feedline.datasets.framework.source import Transform
from feedline.datasets.framework.store import Cache, checked_cache
from feedline.errors import BadOption
from feedline.video.file import Video
from feedline.video.index import VideoIndex

VIDEOS = (
    ".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".mts", ".m2ts", ".flv", ".wmv", ".3gp",
    ".ogv",
)  # fmt: skip
"""Endings of file names that count as videos."""


class VideoFolder(FileDataset):
    """A dataset of videos in a folder, by default with a class for each of its directories.

    Classes, their numbers and the order of samples are those of `ImageFolder`. A sample is a tuple of a video and a
    label: the clip that a transform from `feedline.video` returns, or a `Video`, which decodes frames on demand.

    The constructor reads every video once, without decoding it, to find its frames and key frames. This index is
    stored, and a video is read again only after it has changed.

    Args:
        root: the folder.
        fields: which of "video", "label" and "path" a sample has, and in what form: see `FileDataset`.
        extensions: allowed endings of names, ignoring case.
        labels: "folder" for the directory that a video is in, a CSV file, a function or None: see `FileDataset`.
        unlabelled: "error" or "skip": what to do with videos that a CSV file does not name, or gives an empty label.
        allow_empty: True if a directory without videos is also a class.
        transform: from `feedline.video`, applied to the video; or any function, applied to each sample.
        index: the folder to keep the index in. True to keep indices of 100 videos or more in the user's cache folder
            (`$FEEDLINE_CACHE`). False for no index: every clip then reads its whole video to find the frames.
        cache: whether or where to cache the listing: see `FileDataset`.

    Raises:
        SourceError: the folder is missing, has no videos, or a class has none; or a table of labels does not match.
        BadOption: an option is invalid.
        MissingExtra: PyAV is not installed.
        CorruptSource: when a sample is read: its file is damaged, truncated or not a video.
        SourceChanged: when a sample is read: its file has changed since the index was made.

    Example:
        >>> from feedline import images, video
        >>> clip = video.Compose([video.RandomClip(16, stride=2), images.RandomResizedCrop(112), images.Normalize()])
        >>> dataset = VideoFolder("videos", transform=clip)  # doctest: +SKIP
        >>> dataset[0][0].shape  # doctest: +SKIP
        (16, 3, 112, 112)
    """

    _value = "video"

    def __init__(
        self,
        root: Path,
        fields: Fields = ("video", "label"),
        *,
        extensions: str | Iterable[str] | None = VIDEOS,
        labels: LabelSource = "folder",
        unlabelled: str = "error",
        allow_empty: bool = False,
        transform: Transform | None = None,
        index: Cache = True,
        cache: Cache = True,
    ) -> None:
        fields = self._folder_fields(root, fields, labels)
        if not isinstance(index, (bool, str, os.PathLike)):
            raise BadOption(f"index={index!r} is neither True, False nor the path of a folder.")
        cache = checked_cache(cache)
        super().__init__(
            root,
            extensions=extensions,
            labels=labels,
            unlabelled=unlabelled,
            allow_empty=allow_empty,
            fields=fields,
            transform=transform,
            cache=cache,
        )
        self._index: VideoIndex | None = None
        if index is not False:
            assert self.root is not None  # a folder was given
            chosen = [self._paths.get(int(number)) for number in self._chosen]
            self._index = VideoIndex(self.root, chosen, index)

    def _read_value(self, index: int, path: str) -> Video:
        return Video(path, table=None if self._index is None else self._index.table(index, path))
