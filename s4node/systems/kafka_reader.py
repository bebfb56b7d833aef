"""Readers of Kafka's partitions, and the consumer that several of them share.

Rules
- A consumer has one thread, which takes what has come for all its partitions and hands it to trio
  at once. A second reader of the same partition gets another consumer.
- A reader holds a bounded amount. While all are full the thread does not consume, and what the
  client has fetched stays there. A partition that is full while others are not is paused; the
  client then throws away what it has fetched, so the partition resumes when half is free.
- Offsets may have no record: they have a transaction's end, or were compacted away. The broker
  announces the end of a partition, so a reader also passes the offsets behind the last record.
- Records have the epoch of their leader. Kept with the position behind one, it shows later that the
  end of the partition was lost, and that other records have its offsets.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import trio
from confluent_kafka import Consumer, KafkaError, TopicPartition

from s4node.errors import InputLost, S4Error, StageClosed, StartpointError
from s4node.offsets.system import (
    END_OF_STREAM,
    Bounds,
    EndOfStream,
    InputBatch,
    SystemStreamPartition,
)
from s4node.systems.records import RecordBatch, RecordReader, Records
from s4node.threads import Worker

WINDOW = 16_384
"""The most events that a reader holds, approximately."""

WINDOW_BYTES = 4 << 20
"""The most bytes of their values."""

_AT_ONCE = 2000
_WAIT = 0.05
"""The seconds that the thread waits for the first record."""

DENIED = frozenset(
    (
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError._UNSUPPORTED_FEATURE,
    )
)
"""Errors that no waiting heals."""

PASSING = frozenset(
    (
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._DESTROY_BROKER,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._RESOLVE,
        KafkaError._WAIT_CACHE,
        KafkaError._WAIT_COORD,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
    )
)
"""Errors that end by themselves; the client goes on where it was."""

_LOST = frozenset(
    (
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError._LOG_TRUNCATION,
    )
)
_TRUNCATED = "log truncation"
"""The client's message for an offset beyond the end of its epoch, under the code of any reset."""

GONE = frozenset(
    (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)
)


class Arrived(NamedTuple):
    """Records from the offset ``first`` to before ``end``, of a partition that was known to end at
    ``upcoming`` when they were fetched."""

    first: int
    end: int
    records: Records
    weight: int
    created_ms: int
    upcoming: int
    epoch: int = -1
    """1 more than the epoch of the last record; -1 if offsets without a record follow it."""


class KafkaConsumer:
    """Reads partitions for readers in a thread, which is called ``name``.

    ``refused`` makes the error for what a broker denies.
    """

    def __init__(
        self, name: str, options: Mapping[str, Any], refused: Callable[[KafkaError], S4Error]
    ) -> None:
        self._options = options
        self._refused = refused
        self._token = trio.lowlevel.current_trio_token()
        self._taken: set[tuple[str, int]] = set()
        self._lock = threading.Lock()
        self._changes: list[tuple[KafkaReader, bool]] = []
        self._over = False
        # what follows is the thread's
        self._consumer: Consumer | None = None
        self._readers: dict[tuple[str, int], KafkaReader] = {}
        self._paused: set[tuple[str, int]] = set()
        self._worker = Worker(self._step, name)

    def has_room_for(self, place: TopicPartition) -> bool:
        return not self._over and (place.topic, place.partition) not in self._taken

    def add(self, reader: KafkaReader) -> None:
        self._taken.add(reader.key)
        self._change(reader, added=True)

    def remove(self, reader: KafkaReader) -> None:
        self._change(reader, added=False)

    def wake(self) -> None:
        self._worker.wake()

    def stop(self) -> None:
        self._over = True
        self._worker.wake()

    async def wait_ended(self) -> None:
        await self._worker.wait_ended()

    def _change(self, reader: KafkaReader, *, added: bool) -> None:
        with self._lock:
            self._changes.append((reader, added))
        self._worker.wake()

    # -- the thread ----------------------------------------------------------------------------

    def _step(self) -> float | None:
        try:
            if self._over:
                self._end_readers(None)
                return None
            self._apply_changes()
            if not self._adjust():
                return 0.5
            assert self._consumer is not None
            messages = self._consumer.consume(1, _WAIT)  # (2000, t) would wait for all, or t
            if messages:
                messages += self._consumer.consume(_AT_ONCE - 1, 0)
                self._deliver(messages)
        except Exception as error:  # let it end the container
            self._over = True
            self._end_readers(S4Error(f"the client of Kafka cannot read: {error}"))
            return None
        return 0

    def _end_readers(self, error: S4Error | None) -> None:
        with self._lock:
            added = {reader for reader, added in self._changes if added}
        readers = added.union(self._readers.values())
        self._soon([(each, None, error or each.closed()) for each in readers])
        if self._consumer is not None:
            self._consumer.close()

    def _apply_changes(self) -> None:
        with self._lock:
            changes, self._changes = self._changes, []
        for reader, added in changes:
            if added:
                self._readers[reader.key] = reader  # so that it has an error of what follows
                if self._consumer is None:
                    self._consumer = Consumer(dict(self._options))
                self._consumer.incremental_assign([reader.place])
            elif self._readers.get(reader.key) is reader:
                assert self._consumer is not None
                del self._readers[reader.key]
                self._paused.discard(reader.key)
                self._consumer.incremental_unassign([reader.place])
                self._taken.discard(reader.key)

    def _adjust(self) -> bool:
        """Pause and resume partitions; return False if there is no room at all."""
        full = {key for key, r in self._readers.items() if r.is_full(paused=key in self._paused)}
        if len(full) == len(self._readers):
            return False
        assert self._consumer is not None
        if more := full - self._paused:
            self._consumer.pause([TopicPartition(*key) for key in more])
        if less := self._paused - full:
            self._consumer.resume([TopicPartition(*key) for key in less])
        self._paused = full
        return True

    def _deliver(self, messages: Sequence[Any]) -> None:
        assert self._consumer is not None
        found: list[_Delivery] = []
        errors = [each for each in messages if each.error() is not None]
        if errors:  # those of the whole consumer have no topic, and partition 0
            messages = [each for each in messages if each.error() is None]
        for key, run in _runs_of(messages, {topic for topic, _ in self._readers}):
            if (reader := self._readers.get(key)) is not None:
                place = TopicPartition(*key)
                _, upcoming = self._consumer.get_watermark_offsets(place, cached=True)
                found.append((reader, reader.taken(run, upcoming), None))
        found += [
            (reader, each.offset(), each.error())
            for each in errors
            if (reader := self._readers.get((each.topic(), each.partition()))) is not None
        ]
        self._soon(found)

    def _soon(self, found: Sequence[_Delivery]) -> None:
        try:
            self._token.run_sync_soon(self._arrive, found)
        except trio.RunFinishedError:  # nobody reads any more
            self._over = True

    def _arrive(self, found: Sequence[_Delivery]) -> None:
        for reader, what, error in found:
            if isinstance(what, Arrived):
                reader.arrive(what)
            elif isinstance(error, KafkaError):
                reader.fail(error, what, self._refused)
            else:
                reader.end_by(error)


