"""Datasets and loaders that give wrong data, or fail: samples that raise, share, repeat or come sorted by class."""

from __future__ import annotations

import re
from collections.abc import Iterator

from feedline.tools.advise.finding import Finding
from feedline.tools.measure.fields import field_in
from feedline.tools.measure.measured import Measured, OpenHandle, Samples

_NAMED = 3


def find(measured: Measured) -> list[Finding]:
    """Return the findings about wrong data and failures."""
    handles = list(_handles(measured))
    return [
        *_failing_samples(measured.samples),
        *_failing_loader(measured),
        *_failing_on_threads(measured),
        *handles,
        *_generators(measured),
        *_reused(measured.samples),
        *_sorted_labels(measured),
        *([] if handles else _unpicklable(measured)),
    ]


def _failing_samples(samples: Samples) -> Iterator[Finding]:
    if samples.failed:
        yield Finding(
            "failing-samples",
            f"{samples.failed} of {samples.failed + len(samples.seconds)} samples raised an exception.",
            "Correct or remove these samples, or let the loader skip and list them.",
            'DataLoader(dataset, on_error="skip")',
            is_serious=True,
            evidence=f"The first was {samples.failure.rstrip()}",
        )


def _failing_loader(measured: Measured) -> Iterator[Finding]:
    """Report that batches of the loader raise, or end or block the process, unless another finding explains it."""
    failure = "" if measured.loader is None else measured.loader.failure
    if measured.ended is not None and measured.ended_in != "threads":
        yield Finding(
            "failing-loader",
            f"The measurement of the dataset ended early ({measured.ended_in or 'start'}).",
            "Run the same code in your own program: python -X faulthandler shows what it waits for.",
            is_serious=measured.ended_in == "loader",
            evidence=measured.ended,
        )
    elif failure and not _is_explained(measured):
        yield Finding(
            "failing-loader",
            "Single samples can be made, but a batch of the loader raised an exception.",
            "Fix the code that raises it: the collate function, or the dataset as workers receive it.",
            is_serious=True,
            evidence=failure.rstrip(),
        )


def _is_explained(measured: Measured) -> bool:
    state, batch = measured.state, measured.batch
    if measured.engine == "thread":
        found = bool(state.thread_handles or measured.threads.failure)
    else:
        found = bool(state.handles) or (batch is not None and batch.not_picklable is not None)
    return found or measured.samples.failed > 0


def _failing_on_threads(measured: Measured) -> Iterator[Finding]:
    """Report that samples raise, or end or block the process, only if several threads make them."""
    is_asked_for = measured.engine == "thread"
    failure = measured.threads.failure if is_asked_for else ""
    if measured.ended is not None and measured.ended_in == "threads":
        failure = measured.ended
    if failure:
        yield Finding(
            "fails-on-threads",
            "Samples fail when several threads make them.",
            "Use worker processes, or give each thread its own handle or buffer in a threading.local().",
            'DataLoader(dataset, engine="process")',
            is_serious=is_asked_for,
            evidence=f"One thread made them without errors, several did not. {failure}",
        )


def _handles(measured: Measured) -> Iterator[Finding]:
    on_threads = measured.engine == "thread"
    handles = measured.state.thread_handles if on_threads else measured.state.handles
    if not handles or measured.engine == "inline":
        return
    first = handles[0]
    others = ", ".join(handle.path for handle in handles[1:_NAMED])
    name = first.path.removeprefix("dataset.")
    yield Finding(
        "shared-handle",
        f"Workers share {first.path}, which is {first.is_called.partition(' (')[0]}.",
        first.advice,
        _opened_later(name, first, on_threads=on_threads) if name.isidentifier() else None,
        is_serious=True,
        evidence=f"{first.path} is {first.is_called}{f' (others: {others})' if others else ''}. {first.trouble}",
    )


