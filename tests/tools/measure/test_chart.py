from __future__ import annotations

from xml.etree import ElementTree

from feedline.tools.measure.chart import Panel, draw
from feedline.tools.measure.harness import Spread

SVG = "{http://www.w3.org/2000/svg}"


def line(*values: float) -> dict[int, Spread]:
    return {x: Spread(y, y * 0.9, y * 1.1) for x, y in zip((0, 1, 2, 4), values, strict=False)}


def test_everything_is_drawn_inside_the_picture_and_larger_values_are_higher() -> None:
    panel = Panel("a & b", "samples/s", {"torch": line(100, 90, 180, 350), "<mine>": line(120, 100, 210)})
    root = ElementTree.fromstring(draw("feedline bench", [panel, panel]))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    groups = root.findall(f"{SVG}g")
    assert len(groups) == 2
    for group in groups:
        left, top = map(float, group.attrib["transform"].removeprefix("translate(").rstrip(")").split())
        circles = list(group.iter(f"{SVG}circle"))
        assert len(circles) == 4 + 3
        for circle in circles:
            assert 0 < left + float(circle.attrib["cx"]) < width
            assert 0 < top + float(circle.attrib["cy"]) < height
    heights = [float(circle.attrib["cy"]) for circle in groups[0].iter(f"{SVG}circle")][:4]
    assert heights[3] < heights[2] < heights[0] < heights[1], "y coordinates grow downwards"
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"feedline bench", "a & b, samples/s", "<mine>", "workers", "0", "400"} <= set(texts)
    assert "circle" in draw("", [Panel("", "MB", {"torch": line(0.0)})])
