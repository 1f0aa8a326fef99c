"""The views of the lab, in the order of the page."""

from feedline.tools.lab.views import (
    batching,
    bottlenecks,
    collate,
    faults,
    memory,
    pipeline,
    samplers,
    transfer,
    workers,
    your_dataset,
)

_IN_ORDER = (
    *(pipeline, batching, samplers, collate, workers),
    *(memory, transfer, bottlenecks, faults, your_dataset),
)
VIEWS = tuple(module.VIEW for module in _IN_ORDER)
