"""Audio files in folders, one folder per class."""

from __future__ import annotations

from collections.abc import Iterable

from feedline.audio.compose import Compose, audio_transform
from feedline.datasets.formats.files.dataset import FileDataset, LabelSource, Path
from feedline.datasets.framework.form import Fields
from feedline.datasets.framework.source import Transform
from feedline.datasets.framework.store import Cache

AUDIO = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc")
"""The endings of audio files that are read."""

_WHOLE = Compose([])


class AudioFolder(FileDataset):
    """A dataset of audio files in a folder, by default with a class for each of its directories.

    A sample is a tuple of a sound and a label. The sound is a float32 array with the axes channel and frame. With a
    `transform` of `feedline.audio`, only what the transform needs is decoded. Classes, their numbers and the order of
    samples are those of `ImageFolder`; see `FileDataset` for how files are listed and stored.

    The rate of the sound is that of the file, unless `Resample` changes it. If your files have several rates, use
    `Resample`, or add "rate" to the fields.

    Args:
        root: the folder.
        fields: which of "audio", "rate", "label" and "path" a sample has, and in what form: see `FileDataset`. "rate"
            is that of the sound as the transform returns it.
        extensions: allowed endings of names, ignoring case.
        labels: "folder" for the directory that a file is in, a CSV file, a function or None: see `FileDataset`.
        unlabelled: "error" or "skip": what to do with files that a CSV file does not name, or gives an empty label.
        allow_empty: True if a directory without audio files is also a class.
        transform: from `feedline.audio`, applied to the sound; or any function, applied to each sample, whose sound is
            then decoded as a whole.
        cache: whether or where to cache the listing: see `FileDataset`.

    Raises:
        SourceError: the folder is missing, has no audio files, or a class has none; or a table of labels does not
            match.
        BadOption: an option is invalid.
        CorruptSource: when a sample is read: its file is damaged, cut off, empty or not audio.
        MissingExtra: when a sample is read: soundfile is not installed, or soxr, which `Resample` needs.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np, soundfile
        >>> from feedline import audio
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("cat", "dog"):
        ...     (folder / name).mkdir()
        ...     soundfile.write(folder / name / "1.flac", np.zeros(16000), 16000)
        >>> dataset = AudioFolder(folder, transform=audio.RandomClip(0.25))
        >>> sound, label = dataset[1]
        >>> sound.shape, label, dataset.classes
        ((1, 4000), 1, ['cat', 'dog'])
    """

    _value = "audio"
    _further = ("rate",)

    def __init__(
        self,
        root: Path,
        fields: Fields = ("audio", "label"),
        *,
        extensions: str | Iterable[str] | None = AUDIO,
        labels: LabelSource = "folder",
        unlabelled: str = "error",
        allow_empty: bool = False,
        transform: Transform | None = None,
        cache: Cache = True,
    ) -> None:
        fields = self._folder_fields(root, fields, labels)
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

    def _several(self, indices: Iterable[object]) -> list[object]:
        if audio_transform(self.transform) is None:
            return super()._several(indices)
        return self._read(self._checked(indices))

    def _sample(self, index: int) -> object:
        path = self.path_of(index)
        names = self._fields.names
        values: dict[str, object] = {"path": path}
        if "label" in names:
            values["label"] = self._label(index)
        if self._value in names or "rate" in names:
            pipeline = audio_transform(self.transform) or _WHOLE
            values[self._value], values["rate"] = pipeline.apply(path)
        return self._fields.build([values[name] for name in names])
