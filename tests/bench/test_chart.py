from __future__ import annotations

from xml.etree import ElementTree

from feedline.bench.chart import Line, Panel, Point, draw

SVG = "{http://www.w3.org/2000/svg}"


def points(*values: float) -> list[Point]:
    return [Point(x, y, y * 0.9, y * 1.1) for x, y in zip((0, 1, 2, 4), values, strict=False)]


def test_all_of_it_is_inside_and_more_is_higher() -> None:
    lines = [Line("torch", points(100, 90, 180, 350)), Line("<mine>", points(120, 100, 210))]
    panel = Panel("a & b", "workers", "samples/s", lines, level=(400.0, "needed"), marked=("torch", 4))
    root = ElementTree.fromstring(draw("feedline bench", [panel, panel, panel]))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for group in root.iter(f"{SVG}g"):
        left, top = map(float, group.attrib["transform"].removeprefix("translate(").rstrip(")").split())
        circles = list(group.iter(f"{SVG}circle"))
        assert len(circles) == 4 + 3 + 1, "each point, and a ring around one"
        for circle in circles:
            assert 0 < left + float(circle.attrib["cx"]) < width
            assert 0 < top + float(circle.attrib["cy"]) < height
    polyline = next(root.iter(f"{SVG}polyline"))
    heights = [float(pair.split(",")[1]) for pair in polyline.attrib["points"].split()]
    assert heights[3] < heights[2] < heights[0] < heights[1], "heights are counted from above"
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"feedline bench", "a & b", "<mine>", "needed", "0", "400"} <= set(texts)


def test_nothing_but_zero_can_be_drawn() -> None:
    zero = Panel("", "workers", "samples/s", [Line("torch", [Point(0, 0.0, 0.0, 0.0)])])
    assert "polyline" in draw("", [zero])
