"""Images in folders, like torchvision's."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch  # noqa: F401  (it keeps files open from its import on, which a test would seem to leave behind)
from numpy.typing import NDArray

import feedline
from feedline import images
from feedline.datasets import ImageFolder
from feedline.errors import BadOption, CorruptSource, SourceError
from feedline.testing.asserting import assert_same
from feedline.types import EngineName
from tests.datasets.contract import SourceContract

Image = pytest.importorskip("PIL.Image")
COUNT = 24


def picture(number: int) -> NDArray[np.uint8]:
    return np.random.default_rng(number).integers(0, 256, (6, 5, 3), np.uint8)


def save(root: Path, name: str, number: int) -> Path:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture(number)).save(file)
    return file


class TestContract(SourceContract):
    @pytest.fixture(autouse=True)
    def store(self, tmp_path: Path) -> None:
        self.root = tmp_path
        for number in range(COUNT):
            save(tmp_path, f"{number % 2}/{number:02d}.png", number)

    def make_source(self, **options: Any) -> ImageFolder:
        return ImageFolder(self.root, **options)

    def samples(self) -> list[Any]:
        return [(picture(number), label) for label in range(2) for number in range(label, COUNT, 2)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    names = ["dog/2.png", "dog/10.PNG", "dog/sub/1.png", "dog/sub-1/1.png", "cat/3.jpg", "cat-2/1.bmp", "Zebra/1.png"]
    for number, name in enumerate(names):
        save(folder, name, number)
    (folder / "readme.png").write_bytes(b"in no class")
    (folder / "dog/notes.txt").write_bytes(b"no image")
    return folder


def test_order_and_classes_equal_torchvisions(root: Path) -> None:
    dataset = ImageFolder(root)
    names = ["Zebra/1.png", "cat/3.jpg", "cat-2/1.bmp", "dog/10.PNG", "dog/2.png", "dog/sub/1.png", "dog/sub-1/1.png"]
    expected = [(str(root / name), label) for name, label in zip(names, (0, 1, 2, 3, 3, 3, 3), strict=True)]
    assert list(dataset.samples) == list(dataset.imgs) == expected
    assert dataset.classes == ["Zebra", "cat", "cat-2", "dog"]
    assert dataset.class_to_idx == {"Zebra": 0, "cat": 1, "cat-2": 2, "dog": 3}
    assert dataset.targets is not None
    assert dataset.targets.tolist() == [label for _, label in expected]
    assert repr(dataset) == "ImageFolder(7 samples of (file, class of 4), 2 other files left out)"


@pytest.mark.parametrize("kind", ["gif", "avif"])
def test_images_that_torchvision_leaves_out(tmp_path: Path, kind: str) -> None:
    save(tmp_path, f"cat/a.{kind}", 1)
    (tmp_path / "cat/a.heic").write_bytes(b"needs a plugin")
    dataset = ImageFolder(tmp_path)
    assert (len(dataset), dataset.left_out) == (1, 1)
    assert dataset[0][0].shape == (6, 5, 3)
    assert repr(dataset) == "ImageFolder(1 samples of (file, class of 1), 1 other file left out)"


def test_images_are_arrays_images_or_bytes(root: Path) -> None:
    image, label = ImageFolder(root)[0]
    assert_same(image, picture(6))
    assert image.flags.writeable
    assert label == 0
    image, _ = ImageFolder(root, decode="pil")[0]
    assert isinstance(image, Image.Image)
    assert_same(np.array(image), picture(6))
    assert ImageFolder(root, decode="bytes", fields="image")[0] == (root / "Zebra/1.png").read_bytes()
    assert ImageFolder(root, decode=len, fields="image")[0] == (root / "Zebra/1.png").stat().st_size
    assert list(ImageFolder(root, fields=None)[0]) == ["image", "label", "path"]


def test_without_labels_a_sample_is_an_image(root: Path) -> None:
    dataset = ImageFolder(root, labels=None, extensions=".jpg")
    assert dataset[0].shape == (6, 5, 3)
    assert dataset.classes is None
    with pytest.raises(SourceError, match=f"{root}/cat has no directories.*{str(root)!r}"):
        ImageFolder(root / "cat")


def test_rejects_classes_without_images(root: Path) -> None:
    (root / "fish").mkdir()
    with pytest.raises(SourceError, match=f"1 of 5 classes in {root} .*'fish'"):
        ImageFolder(root)
    dataset = ImageFolder(root, allow_empty=True)
    assert dataset.classes == ["Zebra", "cat", "cat-2", "dog", "fish"]
    assert len(dataset) == 7
    with pytest.raises(SourceError, match="5 of 5 classes"):
        ImageFolder(root, extensions=".gif")


def damaged_files() -> dict[str, bytes]:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(out, "png")
    whole = out.getvalue()
    return {"empty": b"", "text": b"no image", "cut off": whole[:2000], "header only": whole[:40]}


@pytest.mark.parametrize("content", damaged_files().values(), ids=damaged_files())
def test_the_error_names_the_damaged_image(root: Path, content: bytes) -> None:
    (root / "Zebra/1.png").write_bytes(content)
    ways: tuple[dict[str, Any], ...] = ({}, {"decode": "cpu"}, {"decode": "pil"}, {"transform": images.Resize(8)})
    for options in ways:
        with pytest.raises(CorruptSource, match=f"{root}/Zebra/1.png"):
            ImageFolder(root, **options)[0]


def test_errors_of_the_decode_function_name_the_image(root: Path) -> None:
    with pytest.raises(ValueError, match="invalid literal") as caught:
        ImageFolder(root, decode=int)[0]
    assert f"{root}/Zebra/1.png" in str(getattr(caught.value, "__notes__", ""))


@pytest.mark.parametrize(("options", "message"), [({"decode": "gif"}, "decode='gif'"), ({"fields": "data"}, "'data'")])
def test_bad_options_are_rejected(root: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        ImageFolder(root, **options)
    with pytest.raises(BadOption, match="FileDataset"):
        ImageFolder([str(root)])  # type: ignore[arg-type]


TWICE = images.Compose([images.Resize((12, 10)), images.Normalize()])


@pytest.mark.parametrize(
    ("decode", "fields", "place"),
    [
        ("auto", "image", None),
        ("cpu", ("image", "label"), 0),
        ("gpu", ("label", "path", "image"), 2),
        ("rgb", {"x": "image"}, "x"),
        ("pil", None, "image"),
    ],
)
def test_an_image_transform_receives_the_image(root: Path, decode: str, fields: Any, place: Any) -> None:
    sample = ImageFolder(root, fields, decode=decode, transform=TWICE)[0]
    plain = ImageFolder(root, fields)[0]
    expected = TWICE(picture(6))
    if place is None:
        assert_same(sample, expected)
        return
    for name in plain if isinstance(plain, dict) else range(len(plain)):
        assert_same(sample[name], expected if name == place else plain[name])


def test_images_of_a_pipeline_are_batched(root: Path) -> None:
    expected = [TWICE(ImageFolder(root)[index][0]) for index in range(7)]
    ((batch, labels),) = feedline.Loader(ImageFolder(root, transform=TWICE), 7, workers=2)
    assert_same(batch, np.stack(expected))
    assert labels.tolist() == [0, 1, 2, 3, 3, 3, 3]


@pytest.mark.parametrize(("engine", "damage"), [("inline", "empty"), ("process", "header only")])
def test_the_error_of_a_pipeline_names_the_sample_among_those_of_its_batch(
    root: Path, engine: EngineName, damage: str
) -> None:
    (root / "Zebra/1.png").write_bytes(damaged_files()[damage])
    loader = feedline.Loader(ImageFolder(root, transform=TWICE), 7, workers=int(engine != "inline"), engine=engine)
    with pytest.raises(CorruptSource, match=f"{root}/Zebra/1.png") as caught:
        list(loader)
    assert any(note.startswith("About sample 0") for note in caught.value.__notes__)


def test_decoding_on_a_gpu_needs_a_transform_and_a_device(root: Path) -> None:
    with pytest.raises(BadOption, match='decode="gpu" needs a transform'):
        ImageFolder(root, decode="gpu")
    loader = feedline.Loader(ImageFolder(root, decode="gpu", transform=TWICE), 7)
    with pytest.raises(BadOption, match="needs a device"):
        next(iter(loader))


def test_decode_auto_applies_the_orientation_and_decode_rgb_does_not(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture(0)).save(tmp_path / "a/1.jpg", exif=exif)
    shapes = [ImageFolder(tmp_path, "image", decode=decode)[0].shape for decode in ("auto", "rgb")]
    assert shapes == [(5, 6, 3), (6, 5, 3)]
