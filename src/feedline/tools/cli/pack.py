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
from feedline.tools.write.token_run import WrittenTokens
from feedline.tools.write.tokens import write_tokens
from feedline.tools.write.work import WorkFolder

_REASONS_SHOWN = 10
_UNITS = {"tokenizing": "documents", "checking, MiB": "MiB"}
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
    parser.add_argument(
        "--format", help="the format (lmdb, hdf5, tar, parquet or npy), if OUT's suffix does not select one"
    )
    parser.add_argument("--workers", type=options.at_least(0), help="processes that read and encode (one per core)")
    parser.add_argument(
        "--fields",
        type=_fields,
        metavar="A,B=C",
        help="fields to keep (B is the new name of C), or names for the elements of tuples",
    )
    parser.add_argument(
        "--encode", choices=("keep", "jpg", "png", "raw"), default="keep", help="how to store images (%(default)s)"
    )
    parser.add_argument(
        "--resize",
        type=_pixels,
        metavar="N|WxH",
        help="shorter side, or exact width and height, of images; if they are cropped while you train, more than a "
        "crop has",
    )
    parser.add_argument("--quality", type=options.at_least(1), default=90, help="JPEG quality, up to 100 (%(default)s)")
    parser.add_argument("--ragged", type=options.names, metavar="A,B", help="array fields whose shapes differ")
    parser.add_argument(
        "--samples-per-shard", type=options.at_least(1), metavar="N", help="maximum number of samples in a shard"
    )
    parser.add_argument(
        "--shard-size", metavar="SIZE", help="approximate size of the largest shard, such as 500M (1GiB)"
    )
    parser.add_argument("--compression", help="for hdf5: gzip, lzf; for parquet: snappy, zstd, lz4, gzip, none")
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
    _add_token_options(parser)


