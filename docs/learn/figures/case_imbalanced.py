"""Draw the figure of the case study on imbalanced images: positives per batch, and what a leak hides."""

from pathlib import Path

from svg import COLOURS, Figure

IMAGES = Path(__file__).resolve().parents[2] / "assets" / "learn"
BLUE, AMBER, GREEN, RED, GREY = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[3], COLOURS[5]
BATCHES = (("shuffle", 0, 2.0, 5), ("stratified", 1, 2.0, 2), ("balanced", 9, 15.6, 22))
SCORES = (("recall", 0.28, 0.38, 0.96), ("precision", 0.44, 0.30, 0.85), ("AUC", 0.78, 0.75, 0.99))


def main() -> None:
    """Draw both panels."""
    figure = Figure("Samplers: positives in a batch; scores with and without a leak", height=300)
    figure.text(20, 30, "Ill scans in a batch of 32", bold=True)
    scale, left = 9.0, 96
    for number, (name, least, mean, most) in enumerate(BATCHES):
        y = 66 + number * 56
        figure.text(left - 10, y + 5, name, anchor="end")
        figure.line([(left, y), (left + 24 * scale, y)], "#e2e8f0", width=1)
        figure.rect(left + least * scale, y - 8, max(4, (most - least) * scale), 16, BLUE, opacity=0.35)
        figure.dot(left + mean * scale, y, BLUE, radius=6)
        figure.text(left + least * scale, y - 14, f"{least} to {most}, mean {mean:g}", size=12, colour=BLUE)
    for tick in (0, 8, 16, 24):
        figure.text(left + tick * scale, 232, str(tick), anchor="middle", size=12)
    figure.text(356, 30, "Scores on validation data", bold=True)
    for number, (name, *values) in enumerate(SCORES):
        x = 376 + number * 112
        for k, (value, colour) in enumerate(zip(values, (GREY, BLUE, RED), strict=True)):
            height = value * 150
            figure.rect(x + k * 32, 220 - height, 28, height, colour)
            figure.text(x + k * 32 + 14, 212 - height, f"{value:.2f}", anchor="middle", size=12, colour=colour)
        figure.text(x + 46, 240, name, anchor="middle")
    figure.rect(376, 262, 12, 12, GREY)
    figure.text(394, 273, "shuffle", size=12)
    figure.rect(456, 262, 12, 12, BLUE)
    figure.text(474, 273, "balanced", size=12)
    figure.rect(548, 262, 12, 12, RED)
    figure.text(566, 273, "split by scan (leaks)", size=12)
    figure.save(IMAGES / "case-imbalanced.svg")


if __name__ == "__main__":
    main()
