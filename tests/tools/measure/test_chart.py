from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from feedline.tools.measure.chart import Line, Panel, Point, draw, write

SVG = "{http://www.w3.org/2000/svg}"


def points(*values: float) -> list[Point]:
    return [Point(x, y, y * 0.9, y * 1.1) for x, y in zip((0, 1, 2, 4), values, strict=False)]


def test_everything_is_drawn_inside_the_picture_and_larger_values_are_higher() -> None:
    lines = [Line("torch", points(100, 90, 180, 350)), Line("<mine>", points(120, 100, 210))]
    panel = Panel("a & b", "workers", "samples/s", lines, level=(400.0, "needed"), marked=("torch", 4))
    root = ElementTree.fromstring(draw("feedline bench", [panel, panel, panel]))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    legend, *groups = root.iter(f"{SVG}g")
    assert len(list(legend.iter(f"{SVG}circle"))) == 2
    for group in groups:
        left, top = map(float, group.attrib["transform"].removeprefix("translate(").rstrip(")").split())
        circles = list(group.iter(f"{SVG}circle"))
        assert len(circles) == 4 + 3 + 1, "one per point, and a ring around the marked one"
        for circle in circles:
            assert 0 < left + float(circle.attrib["cx"]) < width
            assert 0 < top + float(circle.attrib["cy"]) < height
    polyline = next(line for line in groups[0].iter(f"{SVG}polyline") if line.attrib["points"].count(",") == 4)
    heights = [float(pair.split(",")[1]) for pair in polyline.attrib["points"].split()]
    assert heights[3] < heights[2] < heights[0] < heights[1], "y coordinates grow downwards"
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"feedline bench", "a & b", "<mine>", "needed", "0", "400"} <= set(texts)


def test_a_panel_with_only_zeros_can_be_drawn() -> None:
    zero = Panel("", "workers", "samples/s", [Line("torch", [Point(0, 0.0, 0.0, 0.0)])])
    assert "polyline" in draw("", [zero])


@pytest.mark.slow
def test_png_and_svg_show_the_same_panels(tmp_path: Path) -> None:
    lines = [Line("torch", points(100, 90, 180, 350)), Line("feedline/process", points(120, 100, 210, 400))]
    panel = Panel("Throughput", "workers", "samples/s", lines, level=(450.0, "needed"), marked=("torch", 4))
    write(tmp_path / "a.png", "feedline bench", [panel, panel])
    write(tmp_path / "a.svg", "feedline bench", [panel, panel])
    assert (tmp_path / "a.svg").read_text() == draw("feedline bench", [panel, panel])
    picture = Image.open(tmp_path / "a.png").convert("RGB")
    assert picture.size == (2 * 1040, 2 * 362)
    left, right = picture.crop((0, 124, 1040, 724)), picture.crop((1040, 124, 2080, 724))
    assert left.tobytes() == right.tobytes(), "both halves show the same panel"
    shades = {shade for _, shade in picture.getcolors(1 << 20) or []}
    assert {(0x8B, 0x94, 0x9E), (0x0B, 0x62, 0xD6), (255, 255, 255)} <= shades, "torch's and feedline's lines"


def test_the_x_axis_can_have_names_instead_of_numbers() -> None:
    panel = Panel(
        "", "data", "samples/s", [Line("torch", [Point("tiny", 1, 1, 1), Point("JPEG", 2, 2, 2)])], joins=False
    )
    root = ElementTree.fromstring(draw("", [panel]))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts.index("tiny") < texts.index("JPEG")
