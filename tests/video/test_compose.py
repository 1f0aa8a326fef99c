from __future__ import annotations

import functools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("av")

from feedline import images, video
from feedline.errors import BadOption, CorruptSource, SourceError
from tests.drawing import with_key
from tests.video.files import encoded, every_frame

CLIP = np.arange(6, 22, 2)
"""What `video.CenterClip(8, stride=2)` picks from 30 frames, moved by the sampler below."""


class Fixed(video.ClipSampler):
    """A sampler that picks the given positions."""

    def __init__(self, *positions: Any) -> None:
        self.positions = positions

    def pick(self, timeline: video.Timeline) -> Any:
        return np.array(self.positions)


FLIP = type("Flip", (), {"__call__": lambda self, image: image, "__module__": "albumentations.core"})()
TRAIN = (
    images.RandomResizedCrop(32),
    images.HorizontalFlip(),
    images.ColorJitter(0.4, 0.4, 0.4, 0.1),
    images.Normalize(),
)


@pytest.mark.parametrize("key", range(3))
def test_each_frame_equals_the_result_of_feedline_images(key: int) -> None:
    data = encoded()
    clip = with_key(key, lambda: video.Compose([Fixed(*CLIP), *TRAIN])(data))
    train = images.Compose(TRAIN)
    alone = [with_key(key, functools.partial(train, frame)) for frame in every_frame(data)[CLIP]]
    assert clip.dtype == np.float32
    assert np.array_equal(clip, np.stack(alone))


def test_axes() -> None:
    half = video.Compose([Fixed(1, 2), images.Normalize(dtype="bfloat16")])(encoded())
    assert (str(half.dtype), half.shape) == ("torch.bfloat16", (2, 3, 64, 96))
    data = encoded()
    frames = every_frame(data)[CLIP]
    plain = [Fixed(*CLIP)]
    normal = [Fixed(*CLIP), images.Normalize()]
    assert np.array_equal(video.Compose(plain)(data), frames)
    assert np.array_equal(video.Compose(plain, axes="TCHW")(data), frames.transpose(0, 3, 1, 2))
    assert np.array_equal(video.Compose(plain, axes="CTHW")(data), frames.transpose(3, 0, 1, 2))
    first = video.Compose(normal)(data)
    assert first.shape == (8, 3, 64, 96)
    assert np.array_equal(video.Compose(normal, axes="CTHW")(data), first.transpose(1, 0, 2, 3))
    assert np.array_equal(video.Compose(normal, axes="THWC")(data), first.transpose(0, 2, 3, 1))
    assert video.Compose(normal, axes="CTHW")(data).flags.c_contiguous


def test_several_clips_and_repeated_frames() -> None:
    data = encoded()
    right = every_frame(data)
    picked = np.array([[3, 3, 20], [20, 3, 49]])
    clips = video.Compose([Fixed(*picked)])(data)
    assert np.array_equal(clips, right[picked])
    across = video.Compose([Fixed(*picked)], axes="CTHW")(data)
    assert np.array_equal(across, right[picked].transpose(0, 4, 1, 2, 3))
    assert video.Compose([video.EvenClips(4, 3), images.Resize(16)])(data).shape == (3, 4, 16, 24, 3)


def test_a_function_receives_the_whole_clip() -> None:
    data = encoded()
    seen = []

    def function(clip: Any) -> Any:
        seen.append((clip.shape, clip.dtype))
        return clip[:, ::-1]

    pipeline = video.Compose([Fixed(*CLIP), images.Resize(32), function, images.CenterCrop(24), images.Normalize()])
    clip = pipeline(data)
    assert seen == [((8, 32, 48, 3), np.uint8)]
    assert clip.shape == (8, 3, 24, 24)
    alone = images.Compose([images.Resize(32), lambda frame: frame[::-1], images.CenterCrop(24), images.Normalize()])
    assert np.array_equal(clip[2], alone(every_frame(data)[CLIP[2]]))
    assert video.Compose([Fixed(1, 2, 3), lambda clip: clip.mean()])(data) == pytest.approx(
        every_frame(data)[1:4].mean()
    )
    assert video.Compose([Fixed(1, 2, 3), lambda clip: clip[:2], images.Resize(8)])(data).shape == (2, 8, 12, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: video.Compose([]), "nothing"),
        (lambda: video.Compose([images.Resize(8)]), "Resize"),
        (lambda: video.Compose([video.RandomClip(2), video.RandomClip(2)]), "RandomClip"),
        (lambda: video.Compose([video.RandomClip(2), 3]), "3 "),
        (lambda: video.Compose([video.RandomClip(2)], axes="HWTC"), "axes='HWTC'"),
        (lambda: video.Compose([video.RandomClip(2), len], axes="CTHW"), "axes="),
        (lambda: video.Compose([video.RandomClip(2)], threads=1.5), "threads=1.5"),  # type: ignore[arg-type]
        (lambda: video.Compose([video.RandomClip(2), images.Normalize(), images.Resize(4)]), "Put it before"),
        (lambda: video.Compose([video.RandomClip(2), FLIP]), "Flip"),
    ],
)
def test_bad_options_are_rejected(make: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        make()


@pytest.mark.parametrize(
    ("positions", "function", "named"),
    [
        *((positions, None, "positions of frames") for positions in ((), (1.5,), (((1,),),))),
        ((1,), lambda clip: clip / 2, "float64"),
        ((1,), lambda clip: clip[:0], "one frame"),
        ((1,), lambda clip: None, "NoneType"),
    ],
)
def test_rejects_bad_results_of_samplers_and_functions(positions: Any, function: Any, named: str) -> None:
    with pytest.raises(BadOption, match=named):
        video.Compose([Fixed(*positions), *([function] if function else []), images.Resize(8)])(encoded())


def test_rejects_a_clip_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_MAX_SAMPLE_BYTES", "1MB")
    with pytest.raises(CorruptSource, match="12582912"):
        video.Compose([video.CenterClip(16), images.Resize((512, 512))])(encoded())


def test_it_can_be_pickled_and_printed() -> None:
    pipeline = video.Compose([video.RandomClip(4, fps=5), images.Resize(8)], axes="CTHW", threads=2).on("mp4")
    again = pickle.loads(pickle.dumps(pipeline))
    assert repr(again) == repr(pipeline)
    assert repr(pipeline) == (
        "Compose([RandomClip(frames=4, fps=5.0, short='hold'), Resize(size=8)], axes='CTHW', threads=2).on('mp4')"
    )


@pytest.mark.parametrize(
    "finish", [images.Resize(20), images.Normalize(), images.ToChannelsFirst(), images.Normalize(channels_first=False)]
)
def test_torchvision_receives_a_tensor_with_channels_first(finish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class ReturnsShape:
        def __call__(self, clip: Any) -> Any:
            assert type(clip) is torch.Tensor
            return tuple(clip.shape)

    monkeypatch.setattr(ReturnsShape, "__module__", "torchvision.transforms.v2")
    transforms = [video.CenterClip(4), images.Resize((20, 30)), finish, ReturnsShape()]
    assert video.Compose(transforms)(encoded()) == (4, 3, 20, 30)


def test_the_error_names_a_video_that_is_too_short(tmp_path: Path) -> None:
    path = tmp_path / "short.mp4"
    path.write_bytes(encoded())
    with pytest.raises(SourceError, match="too few") as caught:
        video.Compose([video.RandomClip(500, short="error")])(path)
    assert "short.mp4" in "".join(caught.value.__notes__)
