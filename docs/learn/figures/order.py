"""Draw the figures of docs/learn/order.md: python docs/learn/figures/order.py."""

from __future__ import annotations

from pathlib import Path

from svg import COLOURS, GRID, Axes, Figure

IMAGES = Path(__file__).parents[2] / "assets" / "learn"

ACCURACY = {  # printed by docs/learn/experiments/sorted_labels.py
    "as stored": (23.5, 41.5, 53.4, 59.4, 62.6, 64.3, 65.2, 66.0),
    "shuffled once": (78.6, 80.5, 80.9, 80.8, 80.8, 80.9, 81.0, 81.0),
    "every epoch": (78.6, 80.2, 80.8, 81.0, 81.1, 81.0, 81.0, 80.9),
    "with replacement": (77.9, 80.0, 80.4, 80.7, 80.8, 80.7, 80.4, 80.7),
}


def labels() -> None:
    """Draw the accuracy after each epoch for four orders."""
    figure = Figure("Accuracy after each epoch, for four orders of the same samples")
    axes = Axes(figure, x=(1, 8), y=(0, 100), x_label="epoch", y_label="accuracy on other samples, %", right=150)
    axes.y_ticks([(value, str(value)) for value in (0, 25, 50, 75, 100)])
    axes.x_ticks([(epoch, str(epoch)) for epoch in range(1, 9)])
    heights = {"as stored": 66, "shuffled once": 90, "every epoch": 82, "with replacement": 74}
    for colour, (name, values) in zip((COLOURS[3], *COLOURS), ACCURACY.items(), strict=False):
        axes.curve([(epoch, value) for epoch, value in enumerate(values, 1)], colour, dots=name == "as stored")
        x, y = axes.at(8, heights[name])
        figure.text(x + 12, y + 4, name, colour=colour, bold=True)
    figure.save(IMAGES / "order-labels.svg")


def feistel() -> None:
    """Draw two rounds of a Feistel network."""
    figure = Figure("Two rounds of a Feistel network", height=330)
    left, right, width = 190, 410, 120
    blue, orange = COLOURS[0], COLOURS[1]
    colours = [(blue, orange), (orange, blue), (blue, orange)]
    for number, (y, pair) in enumerate(zip((40, 150, 260), colours, strict=True)):
        names = (("left half", "right half"), ("right half", "left XOR f"), ("left XOR f", "right XOR f"))[number]
        for x, colour, name in zip((left, right), pair, names, strict=True):
            figure.rect(x, y, width, 34, colour, opacity=0.18)
            figure.text(x + width / 2, y + 22, name, anchor="middle", colour=colour, bold=True)
        if number == 2:
            break
        middle = y + 62
        figure.rect(280, middle - 14, 90, 28, GRID)
        figure.text(325, middle + 5, f"f(., key, {number})", anchor="middle", size=12)
        figure.line([(right + 40, y + 34), (right + 40, middle), (370, middle)], pair[1], width=1.5)
        figure.line([(280, middle), (left + 60, middle)], pair[1], width=1.5)
        figure.dot(left + 60, middle, COLOURS[5], radius=7)
        figure.text(left + 32, middle + 5, "XOR", anchor="end", size=12)
        figure.line([(left + 60, y + 34), (left + 60, middle), (right + 60, y + 110)], pair[0], width=2)
        figure.line([(right + 60, y + 34), (right + 60, y + 70), (left + 60, y + 110)], pair[1], width=2)
    figure.text(20, 62, "the place")
    figure.text(20, 282, "the index")
    figure.text(560, 118, "round 0")
    figure.text(560, 228, "round 1")
    figure.save(IMAGES / "order-feistel.svg")


if __name__ == "__main__":
    labels()
    feistel()
