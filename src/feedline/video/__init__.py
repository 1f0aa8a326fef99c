"""Video: clips of videos, decoded on the CPU, with the transforms of `feedline.images`."""

from feedline.video.clips import CenterClip, ClipSampler, EvenClips, EvenFrames, RandomClip
from feedline.video.compose import Compose
from feedline.video.file import Video
from feedline.video.folder import VideoFolder
from feedline.video.frame_table import Timeline

__all__ = [
    "CenterClip",
    "ClipSampler",
    "Compose",
    "EvenClips",
    "EvenFrames",
    "RandomClip",
    "Timeline",
    "Video",
    "VideoFolder",
]


def __dir__() -> list[str]:
    return __all__
