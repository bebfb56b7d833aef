"""Receivers of tasks' output in Kafka: a transaction for some commits, and a marker in it.

Rules
- Each task has a producer of its own, and a transactional id with its name. So opening a receiver
  fences the former owners of that task, and no other.
- After any error the producer is thrown away. The client's finer ways (abort, try again) are not
  used: a transaction whose commit timed out is neither committed nor aborted for sure.
- Markers are in a compacted topic of the app, which is checked before the first transaction. They
  are read once for each opening, up to where the topic ends *after* the former transaction was
  decided. Transactions of other tasks may hide the end from readers of committed records; it is
  waited for, as long as there is progress.
- Partitions are those that Kafka's own producers choose: murmur2 of the key.
"""

from __future__ import annotations

import logging
import math
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec
import trio
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from s4node import clocks, threads
from s4node.errors import ConfigError, ReceiverLost, S4Error
from s4node.failpoints import passing
from s4node.offsets.system import Marker, OutputRecord
from s4node.systems.kafka_reader import DENIED

_OPEN_SECONDS = 30.0
"""The most seconds for deciding a former transaction, and for a further part of the markers."""

_TAIL = 500
"""The last records of the markers, which are read first."""

_MARKER_PARTITIONS = 16
_MARKER_TOPIC = {
    "cleanup.policy": "compact",
    "segment.bytes": "16777216",  # the last segment is not compacted, and read at an opening
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
}

_REFUSED = DENIED | {
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError.INVALID_CONFIG,
    KafkaError._INVALID_ARG,
}
"""Errors that stop the container."""

_quiet = logging.getLogger("s4node.kafka.client")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False  # else a producer that is fenced looks like a crash

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Marker).decode


