"""Decoding with Pillow: no format that runs another program, the same 8 of 16 bits everywhere, limits on pixels."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch  # noqa: F401  (it keeps files open from its import on, which a test would seem to leave behind)

from feedline.datasets import ImageFolder, TarDataset
from feedline.datasets.formats.lmdb.decoding import Picture
from feedline.errors import CorruptSource
from feedline.images.pillow import open_picture
from feedline.testing.asserting import assert_same
from feedline.tools.write.inspection import inspect
from feedline.tools.write.pictures import Pictures
from tests.datasets.formats.tar.writing import tar_bytes
from tests.images.files import stored

Image = pytest.importorskip("PIL.Image")

VALUES = np.arange(0, 65536, 37, dtype=np.uint16)[:1760].reshape(40, 44)
UPPER = (VALUES >> 8).astype(np.uint8)


FILES = {
    "png": stored(VALUES, "PNG"),
    "tif": stored(VALUES, "TIFF"),
    "big.tif": stored(VALUES.astype(">u2"), "TIFF"),
    "pgm": stored(VALUES, "PPM"),
    "jp2": stored(VALUES, "JPEG2000"),
}


@pytest.mark.parametrize("name", FILES)
def test_every_reader_takes_the_upper_8_of_16_bits(name: str, tmp_path: Path) -> None:
    (tmp_path / "grey").mkdir()
    (tmp_path / "grey" / f"a.{name}").write_bytes(FILES[name])
    (tmp_path / "a.tar").write_bytes(tar_bytes([(f"a.{name}", FILES[name])]))
    colours = np.repeat(UPPER[..., None], 3, 2)
    assert_same(ImageFolder(tmp_path, extensions=f".{name}", fields="image")[0], colours)
    assert_same(np.array(ImageFolder(tmp_path, extensions=f".{name}", fields="image", decode="pil")[0]), colours)
    for decode, expected in {"rgb8": colours, "l8": UPPER, "rgb": colours.astype(np.float32) / 255.0}.items():
        (sample,) = TarDataset(str(tmp_path / "a.tar"), fields=name, decode=decode).stream()
        assert_same(sample, expected)
    assert_same(Pictures(encode="raw").apply(Image.open(io.BytesIO(FILES[name]))), colours)


def flat_png(side: int) -> bytes:
    """Return a PNG of one grey value, a thousand times smaller than its pixels."""
    return stored(Image.new("L", (side, side)), "PNG")


def test_rejects_images_with_too_many_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000 * 1000)
    (tmp_path / "a").mkdir()
    for side in (1001, 2001):  # for the first Pillow only warns, which is an error in tests
        (tmp_path / "a" / "large.png").write_bytes(flat_png(side))
        for filter_ in ("error", "ignore"):
            with warnings.catch_warnings():
                warnings.simplefilter(filter_, Image.DecompressionBombWarning)
                with pytest.raises(CorruptSource, match=r"large\.png.*PIL\.Image\.MAX_IMAGE_PIXELS") as caught:
                    ImageFolder(tmp_path, cache=False)[0]
                assert "damaged" not in str(caught.value)
                with pytest.raises(CorruptSource, match=r"PIL\.Image\.MAX_IMAGE_PIXELS") as caught:
                    Picture("rgb8")(flat_png(side))
                assert "no picture" not in str(caught.value)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert ImageFolder(tmp_path, cache=False)[0][0].shape == (2001, 2001, 3)
    monkeypatch.setenv("FEEDLINE_MAX_SAMPLE_BYTES", "1MB")
    with pytest.raises(CorruptSource, match=r"2001 x 2001 .*FEEDLINE_MAX_SAMPLE_BYTES"):
        ImageFolder(tmp_path, cache=False)[0]


def test_the_images_of_a_sample_are_limited_together(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("a.png", flat_png(500)), ("a.2.png", flat_png(500))]))
    assert next(iter(TarDataset(path, decode="rgb8", max_field_bytes=2_000_000).stream()))["png"].shape == (500, 500, 3)
    with pytest.raises(CorruptSource, match=r"a\.tar: field '2\.png'.*max_field_bytes="):
        list(TarDataset(path, decode="rgb8", max_field_bytes=1_500_000).stream())


EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 10 10
%%EndComments
showpage
%%EOF
"""


def test_postscript_files_start_no_other_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *given, **more: started.append(given))
    assert Image.open(io.BytesIO(EPS)).format == "EPS"  # Pillow itself would accept it as an image
    (tmp_path / "grey").mkdir()
    (tmp_path / "grey" / "a.jpg").write_bytes(EPS)
    (tmp_path / "a.tar").write_bytes(tar_bytes([("a.jpg", EPS)]))
    with pytest.raises(CorruptSource, match=r"a\.jpg .*EPS"):
        ImageFolder(tmp_path)[0]
    with pytest.raises(CorruptSource, match=r"a\.tar: field 'jpg'"):
        next(iter(TarDataset(str(tmp_path / "a.tar"), decode="rgb8").stream()))
    inspect(str(tmp_path / "grey"))
    assert not started


@pytest.mark.parametrize(
    "kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "JPEG2000", "ICO", "TGA", "PCX", "SGI"]
)
def test_supported_formats(kind: str) -> None:
    assert open_picture(io.BytesIO(stored(Image.new("RGB", (16, 16)), kind))).size == (16, 16)


def test_formats_registered_by_plugins_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pillow_heif registers HEIF in this way."""
    from PIL import ImageFile

    class Ours(ImageFile.ImageFile):
        format = "OURS"
        format_description = "two pixels"

        def _open(self) -> None:
            self._mode, self._size, self.tile = "RGB", (2, 1), []

        def load(self) -> Any:
            self.im = Image.new("RGB", (2, 1), (1, 2, 3)).im
            return Image.Image.load(self)

    monkeypatch.setattr(Image, "ID", list(Image.ID))
    monkeypatch.setattr(Image, "OPEN", dict(Image.OPEN))
    Image.register_open("OURS", Ours, lambda prefix: prefix.startswith(b"ours"))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.ours").write_bytes(b"ours" * 10)
    image = ImageFolder(tmp_path, extensions=".ours", fields="image", cache=False)[0]
    assert image.tolist() == [[[1, 2, 3], [1, 2, 3]]]


def test_avif_is_decoded_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread per core in every worker would be too many."""
    from PIL import AvifImagePlugin

    data = stored(np.zeros((16, 16, 3), np.uint8), "AVIF")
    decoder = mock.Mock(AvifDecoder=mock.Mock(side_effect=SyntaxError("seen")))
    monkeypatch.setattr(AvifImagePlugin, "_avif", decoder)
    for chosen, expected in ((0, 1), (3, 3)):
        monkeypatch.setattr(AvifImagePlugin, "DEFAULT_MAX_THREADS", chosen)
        with pytest.raises(OSError, match="cannot identify"):
            open_picture(io.BytesIO(data))
        assert decoder.AvifDecoder.call_args.args[2] == expected
        assert chosen == AvifImagePlugin.DEFAULT_MAX_THREADS
