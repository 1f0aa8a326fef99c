"""Which frames of a video form a clip: random for training, central or evenly spaced for validation."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption, SourceError
from feedline.randomness.scope import rng
from feedline.system.options import checked_choice, checked_count, checked_number
from feedline.video.frame_table import Timeline

Positions = NDArray[np.int64]
"""Positions of frames: one axis for a clip, two for several clips."""


class ClipSampler(ABC):
    """Chooses frames of a video. Subclass it to choose them your own way.

    Example:
        >>> class EverySecond(ClipSampler):
        ...     def pick(self, timeline):
        ...         return timeline.at(np.arange(int(timeline.duration_s) + 1))
    """

    @abstractmethod
    def pick(self, timeline: Timeline) -> Positions:
        """Return positions of frames, from 0 to `len(timeline) - 1`, in any order and with repeats.

        Draw random numbers from `feedline.rng()`. Two axes, clip and frame, stand for several clips.
        """

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if value is not None)
        return f"{type(self).__name__}({options})"


class _Spaced(ClipSampler):
    """Clips of frames with the same distance between them."""

    def __init__(
        self, frames: int, *, stride: int | None = None, fps: float | None = None, short: str = "hold"
    ) -> None:
        if stride is not None and fps is not None:
            raise BadOption(f"stride={stride!r} and fps={fps!r} were both given. Each sets the distance: drop one.")
        self.frames = checked_count("frames", frames)
        self.stride = None if stride is None else checked_count("stride", stride)
        self.fps = None if fps is None else checked_number("fps", fps, above=0)
        self.short = checked_choice("short", short, ("hold", "loop", "error"))

    def _clips(self, timeline: Timeline, shares: NDArray[np.float64]) -> Positions:
        """Return clips at these shares of the way from the first place where a clip fits to the last."""
        steps = np.arange(self.frames)
        if self.fps is None:
            steps *= self.stride or 1
            last = len(timeline) - 1 - steps[-1]
            if last < 0:
                self._check_long_enough(timeline)
            begins = np.floor(shares * (max(last, 0) + 1)).astype(np.int64).clip(0, max(last, 0))
            found = begins[:, None] + steps
            whole: Positions = found % len(timeline) if self.short == "loop" else found.clip(0, len(timeline) - 1)
            return whole
        seconds = steps / self.fps
        last_s = float(timeline.times_s[-1] - seconds[-1])
        if last_s < 0 and timeline.duration_s * self.fps < self.frames - 1e-3:
            self._check_long_enough(timeline)
        wanted_s = (shares * max(last_s, 0.0))[:, None] + seconds
        if self.short == "loop" and timeline.duration_s > 0:
            wanted_s %= timeline.duration_s
        return timeline.at(wanted_s)

    def _check_long_enough(self, timeline: Timeline) -> None:
        if self.short == "error":
            raise SourceError(
                f"The video has {len(timeline)} frames in {timeline.duration_s:.2f} s, too few for {self!r}. Leave it "
                'out with on_error="skip", or use short="hold" to repeat its last frame or short="loop" to start again.'
            )


class RandomClip(_Spaced):
    """A clip from a random position, for training.

    Args:
        frames: number of frames of the clip.
        stride: distance between frames of the clip, in frames of the video; 1 if neither this nor `fps` is given.
        fps: frames per second of the clip, regardless of the video's rate: frames are repeated or left out.
        short: what to do if the video is too short: "hold" its last frame, "loop", or raise an "error".

    Raises:
        BadOption: an option is invalid.

    Example:
        >>> RandomClip(16, stride=2)
        RandomClip(frames=16, stride=2, short='hold')
    """

    def pick(self, timeline: Timeline) -> Positions:
        clip: Positions = self._clips(timeline, np.array([rng().random()]))[0]
        return clip


class CenterClip(_Spaced):
    """The clip in the middle of a video, for validation.

    Args:
        frames: number of frames of the clip.
        stride: distance between frames: see `RandomClip`.
        fps: frames per second of the clip: see `RandomClip`.
        short: what to do if the video is too short: see `RandomClip`.

    Example:
        >>> CenterClip(2).pick(Timeline(np.arange(6), 1)).tolist()
        [2, 3]
    """

    def pick(self, timeline: Timeline) -> Positions:
        clip: Positions = self._clips(timeline, np.array([0.5]))[0]
        return clip


class EvenClips(_Spaced):
    """Several clips, the first at the beginning and the last at the end of a video; they may overlap.

    The result has one more axis, the clip. Average a model's predictions over it.

    Args:
        frames: number of frames of each clip.
        clips: number of clips; a single one is central.
        stride: distance between frames: see `RandomClip`.
        fps: frames per second of the clips: see `RandomClip`.
        short: what to do if the video is too short: see `RandomClip`.

    Example:
        >>> EvenClips(2, 3).pick(Timeline(np.arange(6), 1)).tolist()
        [[0, 1], [2, 3], [4, 5]]
    """

    def __init__(
        self,
        frames: int,
        clips: int,
        *,
        stride: int | None = None,
        fps: float | None = None,
        short: str = "hold",
    ) -> None:
        super().__init__(frames, stride=stride, fps=fps, short=short)
        self.clips = checked_count("clips", clips)

    def pick(self, timeline: Timeline) -> Positions:
        return self._clips(timeline, np.linspace(0, 1, self.clips) if self.clips > 1 else np.array([0.5]))


class EvenFrames(ClipSampler):
    """Frames spread over the whole video: one from each of as many parts of equal length.

    Args:
        frames: number of frames.
        random: True for a random frame of each part, for training; False for the one in its middle.

    Example:
        >>> EvenFrames(3).pick(Timeline(np.arange(9), 1)).tolist()
        [1, 4, 7]
    """

    def __init__(self, frames: int, *, random: bool = False) -> None:
        self.frames = checked_count("frames", frames)
        self.random = checked_choice("random", random, (False, True))

    def pick(self, timeline: Timeline) -> Positions:
        shares = rng().random(self.frames) if self.random else np.full(self.frames, 0.5)
        found = ((np.arange(self.frames) + shares) * (len(timeline) / self.frames)).astype(np.int64)
        return found.clip(0, len(timeline) - 1)