_Delivery = Any


def _runs_of(
    messages: Sequence[Any], topics: Collection[str]
) -> Iterator[tuple[tuple[str, int], Sequence[Any]]]:
    """The records of each partition, which mostly come in long runs.

    Names of topics are compared only if there are several: it takes longer than all the rest.
    """
    places: Sequence[Any] = [message.partition() for message in messages]
    if len(topics) > 1:
        places = [*zip([message.topic() for message in messages], places, strict=True)]
    at = 0
    for _, group in groupby(places):
        end = at + len(list(group))
        yield (messages[at].topic(), messages[at].partition()), messages[at:end]
        at = end


def _code_of(message: Any) -> int | None:
    error = message.error()
    return None if error is None else error.code()


class KafkaReader:
    """Reads one partition, at ``place``, from its offset on; before ``last``, if that is set."""

    def __init__(
        self,
        ssp: SystemStreamPartition,
        place: TopicPartition,
        bounds: Bounds,
        records: RecordReader,
        consumer: KafkaConsumer,
        *,
        last: int | None,
    ) -> None:
        self.ssp = ssp
        self.place = place
        self.key = (place.topic, place.partition)
        self.position = place.offset
        self.uncommitted = 0
        """The records behind the end, if a transaction has been open there for a while."""
        self.maybe_uncommitted = False
        self.still_since = trio.current_time()  # with nothing new
        self.epoch = 0
        """That of ``position``, as ``open`` takes it; 0 if nothing was read."""
        self._end = bounds.upcoming
        self._last = last
        self._records = records
        self._form = records.form
        self._consumer = consumer
        self._arrived: deque[Arrived] = deque()
        self._next = place.offset
        self._error: Exception | None = None
        self._news = trio.lowlevel.ParkingLot()
        self._paused = False
        # The thread counts what it has handed over, ``read`` what was taken; each has one writer.
        self._events = self._bytes = 0
        self._events_taken = self._bytes_taken = 0
        if place.offset < bounds.oldest:
            self._error = self._lost(f"the oldest is {bounds.oldest}")
        else:
            consumer.add(self)

    @property
    def lag(self) -> int | None:
        return max(0, self._end - self.position)

    @property
    def arrived_end(self) -> int:
        return self._next

    async def read(self) -> InputBatch | EndOfStream:
        await trio.lowlevel.checkpoint()
        while not self._arrived:
            if self._last is not None and self.position >= self._last:
                return END_OF_STREAM
            if self._error is not None:
                raise self._error
            await self._news.park()
        arrived = self._arrived.popleft()
        was_full = self.is_full(paused=True)
        self._count_taken(arrived)
        if was_full and not self.is_full(paused=True):
            self._consumer.wake()
        self.position, self.epoch = arrived.end, arrived.epoch
        return RecordBatch(
            self.ssp,
            arrived.first,
            arrived.end,
            arrived.records,
            arrived.weight,
            arrived.created_ms,
            self._records,
        )

    def _count_taken(self, arrived: Arrived) -> None:
        self._events_taken += len(arrived.records.offsets)
        self._bytes_taken += arrived.weight

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._consumer.wake()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self._consumer.remove(self)
        self.end_by(self.closed())
        self._arrived.clear()

    def closed(self) -> StageClosed:
        return StageClosed(f"the reader of {self.ssp} is closed; open another one")

    # -- the thread ----------------------------------------------------------------------------

    def is_full(self, *, paused: bool) -> bool:
        """Return True if it holds too much; a ``paused`` one, while it holds half of that."""
        share = 2 if paused else 1
        return (
            self._paused
            or self._events - self._events_taken >= WINDOW // share
            or self._bytes - self._bytes_taken >= WINDOW_BYTES // share
        )

    def taken(self, messages: Sequence[Any], upcoming: int) -> Arrived:
        """Take over records; ``arrive`` completes where they begin."""
        form = self._form
        values = [message.value() for message in messages]
        first, last = messages[0].offset(), messages[-1].offset()
        offsets: Sequence[int] = range(first, last + 1)
        if len(offsets) != len(messages):
            offsets = [message.offset() for message in messages]
        weight = sum(map(len, filter(None, values)))
        records = Records(
            offsets,
            values,
            [message.key() for message in messages] if form.key else (),
            [message.timestamp()[1] for message in messages] if form.time else (),
            [message.headers() or () for message in messages] if form.headers else (),
        )
        self._events += len(values)
        self._bytes += weight
        created = messages[0].timestamp()[1]
        epoch = messages[-1].leader_epoch()
        epoch = -1 if epoch is None else epoch + 1
        return Arrived(first, last + 1, records, weight, created, upcoming, epoch)

    # -- what has come -------------------------------------------------------------------------

    def arrive(self, arrived: Arrived) -> None:
        last = self._last
        if arrived.end <= self._next or (last is not None and self._next >= last):
            self._count_taken(arrived)
            return
        if last is not None and arrived.end > last:
            whole, arrived = arrived, _before(arrived, last)
            self._events_taken += len(whole.records.offsets) - len(arrived.records.offsets)
        self._arrived.append(arrived._replace(first=self._next))
        self._next = arrived.end
        self.uncommitted, self.maybe_uncommitted = 0, False
        self.still_since = trio.current_time()
        self._end = max(self._end, self._next, arrived.upcoming)
        self._news.unpark_all()

    def fail(
        self, error: KafkaError, offset: int, refused: Callable[[KafkaError], S4Error]
    ) -> None:
        """Take over an error of the partition, or that its end is at ``offset``."""
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            if offset > self._next:  # behind the last record there may be ends of transactions
                self.arrive(Arrived(self._next, offset, Records((), ()), 0, 0, offset))
            self._end = self._next
            return
        if code in _LOST and _TRUNCATED not in error.str():
            self.end_by(self._lost(error.str()))
        elif code in _LOST:
            self.end_by(_end_lost(self.ssp, self._next, error))
        elif code in GONE:
            self.end_by(
                S4Error(
                    f"{self.ssp} is gone: {error.str()}. Create the topic again, and start without "
                    f"the progress in the former one"
                )
            )
        elif code in DENIED:
            self.end_by(refused(error))
        elif error.fatal() or not (code in PASSING or error.retriable()):
            self.end_by(S4Error(f"{self.ssp} cannot be read at offset {self._next}: {error.str()}"))

    def end_by(self, error: Exception) -> None:
        self._error = error
        self._news.unpark_all()

    def _lost(self, reason: str) -> InputLost:
        return InputLost(
            f"{self.ssp}: offset {self.position} does not exist: {reason}; retention was faster "
            f"than the reader, or the topic is another one now"
        )