def _opened_later(name: str, handle: OpenHandle, *, on_threads: bool) -> str:
    argument = re.search(r"\((self\.\w+)", handle.opening)  # not its own path, which is unknown
    kept = "" if argument is None else f"# and keep what it was opened with: {argument[1]}\n"
    if on_threads:
        return (
            f"# in __init__:\n{kept}self.local = threading.local()\n"
            f"# in __getitem__, instead of self.{name}:\nif not hasattr(self.local, '{name}'):\n"
            f"    self.local.{name} = {handle.opening}\n{name} = self.local.{name}"
        )
    return (
        f"# in __init__:\n{kept}self.{name} = None\n"
        f"# in __getitem__:\nif self.{name} is None:\n    self.{name} = {handle.opening}"
    )


def _generators(measured: Measured) -> Iterator[Finding]:
    """Report generators that workers copy, or that threads share."""
    own, of_process = measured.state.own_generators, measured.state.global_generators
    names = own or (() if measured.engine == "process" else of_process)  # each process has been given its own seeds
    if not names or measured.engine == "inline":
        return
    on_threads = measured.engine == "thread" or not own
    trouble = (
        "Threads share it, and what a sample draws depends on which thread comes first"
        if on_threads
        else "Each worker process gets a copy in the same state, so all workers draw the same numbers, and draw them "
        "again in every epoch that restarts the workers"
    )
    yield Finding(
        "copied-random",
        "Threads draw from one random generator." if on_threads else "Workers draw the same random numbers.",
        "Draw from feedline.rng(), which gives each sample its own numbers.",
        "feedline.rng().random()",
        is_serious=bool(own) or measured.engine == "thread",
        evidence=f"Samples draw from {', '.join(names[:_NAMED])}. {trouble}",
    )


def _reused(samples: Samples) -> Iterator[Finding]:
    if samples.reused:
        field = "a sample" if samples.reused == "sample" else field_in("sample", samples.reused)
        yield Finding(
            "reused-samples",
            "A sample changes when the next ones are made.",
            "Return a copy, or make a new array for each sample.",
            "# in __getitem__, at the end:\nreturn copy.deepcopy(sample)",
            is_serious=True,
            evidence=f"The values of {field} were others after later samples were made: the dataset fills and returns "
            "the same array again. A batch would hold its last values several times",
        )


def _sorted_labels(measured: Measured) -> Iterator[Finding]:
    samples, loader = measured.samples, measured.loader
    if samples.sorted_labels and loader is not None and loader.is_sequential and (loader.batch_size or 0) > 1:
        yield Finding(
            "sorted-labels",
            "Samples are sorted by class, and the loader does not shuffle them.",
            "Shuffle them if this loader is for training.",
            "DataLoader(dataset, shuffle=True)",
            evidence=f"By index, the samples of each class in {field_in('sample', samples.sorted_labels)} follow each "
            "other, so most batches hold one class. For evaluation that does no harm",
        )


def _unpicklable(measured: Measured) -> Iterator[Finding]:
    state, batch = measured.state, measured.batch
    if measured.engine in ("thread", "inline"):
        return
    if batch is not None and batch.not_picklable is not None:
        yield Finding(
            "unpicklable",
            "A batch cannot be pickled, so no worker process can send it.",
            "Use threads, which send nothing; or return arrays, tensors, numbers and texts from the collate function.",
            'DataLoader(dataset, engine="thread")',
            is_serious=True,
            evidence=str(batch.not_picklable),
        )
    elif state.not_picklable is not None:
        setup = measured.headroom if measured.loader is None else measured.loader
        is_sent = setup.start_method != "fork"
        how = "one of which is the default here" if is_sent else "the defaults from Python 3.14 on, and on macOS"
        yield Finding(
            "unpicklable",
            "The dataset cannot be pickled, so not every start method works.",
            state.pickle_advice,
            None if is_sent else 'DataLoader(dataset, multiprocessing_context="fork")',
            is_serious=is_sent,
            evidence=f"{state.not_picklable}. Workers cannot be started by forkserver or spawn, {how}",
        )
