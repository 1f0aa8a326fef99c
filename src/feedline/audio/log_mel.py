"""Spectrograms on the mel scale, of one sound or of a batch, with NumPy or torch; masks of padded batches."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from feedline.audio.compose import SOUND, ArrayTransform, Compose, is_sound
from feedline.errors import BadOption
from feedline.images.medium import MediumPipeline
from feedline.system.optional import is_tensor, require
from feedline.system.options import checked_choice, checked_count, checked_number

if TYPE_CHECKING:
    import torch

_LOGS = {"ln": 1.0, "log10": 1 / math.log(10), "db": 10 / math.log(10)}
"""What the natural logarithm is multiplied by."""
_SCALES = ("htk", "slaney")
_BLOCK = 1 << 21
"""Values that one Fourier transform of NumPy's takes in at once; the copies of overlapping windows would be large."""


# Any, throughout: arrays and tensors.
@dataclass(frozen=True)
class LogMel(MediumPipeline, ArrayTransform):
    """Turn sound into the logarithm of its spectrogram on the mel scale.

    The last axis of the sound is time; the result has the axes mel and step in its place. Windows are centred, and
    the sound is reflected at its ends, as by default in torchaudio: there is a step at every `hop_length` frames,
    `steps(frames)` in all. The values are those of `torchaudio.transforms.MelSpectrogram` with the same arguments, and,
    with `mel_scale="slaney", norm="slaney"` and its `pad_mode="reflect"`, of `librosa.feature.melspectrogram`;
    `floor` and the logarithm come after it.

    Inside a `Compose` it checks that the sound has its rate. Called with a batch, such as by a loader that has it as
    `device_transform=`, it transforms the only field that holds floats, on the device of the batch. If there are
    several, choose one with `.on(name)`.

    Args:
        rate: frames per second of the sound.
        n_fft: frames in a Fourier transform.
        win_length: frames in a window of Hann; `n_fft` if None.
        hop_length: frames from one window to the next; half a window if None.
        n_mels: bands on the mel scale.
        f_min: the lowest frequency in Hz.
        f_max: the highest; half of `rate` if None.
        power: 2 for energy, 1 for magnitude.
        mel_scale: "htk" or "slaney".
        norm: "slaney" to divide bands by their width, or None.
        log: "ln" for the natural logarithm, "log10", or "db" for ten times that.
        floor: the least value that the logarithm is taken of; smaller ones become this one.

    Raises:
        BadOption: an argument is invalid; or, when called, the sound has another rate or is shorter than half a window.

    Example:
        >>> import numpy as np
        >>> from feedline import audio
        >>> spectrogram = audio.LogMel(16000, n_fft=400, hop_length=160, n_mels=80)
        >>> spectrogram(np.zeros((8, 1, 16000), np.float32)).shape
        (8, 1, 80, 101)
    """

    rate: int
    n_fft: int = 400
    win_length: int | None = None
    hop_length: int | None = None
    n_mels: int = 80
    f_min: float = 0.0
    f_max: float | None = None
    power: float = 2.0
    mel_scale: str = "htk"
    norm: str | None = None
    log: str = "ln"
    floor: float = 1e-10
    _medium = SOUND

    def __post_init__(self) -> None:
        given = {"rate": self.rate, "n_fft": self.n_fft, "n_mels": self.n_mels}
        for name, value in {**given, "win_length": self._window, "hop_length": self.hop}.items():
            checked_count(name, value)
        if self._window > self.n_fft:
            raise BadOption(f"win_length={self.win_length} is longer than n_fft={self.n_fft}.")
        if not 0 <= self.f_min < self._highest <= self.rate / 2:
            raise BadOption(
                f"f_min={self.f_min!r} and f_max={self.f_max!r} are not an interval of frequencies from 0 to "
                f"{self.rate / 2:g} Hz, half of rate={self.rate}."
            )
        checked_choice("mel_scale", self.mel_scale, _SCALES)
        checked_choice("norm", self.norm, (None, "slaney"))
        checked_choice("log", self.log, _LOGS)
        checked_number("power", self.power, above=0)
        checked_number("floor", self.floor, above=0)

    @property
    def _window(self) -> int:
        return self.n_fft if self.win_length is None else self.win_length

    @property
    def hop(self) -> int:
        """Frames from one step to the next."""
        return self._window // 2 if self.hop_length is None else self.hop_length

    @property
    def _highest(self) -> float:
        return self.rate / 2 if self.f_max is None else self.f_max

    def steps(self, frames: Any) -> Any:
        """Return how many steps so many frames have: a number, or the lengths of a batch as an array or tensor."""
        return (frames - self.n_fft % 2) // self.hop + 1

    def _changed(self, value: object) -> object:
        return self.transform(value, None) if is_sound(value) else Compose([self])(value)

    def transform(self, samples: Any, rate: int | None) -> Any:
        if rate not in (None, self.rate):
            raise BadOption(
                f"LogMel(rate={self.rate}) was given sound of {rate} Hz. Put Resample({self.rate}) before it, or give "
                "it that rate."
            )
        if samples.shape[-1] <= self.n_fft // 2:
            raise BadOption(
                f"LogMel(n_fft={self.n_fft}) was given {samples.shape[-1]} frames of sound, and needs at least "
                f'{self.n_fft // 2 + 1}, to reflect them. Leave out so short files, or use short="pad" in a clip.'
            )
        return self._with_torch(samples) if is_tensor(samples) else self._with_numpy(samples)

    def _with_numpy(self, samples: NDArray[np.generic]) -> NDArray[np.float32]:
        rows = samples.reshape(-1, samples.shape[-1])
        out = np.empty((len(rows), self.n_mels, self.steps(rows.shape[1])), np.float32)
        together = max(1, _BLOCK // (out.shape[2] * self.n_fft))
        for start in range(0, len(rows), together):
            self._fill(out[start : start + together], rows[start : start + together])
        return out.reshape(*samples.shape[:-1], *out.shape[1:])

    def _fill(self, out: NDArray[np.float32], rows: NDArray[np.generic]) -> None:
        window, bands = self._tables()
        half = self.n_fft // 2
        padded = np.pad(rows.astype(np.float32, copy=False), ((0, 0), (half, half)), mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(padded, self.n_fft, axis=1)[:, :: self.hop]
        spectrum = np.fft.rfft(frames * window)
        energy = (spectrum.real**2 + spectrum.imag**2).astype(np.float32, copy=False)
        if self.power != 2:
            energy **= self.power / 2
        mel = np.maximum(energy @ bands, np.float32(self.floor))
        np.multiply(np.log(mel), np.float32(_LOGS[self.log]), out=out.swapaxes(1, 2))

    def _with_torch(self, samples: torch.Tensor) -> torch.Tensor:
        import torch

        if not samples.numel():  # torch.stft refuses a batch without sounds
            steps = self.steps(samples.shape[-1])
            return samples.new_empty((*samples.shape[:-1], self.n_mels, steps), dtype=torch.float32)
        window, bands = _on_device(self, samples.device)
        rows = samples.reshape(-1, samples.shape[-1]).to(torch.float32)
        spectrum = torch.stft(
            rows, self.n_fft, self.hop, window=window, center=True, pad_mode="reflect", return_complex=True
        )
        energy = torch.view_as_real(spectrum).square().sum(-1)
        if self.power != 2:
            energy = energy ** (self.power / 2)
        with torch.autocast(samples.device.type, enabled=False):  # halves hold neither large energies nor the floor
            mel = (bands.T @ energy).clamp_min(self.floor).log() * _LOGS[self.log]
        return mel.reshape(*samples.shape[:-1], *mel.shape[1:])

    def _tables(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the window, and the weight of each frequency in each band."""
        return _window_of(self._window, self.n_fft), _bands_of(
            self.rate, self.n_fft, self.n_mels, (self.f_min, self._highest), self.mel_scale, self.norm
        )


# Any: an array or a tensor, and the same of the result.
def length_mask(lengths: Any, size: int | None = None) -> Any:
    """Return a mask of a padded batch: True where a sequence has values, False where it is padded at its end.

    Args:
        lengths: the length of each sequence, as `feedline.collate.pad` returns them: an array, a tensor or a list.
        size: the padded length; the longest of `lengths` if None.

    Returns:
        Booleans with the axes sequence and place: an array, or a tensor on the device of `lengths`.

    Example:
        >>> import numpy as np
        >>> length_mask(np.array([3, 1])).tolist()
        [[True, True, True], [True, False, False]]
    """
    if is_tensor(lengths):
        torch = require("torch", extra="torch", purpose="Masks of tensors")
        places = torch.arange(max(lengths.tolist(), default=0) if size is None else size, device=lengths.device)
        return places < lengths[:, None]
    lengths = np.asarray(lengths)
    return np.arange(lengths.max(initial=0) if size is None else size) < lengths[:, None]


@functools.lru_cache(16)
def _on_device(one: LogMel, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    window, bands = one._tables()
    with torch.inference_mode(False):  # the tables outlive it
        return torch.from_numpy(window.copy()).to(device), torch.from_numpy(bands.copy()).to(device)


@functools.lru_cache(16)
def _window_of(length: int, n_fft: int) -> NDArray[np.float32]:
    """Return a periodic window of Hann in the middle of `n_fft` values."""
    window = np.zeros(n_fft, np.float32)
    left = (n_fft - length) // 2
    window[left : left + length] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)
    window.flags.writeable = False
    return window


@functools.lru_cache(16)
def _bands_of(
    rate: int, n_fft: int, count: int, limits: tuple[float, float], scale: str, norm: str | None
) -> NDArray[np.float32]:
    """Return the triangles of the bands: an array with the axes frequency and band."""
    frequencies = np.linspace(0, rate / 2, n_fft // 2 + 1)[:, None]
    low, high = _mel(np.array(limits), scale)
    edges = _hertz(np.linspace(low, high, count + 2), scale)
    widths = np.diff(edges)
    rising = (frequencies - edges[:-2]) / widths[:-1]
    falling = (edges[2:] - frequencies) / widths[1:]
    bands = np.maximum(0, np.minimum(rising, falling))
    if norm == "slaney":
        bands *= 2 / (edges[2:] - edges[:-2])
    table = bands.astype(np.float32)
    table.flags.writeable = False
    return table


_KNEE_HZ, _LINEAR, _STEP = 1000.0, 200 / 3, math.log(6.4) / 27
"""Slaney's scale is linear below the knee, with so many Hz to a mel, and logarithmic above it."""


def _mel(hertz: NDArray[np.float64], scale: str) -> NDArray[np.float64]:
    if scale == "htk":
        return 2595 * np.log10(1 + hertz / 700)
    above = _KNEE_HZ / _LINEAR + np.log(np.maximum(hertz, _KNEE_HZ) / _KNEE_HZ) / _STEP
    return np.where(hertz < _KNEE_HZ, hertz / _LINEAR, above)


def _hertz(mel: NDArray[np.float64], scale: str) -> NDArray[np.float64]:
    if scale == "htk":
        return 700 * (10 ** (mel / 2595) - 1)
    above = _KNEE_HZ * np.exp(_STEP * (np.maximum(mel, _KNEE_HZ / _LINEAR) - _KNEE_HZ / _LINEAR))
    return np.where(mel < _KNEE_HZ / _LINEAR, mel * _LINEAR, above)
