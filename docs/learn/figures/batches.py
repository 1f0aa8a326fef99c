"""Draw the figures of "Batches". The numbers are what batch_noise.py and steps_to_target.py print."""

import math
from pathlib import Path

from svg import COLOURS, Axes, Figure

IMAGES = Path(__file__).resolve().parents[2] / "assets" / "learn"
BLUE, AMBER, GREEN, GREY = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[5]
COUNT, VARIANCE = 4096, 1.857630
REPLACED = {1: 1.931700, 2: 0.905902, 4: 0.453886, 8: 0.227701, 16: 0.118440, 32: 0.059469, 64: 0.029601}
REPLACED |= {128: 0.014852, 256: 0.007731, 512: 0.003389, 1024: 0.001706, 2048: 0.000895, 4096: 0.000456}
EPOCH = {1: 1.857630, 2: 0.930538, 4: 0.467149, 8: 0.235180, 16: 0.111655, 32: 0.057911, 64: 0.028287}
EPOCH |= {128: 0.014296, 256: 0.007274, 512: 0.003098, 1024: 0.001430, 2048: 0.000402}
STEPS = {16: 2688, 32: 1380, 64: 756, 128: 476, 256: 264, 512: 172, 1024: 112, 2048: 128, 4096: 108}


def log(value: float) -> float:
    """Return the power of two."""
    return math.log2(value)


def noise() -> None:
    """Draw variance over batch size, measured and by formula."""
    figure = Figure("Variance of the mini-batch gradient against batch size", height=380)
    axes = Axes(figure, x=(0, 12), y=(-12, 1), x_label="batch size", y_label="variance of the batch gradient")
    axes.y_ticks([(power, f"2^{power}") for power in (-12, -10, -8, -6, -4, -2, 0)])
    axes.x_ticks([(power, f"{2**power:,}") for power in range(0, 13, 2)])
    axes.curve([(0, log(VARIANCE)), (12, log(VARIANCE / COUNT))], GREY, dashes="6 4")
    bent = [2**p for p in range(12)] + [2600]
    axes.curve([(log(b), log(VARIANCE / b * (COUNT - b) / (COUNT - 1))) for b in bent], GREY, dashes="2 4")
    for points, colour in ((REPLACED, BLUE), (EPOCH, AMBER)):
        for size, value in points.items():
            x, y = axes.at(log(size), log(value))
            figure.dot(x, y, colour)
    x, y = axes.at(5.4, -2.2)
    figure.text(x, y, "measured, drawn with replacement: V / B", colour=BLUE, bold=True)
    x, y = axes.at(1.0, -9.3)
    figure.text(x, y, "measured, batches of an epoch: V / B x (N - B) / (N - 1)", colour=AMBER, bold=True)
    figure.save(IMAGES / "batches-noise.svg")


def steps() -> None:
    """Draw steps and samples to a target loss over batch size."""
    figure = Figure("Steps and samples until a target loss, against batch size", height=380)
    axes = Axes(
        figure, x=(4, 12), y=(6, 12), x_label="batch size", y_label="steps until the loss is below 0.22", right=60
    )
    axes.y_ticks([(power, f"{2**power:,}") for power in range(6, 13)])
    axes.x_ticks([(power, f"{2**power:,}") for power in range(4, 13)])
    axes.curve([(4, log(2688)), (log(16 * 2688 / 64), 6)], GREY, dashes="6 4")
    axes.curve([(log(size), log(value)) for size, value in STEPS.items()], BLUE, dots=True)
    for size, words in ((16, "43,000 samples"), (128, "61,000"), (1024, "115,000"), (4096, "442,000")):
        x, y = axes.at(log(size), log(STEPS[size]))
        figure.text(x + 8, y - 10, words, size=12, colour=BLUE, anchor="end" if size == 4096 else "start")
    x, y = axes.at(6.6, 7.0)
    figure.text(x, y, "twice the batch,", colour=GREY, bold=True, anchor="end")
    figure.text(x, y + 16, "half the steps", colour=GREY, bold=True, anchor="end")
    figure.save(IMAGES / "batches-steps.svg")


if __name__ == "__main__":
    noise()
    steps()