def _add_token_options(parser: argparse.ArgumentParser) -> None:
    tokens = parser.add_argument_group(
        "texts as tokens",
        "With --tokens, SOURCE is a dataset of texts. Of the options above, only --workers, --engine, --overwrite, "
        "--restart, --no-verify and --quiet apply.",
    )
    tokens.add_argument(
        "--tokenizer",
        metavar="NAME",
        help="a tokenizer.json, module:function for a function that turns a text into token ids, or the name of a "
        "tokenizer on the Hugging Face Hub",
    )
    tokens.add_argument("--field", default="text", help="the field with the text (%(default)s)")
    tokens.add_argument(
        "--append-eos",
        type=_token,
        default=False,
        metavar="ID|auto",
        help="token to append to each document; auto for the tokenizer's end-of-text token (none)",
    )
    tokens.add_argument(
        "--token-type",
        choices=("uint16", "uint32"),
        help="type of tokens (uint16 if the tokenizer has at most 65,536, else uint32)",
    )
    tokens.add_argument(
        "--tokens-per-shard", type=options.at_least(1), metavar="N", help="approximate tokens in a shard (2^30)"
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


def run(arguments: argparse.Namespace) -> None:
    """Pack, and write a summary and the line that reads the output to standard output.

    Raises BadOption: an option cannot work; SourceError: there is no such source; PackError: packing failed.
    """
    check_outputs(arguments)
    out = arguments.out if arguments.tokens is None else arguments.tokens
    try:
        if arguments.tokens is None:
            summary = summary_of(_packed(arguments), is_checked=not arguments.no_verify)
        else:
            summary = summary_of_tokens(_tokenized(arguments), is_checked=not arguments.no_verify)
    except KeyboardInterrupt:
        done = "complete shard" if arguments.tokens is None else "document on disk"
        sys.stderr.write(printable(f"feedline: {interruption_of(out, done)}\n"))
        raise
    sys.stdout.write(printable(summary))


def _packed(arguments: argparse.Namespace) -> Packed:
    with Bar(quiet=arguments.quiet) as bar:
        return pack(
            arguments.source,
            arguments.out,
            format=arguments.format,
            workers=arguments.workers,
            fields=arguments.fields,
            encode=arguments.encode,
            resize=arguments.resize,
            quality=arguments.quality,
            ragged=arguments.ragged or (),
            samples_per_shard=arguments.samples_per_shard,
            shard_bytes=arguments.shard_size,
            compression=arguments.compression,
            on_error=arguments.on_error,
            overwrite=arguments.overwrite,
            restart=arguments.restart,
            verify=not arguments.no_verify,
            engine=arguments.engine,
            report=bar.show,
        )


def _tokenized(arguments: argparse.Namespace) -> WrittenTokens:
    with Bar(quiet=arguments.quiet) as bar:
        return write_tokens(
            arguments.source,
            arguments.tokens,
            arguments.tokenizer,
            field=arguments.field,
            append_eos=arguments.append_eos,
            dtype=arguments.token_type,
            shard_tokens=arguments.tokens_per_shard,
            workers=arguments.workers,
            engine=arguments.engine,
            on_error=arguments.on_error,
            overwrite=arguments.overwrite,
            restart=arguments.restart,
            check=not arguments.no_verify,
            report=bar.show,
        )


_ONLY_SAMPLES = {
    "format": None,
    "fields": None,
    "encode": "keep",
    "resize": None,
    "quality": 90,
    "ragged": None,
    "samples_per_shard": None,
    "shard_size": None,
    "compression": None,
}
"""Options that have no meaning for tokens, and their defaults."""
_ONLY_TOKENS = {"tokenizer": None, "field": "text", "append_eos": False, "token_type": None, "tokens_per_shard": None}


def check_outputs(arguments: argparse.Namespace) -> None:
    """Check that all options belong to what is written, samples or tokens. Raises BadOption: one does not."""
    if arguments.tokens is not None and arguments.tokenizer is None:
        raise BadOption("--tokens needs --tokenizer: a tokenizer.json, module:function, or a name.")
    kind, others = ("OUT", _ONLY_TOKENS) if arguments.tokens is None else ("--tokens", _ONLY_SAMPLES)
    for name, default in others.items():
        if getattr(arguments, name) != default:
            raise BadOption(f"--{name.replace('_', '-')} does not apply to {kind}. Leave it out.")


def interruption_of(out: str | Path, done: str = "complete shard") -> str:
    """Return the message for an interrupted run: whether the next run can resume it, and from where."""
    if protocol_of(str(out)):
        return f"Interrupted. Run the same command again to resume after the last {done} in the store, if there is one."
    out = Path(out)
    if WorkFolder.is_left(out):
        return f"Interrupted. Run the same command again to resume after the last {done}."
    return "Interrupted before a shard was complete. Run the same command again to start over."


def summary_of(packed: Packed, *, is_checked: bool) -> str:
    """Return the result as text for people."""
    made = packed.count - packed.resumed
    rate = f", {made / packed.seconds:,.0f} samples/s" if packed.seconds > 0 else ""
    lines = [
        f"{packed.path}: {packed.count:,} samples, {bytes_text(packed.size)} of {packed.format}",
        f"{made:,} samples in {packed.seconds:.1f} s{rate}"
        + (f"; {packed.resumed:,} were packed by the interrupted run" if packed.resumed else "")
        + ("; all were read back" if is_checked else "; not read back"),
    ]
    if packed.skipped:
        shown = packed.reasons[:_REASONS_SHOWN]
        lines.append(f"{packed.skipped:,} sample{'s were' if packed.skipped > 1 else ' was'} left out:")
        lines += [f"  {reason}" for reason in shown]
        if packed.skipped > len(shown):
            lines.append(f"  ... and {packed.skipped - len(shown):,} more")
    if packed.left_out:
        lines.append(f"{counted(packed.left_out, 'other file')} in the folder did not look like a sample: not packed")
    return "\n".join([*lines, "", "Read it with:", f"  {packed.line}", ""])


def summary_of_tokens(written: WrittenTokens, *, is_checked: bool) -> str:
    """Return the result of writing tokens as text for people."""
    made = written.document_count - written.resumed
    rate = f", {made / written.seconds:,.0f} documents/s" if written.seconds > 0 else ""
    shards = f" in {len(written.files)} shards" if written.files != (written.path,) else ""
    lines = [
        f"{written.path}: {written.token_count:,} tokens of {written.document_count:,} documents, "
        f"{bytes_text(written.size)}{shards}",
        f"{made:,} documents in {written.seconds:.1f} s{rate}"
        + (f"; {written.resumed:,} were written by the interrupted run" if written.resumed else "")
        + ("; all were read back" if is_checked else "; not read back"),
    ]
    if written.skipped:
        lines.append(f"{counted(written.skipped, 'document')} left out: could not be read")
    return "\n".join([*lines, "", "Read it with:", f"  {written.line}", ""])


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
