from __future__ import annotations

from xml.etree import ElementTree

from feedline.tools.measure.chart import Line, Panel, Point, draw

SVG = "{http://www.w3.org/2000/svg}"


def points(*values: float) -> list[Point]:
    return [Point(x, y, y * 0.9, y * 1.1) for x, y in zip((0, 1, 2, 4), values, strict=False)]


def test_everything_is_drawn_inside_the_picture_and_larger_values_are_higher() -> None:
    lines = [Line("torch", points(100, 90, 180, 350)), Line("<mine>", points(120, 100, 210))]
    panel = Panel("a & b", "workers", "samples/s", lines, level=(400.0, "needed"))
    root = ElementTree.fromstring(draw("feedline bench", [panel, panel, panel]))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    groups = root.findall(f"{SVG}g")
    assert len(groups) == 3
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
    assert {"feedline bench", "a & b", "<mine>", "needed", "0", "400"} <= set(texts)


def test_zeros_and_names_on_the_x_axis_can_be_drawn() -> None:
    found = [Line("torch", [Point("tiny", 0.0, 0.0, 0.0), Point("JPEG", 0.0, 0.0, 0.0)])]
    root = ElementTree.fromstring(draw("", [Panel("", "data", "samples/s", found, joins=False)]))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts.index("tiny") < texts.index("JPEG")