class KafkaMarkers:
    """The markers of an app in ``topic``, which is created if it is missing.

    All methods are called in threads. ``close`` may be followed by others.
    """

    def __init__(self, topic: str, options: Mapping[str, Any]) -> None:
        self.topic = topic
        self._options = {**options, "isolation.level": "read_committed"}
        self._lock = threading.Lock()
        self._partitions = 0
        self._readers: tuple[Consumer, Consumer] | None = None

    def partition_of(self, key: bytes) -> int:
        """The partition of a key; creates the topic if it is missing."""
        with self._lock:
            if not self._partitions:
                found = self._found()
                if not found:
                    self._create()
                    raise ReceiverLost(f"the topic {self.topic!r} was just created")
                self._check_compacted()
                self._partitions = found
            return zlib.crc32(key) % self._partitions

    def close(self) -> None:
        with self._lock:
            readers, self._readers = self._readers or (), None
            for reader in readers:
                reader.close()

    def _found(self) -> int:
        committed, _ = self._consumers()  # a producer's question might create the topic
        facts = committed.list_topics(self.topic, timeout=_OPEN_SECONDS)
        return len(facts.topics[self.topic].partitions)

    def _consumers(self) -> tuple[Consumer, Consumer]:
        """Readers of committed records, and of all."""
        if self._readers is None:
            others = {**self._options, "isolation.level": "read_uncommitted"}
            self._readers = Consumer(self._options), Consumer(others)
        return self._readers

    def _create(self) -> None:
        new = NewTopic(self.topic, _MARKER_PARTITIONS, config=_MARKER_TOPIC)
        admin = AdminClient(self._options)  # which has to live until the answer is here
        try:
            admin.create_topics([new], request_timeout=_OPEN_SECONDS)[self.topic].result()
        except KafkaException as error:
            code = error.args[0].code()
            if code in DENIED:
                configs = " ".join(f"--config {k}={v}" for k, v in _MARKER_TOPIC.items())
                raise S4Error(
                    f"the topic {self.topic!r} cannot be created: {error.args[0].str()}. Give the "
                    f"user the right to create it, or create it: kafka-topics.sh --create --topic "
                    f"{self.topic} --partitions {_MARKER_PARTITIONS} {configs}"
                ) from error
            if code != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _check_compacted(self) -> None:
        """Raise S4Error if the broker deletes markers, as far as it says how the topic is set."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.topic)
        admin = AdminClient(self._options)
        try:
            answers = admin.describe_configs([resource], request_timeout=_OPEN_SECONDS)
            found = answers[resource].result()
        except KafkaException as error:
            if error.args[0].code() in DENIED:
                return
            raise
        policy = found["cleanup.policy"].value
        if policy != _MARKER_TOPIC["cleanup.policy"]:
            raise S4Error(
                f"the topic {self.topic!r} has cleanup.policy={policy}, so it would lose markers, "
                f"and records would be published twice; set it: kafka-configs.sh --alter --topic "
                f"{self.topic} --add-config cleanup.policy=compact"
            )

    def read(self, partition: int, key: bytes) -> Marker | None:
        with self._lock:
            committed, all_records = self._consumers()
            place = TopicPartition(self.topic, partition)
            low, end = all_records.get_watermark_offsets(place, timeout=_OPEN_SECONDS)
            found = None
            for first in dict.fromkeys((max(low, end - _TAIL), low)):
                found = found or self._last(committed, partition, key, first, end)
        return None if found is None else _decode(found)

    def _last(
        self, reader: Consumer, partition: int, key: bytes, first: int, end: int
    ) -> bytes | None:
        """The last value of a key from the offset ``first`` to before ``end``."""
        found = None
        reader.assign([TopicPartition(self.topic, partition, first)])
        before, give_up = first, math.inf
        try:
            while first < end:
                if first > before or give_up == math.inf:
                    before, give_up = first, clocks.steady() + _OPEN_SECONDS
                for message in reader.consume(1000, 0.1):
                    error = message.error()
                    if error is None:
                        first = (message.offset() or 0) + 1
                        found = message.value() if message.key() == key else found
                    elif error.code() == KafkaError._PARTITION_EOF:
                        first = message.offset() or 0  # before a transaction of others, or the end
                    else:
                        raise KafkaException(error)
                if clocks.steady() > give_up:
                    raise ReceiverLost(
                        f"{self.topic}[{partition}] cannot be read to its end at {end}: a "
                        f"transaction of another task is open at {first}"
                    )
        finally:
            reader.unassign()
        return found


class KafkaTopics(Protocol):
    name: str
    address: str

    async def partitions(self, stream: str) -> int: ...


class KafkaReceiver:
    """Takes the records of one task, whose name among all tasks of the brokers is ``name``.

    ``topics`` are those of streams with another name.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        markers: KafkaMarkers,
        topics: Mapping[str, str],
        limiter: trio.CapacityLimiter,
        system: KafkaTopics,
    ) -> None:
        self._options = {**options, "transactional.id": name, "on_delivery": self._note}
        self._seconds = float(options["transaction.timeout.ms"]) / 1000
        self._markers = markers
        self._topics = topics
        self._limiter = limiter
        self._system = system
        self._key = name.encode()
        self._place = -1  # the partition of the marker
        self._producer: Producer | None = None
        self._failed: KafkaError | None = None
        self._failed_topic = ""
        self._streams: set[str] = set()

    async def open(self) -> Marker | None:
        for stream in self._streams:
            await self._system.partitions(stream)  # raises UnknownStream if it is gone
        marker: Marker | None = await self._in_thread(self._begin)
        return marker

    async def transact(self, records: Iterable[OutputRecord], marker: Marker) -> None:
        await self._in_thread(self._transact, records, _encode(marker))

    async def close(self) -> None:
        alone = trio.CapacityLimiter(1)  # threads that were abandoned may hold all of the others
        await threads.run_sync(self._discard, abandon_on_cancel=True, limiter=alone)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await threads.run_sync(
                function, *arguments, abandon_on_cancel=True, limiter=self._limiter
            )
        except KafkaException as error:
            raise self._said(error.args[0]) from error

    # -- in a thread -----------------------------------------------------------------------------

    def _begin(self) -> Marker | None:
        self._discard()
        try:
            self._producer = Producer(self._options, logger=_quiet)
        except KafkaException as error:
            raise ConfigError(
                f"an option in systems.{self._system.name}.producer does not fit: "
                f"{error.args[0].str()}"
            ) from error
        self._failed, self._failed_topic = None, ""
        self._producer.init_transactions(_OPEN_SECONDS)
        passing("outlet.opened")
        self._place = self._markers.partition_of(self._key)
        return self._markers.read(self._place, self._key)

    def _transact(self, records: Iterable[OutputRecord], marker: bytes) -> None:
        producer, topics = self._producer, self._topics
        assert producer is not None
        self._failed = None
        producer.begin_transaction()
        passing("outlet.begun")
        give_up = clocks.steady() + self._seconds
        for stream, key, value, time_ms, headers in records:
            self._streams.add(stream)
            while True:
                try:
                    producer.produce(
                        topics.get(stream, stream),
                        value,
                        key,
                        timestamp=time_ms,
                        headers=list(headers) or None,
                    )
                    break
                except BufferError:
                    if clocks.steady() > give_up:
                        raise ReceiverLost("the brokers take no records") from None
                    producer.poll(0.1)
        producer.produce(self._markers.topic, marker, self._key, partition=self._place)
        passing("outlet.sent")
        try:
            producer.commit_transaction(self._seconds)
        except KafkaException as error:
            raise KafkaException(self._cause(error.args[0])) from None
        passing("outlet.published")

    def _discard(self) -> None:
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def _note(self, error: KafkaError | None, message: Any) -> None:
        """Note the first record that is refused; it has the topic."""
        if error is not None and (self._failed is None or self._failed.code() not in _REFUSED):
            self._failed = error
            self._failed_topic = message.topic()

    def _cause(self, error: KafkaError) -> KafkaError:
        """The error of the first record that is refused, unless records were only purged because of
        the transaction's ``error``."""
        failed = self._failed
        if failed is None or (failed.code() not in _REFUSED and error.code() in _REFUSED):
            return error
        return failed

    def _said(self, error: KafkaError) -> S4Error:
        """The error for one of the client's: it passes, or it does not."""
        if error.code() not in _REFUSED:
            return ReceiverLost(f"{error.str()} ({error.name()})")
        system = self._system
        option = f"systems.{system.name}.producer"
        if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return ConfigError(
                f"{option}.transaction.timeout.ms = {self._options['transaction.timeout.ms']} is "
                f"above transaction.max.timeout.ms of the brokers at {system.address}; lower it"
            )
        of = f"topic {self._failed_topic!r}: " if self._failed is error else ""
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            of += "raise max.message.bytes of the topic. "
        return S4Error(
            f"system {system.name!r} at {system.address} refuses records of {self._key.decode()!r}"
            f": {of}{error.str()} ({error.name()}). Its user needs the rights to write to the "
            f"topics, to the topic {self._markers.topic!r}, and with this transactional id"
        )
