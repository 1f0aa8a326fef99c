"""`feedline pack`: write a dataset in a format that reads fast, with a progress bar."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from feedline.datasets.storage.storage import protocol_of
from feedline.errors import BadOption
from feedline.system.shown import counted, printable
from feedline.system.sizes import bytes_text
from feedline.tools.cli import options
from feedline.tools.screen import Screen
from feedline.tools.write import Packed, Stage, pack
from feedline.tools.write.place import LocalPlace
from feedline.tools.write.tokens import WrittenTokens, write_tokens

_REASONS_SHOWN = 10
_UNITS = {"tokenizing": "documents"}
"""What a stage counts, unless it is samples."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a folder of images or files, a store in any of the formats, a CSV file, or "
        "module:object for a dataset in Python or a function that returns one",
    )
    out = parser.add_mutually_exclusive_group(required=True)
    out.add_argument(
        "out",
        metavar="OUT",
        nargs="?",
        help="a file whose suffix selects the format, a folder (of shards, of arrays), or the address of a folder in a "
        "store, such as s3://bucket/train",
    )
    out.add_argument(
        "--tokens",
        metavar="OUT.bin",
        help="instead of OUT: write the tokens of texts to this file, or to a folder of shards",
    )
    parser.add_argument("--workers", type=options.at_least(0), help="processes that read and encode (one per core)")
    parser.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="what to do with samples that cannot be read, or do not fit the others or the format (%(default)s)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    parser.add_argument("--restart", action="store_true", help="start over instead of resuming after complete shards")
    parser.add_argument("--no-verify", action="store_true", help="do not read the output back to check it")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument(
        "--engine",
        choices=("auto", "process", "thread", "ray"),
        default="auto",
        help="the loader's engine (%(default)s)",
    )
    _add_sample_options(parser.add_argument_group("samples", argument_default=argparse.SUPPRESS))
    _add_token_options(
        parser.add_argument_group(
            "texts as tokens", "With --tokens, SOURCE is a dataset of texts.", argument_default=argparse.SUPPRESS
        )
    )


def _add_sample_options(samples: argparse._ArgumentGroup) -> None:
    samples.add_argument(
        "--format", help="the format (lmdb, hdf5, tar, parquet or npy), if OUT's suffix does not select one"
    )
    samples.add_argument(
        "--fields",
        type=_fields,
        metavar="A,B=C",
        help="fields to keep (B is the new name of C), or names for the elements of tuples",
    )
    samples.add_argument("--encode", choices=("keep", "jpg", "png", "raw"), help="how to store images (keep)")
    samples.add_argument(
        "--resize",
        type=_pixels,
        metavar="N|WxH",
        help="shorter side, or exact width and height, of images; if they are cropped while you train, more than a "
        "crop has",
    )
    samples.add_argument("--quality", type=options.at_least(1), help="JPEG quality, up to 100 (90)")
    samples.add_argument("--ragged", type=options.names, metavar="A,B", help="array fields whose shapes differ")
    samples.add_argument(
        "--samples-per-shard", type=options.at_least(1), metavar="N", help="maximum number of samples in a shard"
    )
    samples.add_argument(
        "--shard-size",
        metavar="SIZE",
        help="approximate size of the largest shard, such as 500M (1GiB)",
    )
    samples.add_argument("--compression", help="for hdf5: gzip, lzf; for parquet: snappy, zstd, lz4, gzip, none")


def _add_token_options(tokens: argparse._ArgumentGroup) -> None:
    tokens.add_argument(
        "--tokenizer",
        metavar="NAME",
        help="a tokenizer.json, module:function for a function that turns a text into token ids, or the name of a "
        "tokenizer on the Hugging Face Hub",
    )
    tokens.add_argument("--field", help="the field with the text (text)")
    tokens.add_argument(
        "--append-eos",
        type=_token,
        metavar="ID|auto",
        help="token to append to each document; auto for the tokenizer's end-of-text token (none)",
    )
    tokens.add_argument(
        "--token-type",
        choices=("uint16", "uint32"),
        help="type of tokens (uint16 if the tokenizer has at most 65,536, else uint32)",
    )
    tokens.add_argument(
        "--tokens-per-shard",
        type=options.at_least(1),
        metavar="N",
        help="approximate tokens in a shard (2^28)",
    )


def _fields(text: str) -> dict[str, str]:
    """Read new names of fields, and for each the old one."""
    pairs = [
        (new.strip(), old.strip() or new.strip()) for new, _, old in (one.partition("=") for one in options.names(text))
    ]
    if len({new for new, _ in pairs}) < len(pairs):
        raise argparse.ArgumentTypeError(f"{text!r} names a field twice")
    return dict(pairs)


def _pixels(text: str) -> int | tuple[int, int]:
    """Read the size of an image: its shorter side, or width and height."""
    try:
        width, _, height = text.lower().partition("x")
        return (int(width), int(height)) if height else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an image size such as 256 or 320x240") from None


