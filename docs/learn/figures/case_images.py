"""Draw the figure of the case study on images. The numbers are what experiments/case_images.py printed."""

from pathlib import Path

from svg import COLOURS, Figure

IMAGES = Path(__file__).resolve().parents[2] / "assets" / "learn"
ROWS = (
    ("1. by hand, no workers", 7.92),
    ("2. by hand, 2 workers", 8.4),
    ("3. the same, workers kept", 8.40),
    ("4. feedline.images", 4.10),
    ("5. the same, uint8 batches", 3.90),
    ("6. files of 213 x 160", 1.60),
)


def main() -> None:
    """Draw a bar for each step."""
    figure = Figure("Processor time for 1,000 images, step by step", height=270)
    figure.text(20, 30, "Processor time for 1,000 images (= cores needed for 1,000 images/s)", bold=True)
    for number, (name, seconds) in enumerate(ROWS):
        y = 50 + number * 34
        figure.text(200, y + 17, name, anchor="end")
        figure.rect(212, y, seconds * 52, 24, COLOURS[0] if number < 3 else COLOURS[2])
        figure.text(212 + seconds * 52 + 8, y + 17, f"{seconds:.1f} s", bold=True)
    figure.save(IMAGES / "case-images.svg")


if __name__ == "__main__":
    main()
