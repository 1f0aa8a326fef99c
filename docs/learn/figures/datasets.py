"""Draw the figure of "Datasets": what forked and spawned workers get of a dataset."""

from pathlib import Path

from svg import COLOURS, Figure

IMAGES = Path(__file__).resolve().parents[2] / "assets" / "learn"
BLUE, AMBER, GREEN, RED, GREY = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[3], COLOURS[5]


def process(figure: Figure, x: float, y: float, title: str, width: float = 150, height: float = 92) -> None:
    """Draw the box of a process."""
    figure.rect(x, y, width, height, GREY, opacity=0.15)
    figure.text(x + 10, y + 20, title, bold=True)


def label(figure: Figure, x: float, y: float, words: str, colour: str) -> None:
    """Draw what a process holds."""
    figure.rect(x, y, 130, 22, colour)
    figure.text(x + 65, y + 16, words, anchor="middle", size=12, colour="#ffffff")


def main() -> None:
    """Draw both start methods side by side."""
    figure = Figure("What forked and spawned workers get of a dataset", height=330)
    for left, title in ((20, "fork: workers inherit everything"), (380, "spawn, forkserver: workers get a pickle")):
        figure.text(left, 30, title, bold=True, size=14)
        process(figure, left, 48, "training process")
    for k in range(2):
        for left in (20, 380):
            process(figure, left + 170, 48 + 112 * k, f"worker {k}")
    for x, y in ((30, 76), (200, 76), (200, 188)):
        label(figure, x, y, "paths, labels", BLUE)
        label(figure, x, y + 30, "open handle", RED)
    for x, y in ((390, 76), (560, 76), (560, 188)):
        label(figure, x, y, "paths, labels", BLUE)
    label(figure, 390, 106, "open handle", RED)
    label(figure, 560, 106, "opens its own", GREEN)
    label(figure, 560, 218, "opens its own", GREEN)
    figure.rect(30, 272, 300, 28, AMBER)
    figure.text(180, 291, "one open file, one position, for all three", anchor="middle", colour="#ffffff")
    for x in (95, 265):
        figure.line([(x, 240 if x > 200 else 128), (x, 272)], AMBER)
    figure.line([(330, 117), (340, 117), (340, 286), (330, 286)], AMBER)
    figure.text(380, 291, "A handle cannot be pickled: this raises, or the", size=13)
    figure.text(380, 309, "dataset leaves it out and each worker opens one.", size=13)
    figure.save(IMAGES / "datasets-start.svg")


if __name__ == "__main__":
    main()
