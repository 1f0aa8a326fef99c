"""The contract of engines: datasets that are streams."""

from __future__ import annotations

from feedline.testing.engine.bench import EngineBench
from feedline.testing.engine.workload import BrokenStream, Countdown, SampleFailed
from feedline.types import ResultKind


class StreamChapter(EngineBench):
    """Each worker reads a stream of its own, from its beginning to its end, in every epoch."""

    def test_each_worker_has_a_stream_of_its_own_until_it_ends(self) -> None:
        with self._at_work(Countdown(5), streams=True) as engine:
            for worker in range(engine.worker_count):
                answers = [self._ask(engine, 10 * worker + number, 2, worker=worker) for number in range(5)]
                kinds = [result.kind for result in answers]
                assert kinds == [ResultKind.DONE] * 3 + [ResultKind.ENDED] * 2
                assert [self.batch_of(result).tolist() for result in answers[:3]] == [[5, 4], [3, 2], [1]]

    def test_a_stream_without_its_last_short_batch(self) -> None:
        with self._at_work(Countdown(5), streams=True, drop_last=True) as engine:
            answers = [self._ask(engine, number, 2) for number in range(3)]
            assert [result.kind for result in answers] == [ResultKind.DONE, ResultKind.DONE, ResultKind.ENDED]

    def test_an_empty_stream_ends_at_once(self) -> None:
        with self._at_work(Countdown(0), streams=True) as engine:
            assert self._ask(engine, 0, 2).kind is ResultKind.ENDED

    def test_a_new_epoch_begins_the_stream_again(self) -> None:
        with self._at_work(Countdown(3), streams=True) as engine:
            first = [self._ask(engine, number, 2) for number in range(3)]
            again = [self._ask(engine, 3 + number, 2, epoch=1) for number in range(3)]
            early = [self._ask(engine, 6, 2, epoch=2), self._ask(engine, 7, 2, epoch=3)]
            for answers in (first, again):
                assert [result.kind for result in answers] == [ResultKind.DONE, ResultKind.DONE, ResultKind.ENDED]
                assert [self.batch_of(result).tolist() for result in answers[:2]] == [[3, 2], [1]]
            assert [self.batch_of(result).tolist() for result in early] == [[3, 2], [3, 2]]

    def test_a_stream_that_raises_arrives_as_a_failure(self) -> None:
        with self._at_work(BrokenStream(), streams=True) as engine:
            assert self.batch_of(self._ask(engine, 0, 2)).tolist() == [1, 2]
            result = self._ask(engine, 1, 2)
            assert result.kind is ResultKind.FAILED
            assert type(result.payload) is SampleFailed
