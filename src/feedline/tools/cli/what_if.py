"""`feedline what-if`: predict how a recorded run would perform with other settings."""

from __future__ import annotations

import argparse
import json
import sys

from feedline.insight.period import Period
from feedline.insight.recording import Recording
from feedline.insight.stats import aligned, shown
from feedline.system.shown import percent, printable
from feedline.tools.advise.what_if import Changes, Prediction, best, grid, predict


def run(arguments: argparse.Namespace) -> None:
    """Write the prediction to standard output, as a table or as JSON.

    Raises:
        BadRecording: the file cannot be read, is damaged, or holds too little.
        BadOption: the recording has no stage of a given name, or its steps took no time and cannot be changed.
    """
    recording = Recording.load(arguments.file)
    step, step_s = arguments.step or (1.0, None)
    factors = {name: getattr(arguments, name) for name in ("fetch", "transform", "collate", "decode")}
    changes = Changes(
        workers=arguments.workers,
        prefetch=arguments.prefetch,
        in_order=arguments.in_order,
        stages={**{name: factor for name, factor in factors.items() if factor is not None}, **dict(arguments.stage)},
        step=step,
        step_s=step_s,
        computing=arguments.computing,
    )
    if changes == Changes(computing=arguments.computing):
        predictions = grid(recording, changes)
        chosen = best(predictions)
        result = {"grid": [one.as_dict() for one in predictions], "best": chosen.as_dict()}
        text = _grid(predictions, chosen)
    else:
        predictions = [predict(recording, changes)]
        result, text = predictions[0].as_dict(), _beside(recording, predictions[0])
    if arguments.json:
        sys.stdout.write(json.dumps(result) + "\n")
        return
    assumptions = dict.fromkeys(sentence for one in predictions for sentence in one.assumptions)
    sys.stdout.write(printable("\n".join([text, *(f"\n{sentence}" for sentence in assumptions)]) + "\n"))


def _beside(recording: Recording, prediction: Prediction) -> str:
    """Return the recorded and the predicted figures, side by side."""
    settings, old, new = recording.settings, prediction.recorded, prediction.predicted
    table = [
        ["", "recorded", "predicted"],
        ["workers", f"{settings.get('workers', 0)}", f"{prediction.workers}"],
        ["prefetch", f"{settings.get('prefetch', '')}", f"{prediction.prefetch}"],
        ["in order", *("yes" if one else "no" for one in (settings.get("in_order", True), prediction.in_order))],
        ["samples/s", *(f"{one.samples_per_s:,.0f}" for one in (old, new))],
        ["batches/s", *(f"{one.batches_per_s:,.1f}" for one in (old, new))],
        ["waited", *(percent(one.stall, 1) for one in (old, new))],
        ["training step", *(shown(one.body.mean) for one in (old, new))],
        ["making a batch", *(shown(one.busy_s) for one in (old, new))],
    ]
    causes = sorted({*old.waits, *new.waits}, key=lambda cause: -max(_share(old, cause), _share(new, cause)))
    table += [[f"  for {cause}", *(percent(_share(one, cause), 1) for one in (old, new))] for cause in causes]
    return aligned(table)


def _share(period: Period, cause: str) -> float:
    return period.waits.get(cause, 0.0) / period.seconds if period.seconds else 0.0


def _grid(predictions: list[Prediction], chosen: Prediction) -> str:
    """Return a line for each setting, and mark the best."""
    table = [["workers", "prefetch", "in order", "samples/s", "waited", "workers busy", ""]]
    for one in predictions:
        busy = one.predicted.worker_utilisation
        table.append(
            [
                f"{one.workers}",
                f"{one.prefetch}" if one.workers else "",
                ("yes" if one.in_order else "no") if one.workers else "",
                f"{one.predicted.samples_per_s:,.0f}",
                percent(one.predicted.stall, 1),
                percent(sum(busy) / len(busy), 1) if busy else "",
                "<- best" if one is chosen else "",
            ]
        )
    old = chosen.recorded
    recorded = f"recorded: {old.samples_per_s:,.0f} samples/s, waited {percent(old.stall, 1)} of the time"
    return f"{recorded}\n\n{aligned(table)}"
