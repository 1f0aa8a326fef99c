"""Audio decoding and training transforms."""

from feedline.audio.compose import Compose
from feedline.audio.decoding import AudioInfo, decode_audio, info
from feedline.audio.duration_index import durations
from feedline.audio.folder import AudioFolder
from feedline.audio.log_mel import LogMel, length_mask
from feedline.audio.transforms import CenterClip, Mono, RandomClip, Resample

__all__ = [
    "AudioFolder",
    "AudioInfo",
    "CenterClip",
    "Compose",
    "LogMel",
    "Mono",
    "RandomClip",
    "Resample",
    "decode_audio",
    "durations",
    "info",
    "length_mask",
]


def __dir__() -> list[str]:
    return __all__
