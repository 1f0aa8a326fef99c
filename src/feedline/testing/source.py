"""What a map-style source must do, as tests.

Define in a subclass how a source is created, and what it contains:

    class TestMySource(SourceContract):
        def make_source(self, **options):
            return MySource("data.bin", **options)

        def samples(self):
            return [...]  # what data.bin was written from

        def files(self):
            return ["data.bin"]  # the tests damage it, and put it back
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import pickle
import unittest
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import feedline
from feedline.abc.source import ColumnSource
from feedline.collate import default
from feedline.errors import SourceError
from feedline.testing.asserting import apart, assert_same, error_of

T = TypeVar("T")

BATCH = 5
_FLIPS = 40
"""Places of a file with checksums at which a byte is changed."""


class SourceBench:
    """What a suite declares about its dataset, helpers, and the tests that sources and streams share."""

    compares_pickled = False
    """True to compare samples by their pickles, because they contain objects other than arrays without equality."""

    notices_damage = True
    """False if any bytes are a valid file, as of text: a file that is cut off may then give other samples."""

    stays_mapped = False
    """True if files are mapped and not checked before every read: cutting one off while it is open is then a crash."""

    has_checksums = False
    """True if files have checksums: a changed byte then gives the right samples, or an error that names the file."""

    # Any, throughout: a source is any dataset, with samples of any type.
    def make_source(self, **options: object) -> Any:
        """Return a new source. `options` go to its constructor: none, or `transform=` if `takes_transform` is True."""
        raise NotImplementedError

    def samples(self) -> list[Any]:
        """Return the samples that the source contains, in order and of the same types. There must be at least 24."""
        raise NotImplementedError

    def files(self) -> Sequence[str | os.PathLike[str]]:
        """Return the files that a source reads, which tests damage; by default none, and these tests are skipped."""
        return ()

    def rewrite(self) -> list[Any] | None:
        """Write other samples of the same form into the files, as many as before, and return them.

        By default, this returns None, and tests of changed files are skipped.
        """
        return None

    def same(self, found: object, expected: object) -> None:
        """Compare two samples or batches: types and bits."""
        if self.compares_pickled:
            assert pickle.dumps(found) == pickle.dumps(expected)
        else:
            assert_same(found, expected)

    @contextlib.contextmanager
    def _opened(self, **options: object) -> Iterator[tuple[Any, list[Any]]]:
        """Yield a new source and its samples; close the source afterwards, if it can be closed."""
        source = self.make_source(**options)
        yield source, self.samples()
        close(source)

    # Any: batches are lists of samples.
    def _check_batches(self, loader: Iterable[Any], samples: list[Any]) -> None:
        expected = [samples[first : first + BATCH] for first in range(0, len(samples), BATCH)]
        for found, batch in zip(loader, expected, strict=True):
            self.same(list(found), batch)

    def test_batches_are_the_same_with_every_engine(self) -> None:
        """Also when the handles were open before the workers started."""
        self._check_loaders(
            {"workers": 0, "engine": "inline"},
            {"workers": 3, "engine": "thread"},
            {"workers": 1, "engine": "process"},
            {"workers": 3, "engine": "process"},
        )

    def test_batches_are_the_same_with_every_start_method(self) -> None:
        """Spawned workers import the class of the source, so it must be defined in a module, not in a function."""
        self._check_loaders({"workers": 2, "start_method": "forkserver"}, {"workers": 2, "start_method": "spawn"})

    def test_a_file_that_is_cut_off_gives_an_error_that_names_it(self) -> None:
        """Also if it is cut off after a sample was read. It never gives other samples, and never kills the process."""
        self._need(self.files() and self.notices_damage, "files() is empty, or notices_damage is False")
        for path, content in self._files_in_turn():
            for size in sorted({len(content) * part // 100 for part in (0, 1, 30, 60, 95)} | {len(content) - 1}):
                for opened in (False,) if self.stays_mapped else (False, True):
                    is_refused = apart(functools.partial(self._is_cut_off_refused, path, size, opened=opened))
                    path.write_bytes(content)
                    may_be_whole = opened or size > len(content) * 60 // 100
                    assert is_refused or may_be_whole, f"{size} of {len(content)} bytes of {path.name} give no error"

    def test_a_file_of_another_kind_gives_an_error_that_names_it(self) -> None:
        self._need(self.files() and self.notices_damage, "files() is empty, or notices_damage is False")
        for path, _ in self._files_in_turn():
            for other in (b"hello, world\n" * 100, b"\xff" * 5000, b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9):
                path.write_bytes(other)
                assert apart(functools.partial(self._is_refused, self.make_source, [path])), "no error"

    def test_a_missing_file_is_named(self) -> None:
        """If there is only one; a source that lists its files may find one less."""
        self._need(self.files(), "files() is empty")
        for path, _ in self._files_in_turn():
            is_refused = apart(functools.partial(self._is_removal_refused, path))
            assert is_refused or len(self.files()) > 1, "no error"

    def test_a_changed_byte_gives_the_right_samples_or_an_error(self) -> None:
        self._need(self.files() and self.has_checksums, "files() is empty, or has_checksums is False")
        samples = self.samples()
        for path, content in self._files_in_turn():
            for place in range(0, len(content), max(1, len(content) // _FLIPS)):
                path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
                apart(functools.partial(self._is_refused, self.make_source, [path], samples))

    def test_changed_files_are_never_mixed(self) -> None:
        """An open source gives the old samples, the new ones, or an error; a new source gives the new ones."""
        paths, old, new, before, after = self._two_versions()

        def check(replace: bool) -> None:
            source, unread = self.make_source(), pickle.dumps(self.make_source())
            self.same(next(iter(source)), old[0])
            for path, content in zip(paths, after, strict=True):
                target = path.with_name("changed") if replace else path
                target.write_bytes(content)
                target.replace(path)
            for make in (lambda: source, lambda: source, lambda: pickle.loads(unread)):  # closed after each
                self._is_refused(make, paths, old, new)
            assert not self._is_refused(self.make_source, paths, new)

        for replace in (False, True):
            for path, content in zip(paths, before, strict=True):
                path.write_bytes(content)
                os.utime(path, (10**9, 10**9))
            apart(functools.partial(check, replace))

    def test_replaced_files_are_read_anew_even_if_their_times_are_the_same(self) -> None:
        """Programs that copy files set their times; what a source derived from other files must not be used."""
        paths, old, new, before, after = self._two_versions()
        for contents in (before, after):
            for path, content in zip(paths, contents, strict=True):
                copy = path.with_name("copy")
                copy.write_bytes(content)
                os.utime(copy, (10**9, 10**9))
                copy.replace(path)
            with self._opened() as (source, _):
                for found, expected in zip(source, old if contents is before else new, strict=True):
                    self.same(found, expected)

    def _two_versions(self) -> tuple[list[Path], list[Any], list[Any], list[bytes], list[bytes]]:
        """Return the files, the old and the new samples, and the old and the new contents of each file."""
        old, paths = self.samples(), [Path(path) for path in self.files()]
        before = [path.read_bytes() for path in paths]
        new = self.rewrite() if paths else None
        if new is None:
            raise unittest.SkipTest("files() is empty, or rewrite() returns None")
        return paths, old, new, before, [path.read_bytes() for path in paths]

    def _is_cut_off_refused(self, path: Path, size: int, *, opened: bool) -> bool:
        source, samples = self.make_source() if opened else None, self.samples()
        if source is not None:
            next(iter(source))
        os.truncate(path, size)
        return self._is_refused(lambda: source or self.make_source(), [path], samples)

    def _is_removal_refused(self, path: Path) -> bool:
        source, samples = self.make_source(), self.samples()
        next(iter(source))  # some list their files only now
        path.unlink()
        self._is_refused(lambda: source, [path], samples)
        return self._is_refused(self.make_source, [path])

    # Any, twice: a source, and samples.
    def _is_refused(self, make: Callable[[], Any], paths: Sequence[Path], *versions: list[Any]) -> bool:
        """Read all samples of the source that `make` returns; True if an error ends that, which must name a file.

        If versions are given, the samples must be those of one of them: all, or those before the error.
        """
        found: list[Any] = []
        source = error = None
        try:
            source = make()
            found.extend(source)
        except (SourceError, FileNotFoundError) as exc:
            error = str(exc)
            names = [path.name for path in paths]
            assert any(name in error for name in names), f"the error names none of {names}: {error}"
        finally:
            close(source)
        differences = [self._difference(found, version[: len(found)] if error else version) for version in versions]
        assert not differences or None in differences, f"wrong samples were read: {differences}"
        return error is not None

    def _difference(self, found: list[Any], expected: list[Any]) -> str | None:
        try:
            assert len(found) == len(expected), f"{len(found)} samples instead of {len(expected)}"
            for one, other in zip(found, expected, strict=True):
                self.same(one, other)
        except AssertionError as exc:
            return str(exc)
        return None

    def _files_in_turn(self) -> Iterator[tuple[Path, bytes]]:
        """Yield the first and the last file, with its contents, and restore it after that."""
        paths = [Path(path) for path in self.files()]
        for path in dict.fromkeys((paths[0], paths[-1])):
            content = path.read_bytes()
            yield path, content
            path.write_bytes(content)

    def _need(self, condition: object, reason: str) -> None:
        if not condition:
            raise unittest.SkipTest(reason)

    # Any: options of a loader.
    def _check_loaders(self, *ways: dict[str, Any]) -> None:
        with self._opened() as (source, samples):
            self.same(next(iter(source)), samples[0])
            for options in ways:
                self._check_batches(feedline.Loader(source, BATCH, collate_fn=as_it_is, **options), samples)


class SourceContract(SourceBench):
    """What a map-style dataset must do to give the same samples in every kind of worker, as tests.

    Subclass this in a test file; pytest runs the tests. A source must have a length, return the sample at each index,
    raise `IndexError` for the index after the last one, and survive being pickled, forked, and read by several threads.
    What else it can do is tested if it has it: `__getitems__`, `close`, `read_columns`
    (`feedline.abc.ColumnSource`) and, if `takes_transform` is True, `transform=`.

    Example:
        >>> from feedline.datasets import ArrayDataset
        >>> class TestArrays(SourceContract):
        ...     def make_source(self, **options):
        ...         return ArrayDataset(np.arange(24), **options)
        ...     def samples(self):
        ...         return list(np.arange(24))
        >>> TestArrays().test_a_forked_process_reads_after_its_parent_did()  # pytest runs all of them
    """

    takes_transform = False
    """True if the constructor takes `transform=`, a function that is applied to each sample."""

    def test_samples_are_what_was_written(self) -> None:
        with self._opened() as (source, samples):
            assert len(samples) >= 24, "samples() must return at least 24 samples"
            assert len(source) == len(samples)
            for index, sample in enumerate(samples):
                self.same(source[index], sample)
            for found, expected in zip(source, samples, strict=True):
                self.same(found, expected)

    def test_indices_may_be_integers_of_numpy(self) -> None:
        with self._opened() as (source, samples):
            self.same(_with_plain_integers(source[np.int64(2)]), _with_plain_integers(samples[2]))

    def test_an_index_out_of_range_gives_an_error_and_no_sample(self) -> None:
        with self._opened() as (source, samples):
            count = len(samples)
            for index in (count, -count - 1, 10**12):
                error_of(functools.partial(operator.getitem, source, index), IndexError)
            with contextlib.suppress(IndexError):  # an index from the end is an error, unless the source supports it
                self.same(source[-1], samples[-1])

    def test_several_samples_are_read_together(self) -> None:
        with self._opened() as (source, samples):
            if not hasattr(source, "__getitems__"):
                raise unittest.SkipTest("the source has no __getitems__")
            for indices in ([3, 1, 2], [7, 7, 0, 7], [len(samples) - 1], [], list(range(len(samples)))[::-1]):
                found = source.__getitems__(indices)
                assert len(found) == len(indices)
                for index, sample in zip(indices, found, strict=True):
                    self.same(sample, samples[index])
            error_of(lambda: source.__getitems__([0, len(samples)]), IndexError)

    def test_a_transform_is_applied_to_each_sample(self) -> None:
        if not self.takes_transform:
            raise unittest.SkipTest("takes_transform is False")
        with self._opened(transform=_wrapped) as (source, samples):
            kind, found = source[3]
            assert kind == "wrapped"
            self.same(found, samples[3])
            for (_, one), index in zip(read(source, [4, 2]), (4, 2), strict=True):
                self.same(one, samples[index])

    def test_a_source_can_be_pickled_before_and_after_it_was_read(self) -> None:
        with self._opened() as (source, samples):
            for _ in range(2):
                other = pickle.loads(pickle.dumps(source))
                assert len(other) == len(samples)
                self.same(other[1], samples[1])
                close(other)
                self.same(source[1], samples[1])  # now the source has open handles

    def test_a_source_can_be_closed_twice_and_used_again(self) -> None:
        with self._opened() as (source, samples):
            if not hasattr(source, "close"):
                raise unittest.SkipTest("the source has no close()")
            source.close()
            for _ in range(2):
                self.same(source[2], samples[2])
                source.close()
                source.close()

    def test_a_forked_process_reads_after_its_parent_did(self) -> None:
        if not hasattr(os, "fork"):
            raise unittest.SkipTest("this system has no fork")
        with self._opened() as (source, samples):
            self.same(source[0], samples[0])
            for _ in range(2):
                apart(lambda: self.same(source[5], samples[5]))
                self.same(source[6], samples[6])  # the child did not affect the parent

    def test_threads_read_at_the_same_time(self) -> None:
        with self._opened() as (source, samples), ThreadPoolExecutor(4) as threads:
            requests = [[(step * 7 + shift) % len(samples) for shift in range(6)] for step in range(40)]
            for indices, found in zip(requests, threads.map(functools.partial(read, source), requests), strict=True):
                for index, sample in zip(indices, found, strict=True):
                    self.same(sample, samples[index])

    def test_columns_are_what_the_default_collate_function_makes_of_samples(self) -> None:
        with self._opened() as (source, samples):
            if not isinstance(source, ColumnSource):
                raise unittest.SkipTest("the source is not a feedline.abc.ColumnSource")
            for indices in ([3], [3, 1, 2, 2], [-1, 0]):
                columns = source.read_columns(np.array(indices))
                if columns is not None:
                    self.same(columns, default([samples[index] for index in indices]))
            error_of(lambda: source.read_columns(np.array([len(samples)])), IndexError)


# Any: any dataset.
def read(source: Any, indices: list[int]) -> list[Any]:
    """Return samples as loaders do: together, if the source has `__getitems__`."""
    if hasattr(source, "__getitems__"):
        return list(source.__getitems__(indices))
    return [source[index] for index in indices]


def close(source: object) -> None:
    """Close a source that can be closed."""
    act: Callable[[], object] = getattr(source, "close", lambda: None)
    act()


def as_it_is(samples: object) -> object:
    """Collate samples as a list, whatever they are."""
    return samples


def _wrapped(sample: object) -> object:
    return "wrapped", sample


# Any: a sample is anything.
def _with_plain_integers(sample: Any) -> Any:
    """Return a sample with NumPy's integers as int: it may contain the index, as it was given."""
    if isinstance(sample, np.integer):
        return int(sample)
    if type(sample) is dict:
        return {key: _with_plain_integers(value) for key, value in sample.items()}
    if type(sample) in (list, tuple):
        return type(sample)(_with_plain_integers(value) for value in sample)
    return sample
