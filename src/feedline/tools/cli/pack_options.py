"""The options of `feedline pack`, described for argparse."""

from __future__ import annotations

import argparse

from feedline.tools.cli import values


def add_pack_options(pack: argparse.ArgumentParser) -> None:
    """Add the options of `feedline pack` to its parser."""
    pack.add_argument(
        "source",
        metavar="SOURCE",
        help="a folder of images or files, a store in any of the formats, a CSV file, or "
        "module:object for a dataset in Python or a function that returns one",
    )
    out = pack.add_mutually_exclusive_group(required=True)
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
    pack.add_argument(
        "--format", help="the format (lmdb, hdf5, tar, parquet or npy), if OUT's suffix does not select one"
    )
    pack.add_argument("--workers", type=values.at_least(0), help="processes that read and encode (one per core)")
    pack.add_argument(
        "--fields",
        type=values.fields,
        metavar="A,B=C",
        help="fields to keep (B is the new name of C), or names for the elements of tuples",
    )
    pack.add_argument(
        "--encode", choices=("keep", "jpg", "png", "raw"), default="keep", help="how to store images (%(default)s)"
    )
    pack.add_argument(
        "--resize",
        type=values.pixels,
        metavar="N|WxH",
        help="shorter side, or exact width and height, of images; if they are cropped while you train, more than a "
        "crop has",
    )
    pack.add_argument("--quality", type=values.at_least(1), default=90, help="JPEG quality, up to 100 (%(default)s)")
    pack.add_argument("--ragged", type=values.names, metavar="A,B", help="array fields whose shapes differ")
    pack.add_argument(
        "--samples-per-shard", type=values.at_least(1), metavar="N", help="maximum number of samples in a shard"
    )
    pack.add_argument("--shard-size", metavar="SIZE", help="approximate size of the largest shard, such as 500M (1GiB)")
    pack.add_argument("--compression", help="for hdf5: gzip, lzf; for parquet: snappy, zstd, lz4, gzip, none")
    pack.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="what to do with samples that cannot be read, or do not fit the others or the format (%(default)s)",
    )
    pack.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    pack.add_argument("--restart", action="store_true", help="start over instead of resuming after complete shards")
    pack.add_argument("--no-verify", action="store_true", help="do not read the output back to check it")
    pack.add_argument("--quiet", action="store_true", help="no progress bar")
    pack.add_argument(
        "--engine",
        choices=("auto", "process", "thread", "ray"),
        default="auto",
        help="the loader's engine (%(default)s)",
    )
    _add_tokens(pack)


def _add_tokens(pack: argparse.ArgumentParser) -> None:
    tokens = pack.add_argument_group(
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
        type=values.token,
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
        "--tokens-per-shard", type=values.at_least(1), metavar="N", help="approximate tokens in a shard (2^28)"
    )
