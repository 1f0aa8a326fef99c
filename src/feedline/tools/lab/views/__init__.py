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

VIEWS = (
    pipeline.VIEW,
    batching.VIEW,
    samplers.VIEW,
    collate.VIEW,
    workers.VIEW,
    memory.VIEW,
    transfer.VIEW,
    bottlenecks.VIEW,
    faults.VIEW,
    your_dataset.VIEW,
)