def _token(text: str) -> int | bool:
    """Read a token id; True for auto."""
    try:
        return True if text == "auto" else options.at_least(0)(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a token id nor auto") from None


_FOR_BOTH = ("workers", "engine", "on_error", "overwrite", "restart")
_FOR_SAMPLES = (
    *("format", "fields", "encode", "resize", "quality", "ragged"),
    *("samples_per_shard", "shard_size", "compression"),
)
_FOR_TOKENS = ("tokenizer", "field", "append_eos", "token_type", "tokens_per_shard")
_CALLED = {"shard_size": "shard_bytes", "token_type": "dtype", "tokens_per_shard": "shard_tokens"}
"""Options whose arguments have other names in `pack` and `write_tokens`."""


def run(arguments: argparse.Namespace) -> None:
    """Pack, and write a summary and the line that reads the output to standard output.

    Raises BadOption: an option cannot work; SourceError: there is no such source; PackError: packing failed.
    """
    given, is_tokens = vars(arguments), arguments.tokens is not None
    own, others = (_FOR_TOKENS, _FOR_SAMPLES) if is_tokens else (_FOR_SAMPLES, _FOR_TOKENS)
    wrong = next((name for name in others if name in given), None)
    if wrong is not None:
        kind = "--tokens" if is_tokens else "OUT"
        raise BadOption(f"--{wrong.replace('_', '-')} does not apply to {kind}. Leave it out.")
    if is_tokens and "tokenizer" not in given:
        raise BadOption("--tokens needs --tokenizer: a tokenizer.json, module:function, or a name.")
    passed = {_CALLED.get(name, name): given[name] for name in (*own, *_FOR_BOTH) if name in given}
    is_checked, out = not arguments.no_verify, arguments.tokens if is_tokens else arguments.out
    try:
        with Bar(quiet=arguments.quiet) as bar:
            if is_tokens:
                written = write_tokens(arguments.source, out, check=is_checked, report=bar.show, **passed)
                summary = _summary_of_tokens(written, is_checked=is_checked)
            else:
                packed = pack(arguments.source, out, verify=is_checked, report=bar.show, **passed)
                summary = _summary_of(packed, is_checked=is_checked)
    except KeyboardInterrupt:
        sys.stderr.write(printable(f"feedline: {_interruption_of(out)}\n"))
        raise
    sys.stdout.write(printable(summary))


def _interruption_of(out: str) -> str:
    """Return the message for an interrupted run: whether the next run can resume it, and from where."""
    again = "Interrupted. Run the same command again to resume after the last complete shard"
    if protocol_of(out):
        return f"{again} in the store, if there is one."
    if LocalPlace.is_left(Path(out)):
        return f"{again}."
    return "Interrupted before a shard was complete. Run the same command again to start over."


def _summary_of(packed: Packed, *, is_checked: bool) -> str:
    """Return the result of packing as text for people."""
    head = f"{packed.path}: {packed.count:,} samples, {bytes_text(packed.size)} of {packed.format}"
    more = []
    if packed.skipped:
        shown = packed.reasons[:_REASONS_SHOWN]
        more.append(f"{packed.skipped:,} sample{'s were' if packed.skipped > 1 else ' was'} left out:")
        more += [f"  {reason}" for reason in shown]
        if packed.skipped > len(shown):
            more.append(f"  ... and {packed.skipped - len(shown):,} more")
    if packed.left_out:
        more.append(f"{counted(packed.left_out, 'other file')} in the folder did not look like a sample: not packed")
    made = _made(packed.count, packed.resumed, "samples", packed.seconds, is_checked=is_checked)
    return "\n".join([head, made, *more, "", "Read it with:", f"  {packed.line}", ""])


def _summary_of_tokens(written: WrittenTokens, *, is_checked: bool) -> str:
    """Return the result of writing tokens as text for people."""
    shards = f" in {len(written.files)} shards" if written.files != (written.path,) else ""
    head = (
        f"{written.path}: {written.token_count:,} tokens of {written.document_count:,} documents, "
        f"{bytes_text(written.size)}{shards}"
    )
    made = _made(written.document_count, written.resumed, "documents", written.seconds, is_checked=is_checked)
    more = [f"{counted(written.skipped, 'document')} left out: could not be read"] if written.skipped else []
    return "\n".join([head, made, *more, "", "Read it with:", f"  {written.line}", ""])


def _made(count: int, resumed: int, what: str, seconds: float, *, is_checked: bool) -> str:
    made = count - resumed
    rate = f", {made / seconds:,.0f} {what}/s" if seconds > 0 else ""
    before = f"; {resumed:,} were written by the interrupted run" if resumed else ""
    return f"{made:,} {what} in {seconds:.1f} s{rate}{before}; {'all were' if is_checked else 'not'} read back"


class Bar:
    """A progress bar per stage, on standard error; a context manager."""

    def __init__(self, *, quiet: bool = False, screen: Screen | None = None) -> None:
        self._bar = (screen or Screen(stderr=True)).bar(quiet=quiet)
        self._stage = ""

    def __enter__(self) -> Bar:
        self._bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__()

    def show(self, stage: Stage) -> None:
        """Show the progress; called by `pack`."""
        if stage.name != self._stage:
            # Start at the samples of an earlier run, which do not count towards the speed of this one.
            self._bar.begin(stage.name, stage.total, done=stage.done, unit=_UNITS.get(stage.name, "samples"))
            self._stage = stage.name
        self._bar.update(done=stage.done)