def check_epoch(
    ssp: SystemStreamPartition, place: TopicPartition, options: Mapping[str, Any]
) -> None:
    """Raise StartpointError if the end of the epoch of ``place`` is lost, and its offset with it.

    Only a new consumer compares them, so this takes one for it, in a thread.
    """
    consumer = Consumer(dict(options))
    try:
        consumer.assign([place])
        found: list[Any] = []
        while not found:
            trio.from_thread.check_cancelled()
            found = [m for m in consumer.consume(1, _WAIT) if _code_of(m) not in PASSING]
        error = found[0].error()
        if error is not None and error.code() in _LOST and _TRUNCATED in error.str():
            raise _end_lost(ssp, place.offset, error)
    finally:
        consumer.close()


def _end_lost(ssp: SystemStreamPartition, offset: int, error: KafkaError) -> StartpointError:
    return StartpointError(
        f"{ssp}: the records before offset {offset} are lost, and others may have their offsets: "
        f"{error.str()}. What they did stays in the state. Say where to resume: s4 startpoint set "
        f"APP '{ssp}' --offset N"
    )


def _before(arrived: Arrived, end: int) -> Arrived:
    """The part of what has come that is before an offset."""
    kept = sum(offset < end for offset in arrived.records.offsets)
    return arrived._replace(end=end, records=arrived.records.between(0, kept))
