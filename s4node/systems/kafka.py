"""A cluster of Kafka as a system; a stream is a topic. It needs the extra ``kafka``.

Rules
- The offsets of the tasks are in their commits. Partitions are assigned, so there is no consumer
  group, and no rebalance; nothing is committed to Kafka.
- Records of transactions are read once they are committed. The end of a partition is where a reader
  of committed records is: before the first transaction that is open.
- Brokers that cannot be reached are waited for. What a broker denies, and options that it or the
  client do not know, stop the container at once.
- A question to a broker is asked in a thread: the client's calls block.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import trio
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from s4node import threads
from s4node.config import settings
from s4node.config.config import Config
from s4node.config.key import ClientOption
from s4node.errors import ConfigError, S4Error, StartpointError, UnknownStream, described
from s4node.logger import get_logger
from s4node.offsets.startpoint import Startpoint, Timestamp
from s4node.offsets.system import Bounds, PartitionReader, Receiver, SystemStreamPartition
from s4node.systems.kafka_reader import (
    DENIED,
    GONE,
    PASSING,
    KafkaConsumer,
    KafkaReader,
    check_epoch,
)
from s4node.systems.kafka_transactions import OpenTransactions
from s4node.systems.kafka_writer import KafkaMarkers, KafkaReceiver
from s4node.systems.records import RecordFormat, RecordReader, fields_of

log = get_logger("s4node.systems")

T = TypeVar("T")

_TIMEOUT = 5.0
"""The seconds after which a question is asked again."""

_NEW_TOPIC_TRIES, _KNOWN_TOPIC_TRIES = 5, 50
"""A topic that was just created is unknown to some brokers for a moment. So is one that was there
before, to a broker that starts."""

_LOG_SECONDS = 5.0
"""A question that has no answer for so long is logged."""

_CLOSE_SECONDS = 1.0
"""Clients that do not close in this time are left to their threads."""

_SHOWN = 50
"""The most topics that an error lists."""

_LAST_MILLIS = (1 << 53) - 1

OWNED: Mapping[str, str] = {
    "bootstrap.servers": "systems.<system>.address names the brokers",
    "metadata.broker.list": "systems.<system>.address names the brokers",
    "group.id": "tasks are assigned their partitions, without a group",
    "enable.auto.commit": "offsets are in the commits of the tasks",
    "enable.auto.offset.store": "offsets are in the commits of the tasks",
    "auto.offset.reset": "streams.<stream>.samza.offset.default says where an input begins",
    "isolation.level": "records are read once they are committed",
    "enable.partition.eof": "the end of a partition has to be known",
}
"""The options that are not the user's, with the reason."""

OWNED_BY_PRODUCERS: Mapping[str, str] = {
    "bootstrap.servers": "systems.<system>.address names the brokers",
    "metadata.broker.list": "systems.<system>.address names the brokers",
    "transactional.id": "it is the name of the task",
    "enable.idempotence": "transactions need it",
    "acks": "transactions need those of all replicas",
}

_SECRETS = (
    "sasl.password",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
)

_OF_CONNECTIONS = (
    *("bootstrap.", "broker.address.", "client.", "enable.sasl.", "enable.ssl.", "log_level"),
    *("reconnect.", "sasl.", "security.", "socket.", "ssl."),
)
"""How options begin that those who write need, too."""

_OF_TRANSACTIONS = ("transaction.", "delivery.report.")

_WRITERS = 64
"""The most tasks that write at a time."""

_DENIALS = 3
"""After so many questions in turn that were denied, the container ends: brokers that start may deny
one, and tokens expire."""


class KafkaSystem:
    """The topics at ``systems.<name>.address``: host:port of one or more brokers, with commas."""

    def __init__(self, name: str, config: Config) -> None:
        self.name = name
        self.address = config.matching(settings.SYSTEM_ADDRESS).get(name, "")
        if not self.address:
            raise ConfigError(
                f"system {name!r} is a cluster of Kafka; set systems.{name}.address to host:port "
                f"of some of its brokers"
            )
        self._config = config
        self._topics = config.matching(settings.PHYSICAL_NAME)
        self._options = self._consumer_options()
        self._producing = self._producer_options()
        self.most_bytes = int(self._producing["message.max.bytes"])
        """The most bytes of a record that a task may write."""
        self._markers: dict[str, KafkaMarkers] = {}
        self._writing = trio.CapacityLimiter(_WRITERS)
        self._asker: Consumer | None = None
        self._making = threading.Lock()  # of the asker
        self._ends: dict[SystemStreamPartition, int] = {}  # of bounded streams
        self._consumers: list[KafkaConsumer] = []
        self._open_transactions = OpenTransactions(self._options)
        self._seen: set[str] = set()  # streams whose topics there were
        self._reachable = False
        self._denied: S4Error | None = None
        self._trouble = ""  # the last error of a connection
        self._news = trio.lowlevel.ParkingLot()

    def _consumer_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "bootstrap.servers": self.address,
            "client.id": "s4",
            "group.id": "s4",  # required, and not used
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 5,  # at its 1000, a small queue gives 40,000 events a second
            "fetch.wait.max.ms": 100,
            "queued.min.messages": 20_000,
            "queued.max.messages.kbytes": 16_384,  # for each partition
            "reconnect.backoff.max.ms": 1000,
            "socket.keepalive.enable": True,
            "log_level": 0,  # what matters comes as an error
        }
        return options | self._given_options("consumer", settings.SYSTEM_CONSUMER, OWNED)

    def _producer_options(self) -> dict[str, Any]:
        given = self._given_options("producer", settings.SYSTEM_PRODUCER, OWNED_BY_PRODUCERS)
        timeout = given.setdefault("transaction.timeout.ms", "30000")
        return {
            **{k: v for k, v in self._options.items() if k.startswith(_OF_CONNECTIONS)},
            "batch.num.messages": 10_000,
            "delivery.report.only.error": True,
            "linger.ms": 0,  # a commit sends what there is
            "message.max.bytes": 1_000_000,
            "message.timeout.ms": timeout,
            "partitioner": "murmur2_random",
            **given,
        }

    def _given_options(
        self, kind: str, pattern: ClientOption[str], owned: Mapping[str, str]
    ) -> dict[str, Any]:
        options = {}
        for key, text in self._config.matching(pattern).items():
            system, _, option = key.partition(".")
            if system != self.name:
                continue
            setting = f"systems.{system}.{kind}.{option}"
            if option in owned:
                reason = owned[option].replace("<system>", system)
                raise ConfigError(f"{setting} is set, and cannot be: {reason}; remove it")
            if option in _SECRETS:
                raise ConfigError(
                    f"{setting} has a secret in it; write it into a file that only this user can "
                    f"read, and set {setting}.file to its path"
                )
            if option.endswith(".file") and option.removesuffix(".file") in _SECRETS:
                try:
                    text = Path(text).read_text(encoding="utf-8").strip()
                except (OSError, UnicodeDecodeError) as error:
                    raise ConfigError(
                        f"the file that {setting} names cannot be read: {described(error)}"
                    ) from error
                option = option.removesuffix(".file")
            options[option] = text
        return options

    # -- life ----------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; raises S4Error if the brokers deny what it asks."""
        task_status.started()
        denials, logged = 0, False
        try:
            while True:
                self._found_reachable(await self._reaches())
                if self._reachable:
                    self._denied, self._trouble = None, ""
                    denials, logged = 0, False
                elif self._denied is not None and (denials := denials + 1) >= _DENIALS:
                    raise self._denied
                elif self._trouble and not logged:
                    logged = True
                    log.warning("no broker answers", system=self.name, reason=self._trouble)
                if self._reachable:
                    await self._open_transactions.note_held_up(trio.current_time())
                await trio.sleep(1 if self._reachable else 0.1)
        finally:
            consumers, self._consumers = self._consumers, []
            for consumer in consumers:
                consumer.stop()
            with trio.CancelScope(shield=True):
                for consumer in consumers:
                    await consumer.wait_ended()
            with trio.move_on_after(_CLOSE_SECONDS, shield=True):
                for markers in self._markers.values():
                    await threads.run_sync(markers.close, abandon_on_cancel=True)
            self._found_reachable(False)

    async def wait_reachable(self, wanted: bool = True) -> None:
        await trio.lowlevel.checkpoint()
        while self._reachable != wanted:
            await self._news.park()

    async def _reaches(self) -> bool:
        def ping(client: Consumer) -> bool:
            try:
                client.list_topics(topic="s4", timeout=1)  # one topic, which need not exist
            finally:
                client.poll(0.01)  # errors of connections come to on_error here
            return True

        try:
            return await self._in_thread(ping)
        except KafkaException:
            return False

    def _found_reachable(self, reachable: bool) -> None:
        if reachable != self._reachable:
            self._reachable = reachable
            self._news.unpark_all()

    # -- questions -----------------------------------------------------------------------------

    async def partitions(self, stream: str) -> int:
        topic = self._topics.get(stream, stream)

        def count(client: Consumer) -> int:
            facts = client.list_topics(topic, timeout=_TIMEOUT).topics[topic]
            if facts.error is not None and facts.error.code() not in GONE:
                raise KafkaException(facts.error)
            return len(facts.partitions)

        for tried in range(_KNOWN_TOPIC_TRIES if stream in self._seen else _NEW_TOPIC_TRIES):
            await trio.sleep(0.1 if tried else 0)
            if found := await self._ask(count, stream):
                self._seen.add(stream)
                return found
        names = await self.topics()
        known = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        raise UnknownStream(
            f"system {self.name!r} has no stream {topic!r} at {self.address}; it has: "
            f"{known or 'none'}. For a topic of another name set "
            f"streams.{stream}.samza.physical.name"
        )

    async def topics(self) -> list[str]:
        """The names of all topics but internal ones."""
        found = await self._ask(lambda client: client.list_topics(timeout=_TIMEOUT))
        return sorted(name for name in found.topics if not name.startswith("__"))

    async def identity(self, stream: str) -> str:
        await self.partitions(stream)  # raises if there is none
        topics = TopicCollection([self._topics.get(stream, stream)])
        options = {name: self._options[name] for name in self._options if name not in OWNED}
        options["bootstrap.servers"] = self.address

        def describe(_: Consumer) -> str:
            admin = AdminClient(options)  # which has to live until the answer is here
            (found,) = admin.describe_topics(topics, request_timeout=_TIMEOUT).values()
            return str(found.result().topic_id)

        return await self._ask(describe, stream)

    async def bounds(self, ssp: SystemStreamPartition) -> Bounds:
        place = await self._place(ssp)
        oldest, upcoming = await self._ask(
            lambda client: client.get_watermark_offsets(place, timeout=_TIMEOUT), ssp.stream
        )
        return Bounds(oldest, upcoming)

    async def resolve(self, ssp: SystemStreamPartition, startpoint: Startpoint) -> int:
        bounds = await self.bounds(ssp)
        if not isinstance(startpoint, Timestamp):
            return bounds.offset_of(ssp, startpoint)
        place = await self._place(ssp, min(startpoint.millis, _LAST_MILLIS))

        def find(client: Consumer) -> int:
            (found,) = client.offsets_for_times([place], timeout=_TIMEOUT)
            if found.error is not None:
                raise KafkaException(found.error)
            return found.offset

        offset = await self._ask(find, ssp.stream)
        return offset if offset >= 0 else bounds.upcoming

    async def open(
        self, ssp: SystemStreamPartition, offset: int, types: Sequence[type], epoch: int = 0
    ) -> PartitionReader:
        form = RecordFormat.configured(self._config, ssp.stream)
        records = RecordReader(ssp.stream, form, types)
        bounds = await self.bounds(ssp)
        if offset > bounds.upcoming:
            raise StartpointError(
                f"{ssp} ends at {bounds.upcoming}, before offset {offset}; start at the end or "
                f"before it"
            )
        place = await self._place(ssp, offset)
        if epoch > 0:
            known = TopicPartition(place.topic, place.partition, offset, leader_epoch=epoch - 1)
            await threads.run_sync(check_epoch, ssp, known, self._options)
        last = None
        if self._config.matching(settings.BOUNDED).get(ssp.stream, False):
            last = self._ends.setdefault(ssp, bounds.upcoming)
        consumer = next((each for each in self._consumers if each.has_room_for(place)), None)
        if consumer is None:
            consumer = KafkaConsumer(f"s4-kafka-{self.name}", self._options, self._refusal)
            self._consumers.append(consumer)
        reader = KafkaReader(ssp, place, bounds, records, consumer, last=last)
        self._open_transactions.readers.add(reader)
        return reader

    async def _place(
        self, ssp: SystemStreamPartition, offset: int = OFFSET_INVALID
    ) -> TopicPartition:
        count = await self.partitions(ssp.stream)
        if not 0 <= ssp.partition < count:
            raise UnknownStream(
                f"{ssp}: the stream has partitions 0 to {count - 1}, not {ssp.partition}"
            )
        return TopicPartition(self._topics.get(ssp.stream, ssp.stream), ssp.partition, offset)

    async def _ask(self, question: Callable[[Consumer], T], stream: str = "") -> T:
        """The answer of a broker; waits while there is none.

        A client whose brokers are away may say that a partition is unknown. So a broker is asked
        whether the stream is gone; raises UnknownStream if it is.
        """
        log_at = trio.current_time() + _LOG_SECONDS
        while True:
            try:
                return await self._in_thread(question)
            except KafkaException as error:
                found = error.args[0]
                if found.code() in DENIED and found.code() != KafkaError._AUTHENTICATION:
                    raise self._refusal(found, stream) from error
                if found.code() in GONE:
                    await self.partitions(stream)
                elif not (found.retriable() or found.code() in PASSING):
                    raise S4Error(
                        f"system {self.name!r} at {self.address}: {found.str()} ({found.name()})"
                    ) from error
            if trio.current_time() > log_at:
                log_at = math.inf
                log.warning("brokers are asked again", system=self.name, reason=found.str())
            await trio.sleep(0.2)

    async def _in_thread(self, question: Callable[[Consumer], T]) -> T:
        def ask() -> T:
            with self._making:
                if self._asker is None:
                    self._asker = self._client()
            return question(self._asker)

        return await threads.run_sync(ask, abandon_on_cancel=True)

    def _client(self) -> Consumer:
        try:
            return Consumer({**self._options, "error_cb": self._on_error})
        except KafkaException as error:
            raise ConfigError(
                f"an option in systems.{self.name}.consumer does not fit: {error.args[0].str()}"
            ) from error

    def _on_error(self, error: KafkaError) -> None:
        """Note an error of a connection; called in the thread that polls."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # it says less than the one before
            self._trouble = error.str()
        if error.code() in DENIED:
            self._denied = self._refusal(error)

    def _refusal(self, error: KafkaError, stream: str = "") -> S4Error:
        of = f" topic {self._topics.get(stream, stream)!r}" if stream else ""
        return S4Error(
            f"system {self.name!r} at {self.address} refuses{of}: {error.str()} ({error.name()}). "
            f"Give the user of systems.{self.name}.consumer the rights to describe inputs and "
            f"outputs, and to read inputs, or correct its options"
        )

    # -- writing -------------------------------------------------------------------------------

    def receiver(self, cluster: str, app: str, task: str) -> Receiver:
        topic = re.sub(r"[^\w.-]", "_", f"__s4-{cluster}-{app}", flags=re.ASCII)
        if topic not in self._markers:
            self._markers[topic] = KafkaMarkers(topic, self._options)
        name = f"s4/{cluster}/{app}/{task}/{self.name}"
        markers, topics = self._markers[topic], self._topics
        return KafkaReceiver(name, self._producing, markers, topics, self._writing, self)

    async def append(
        self, stream: str, partition: int, events: Sequence[object], created_ms: int | None = None
    ) -> int:
        """Append events durably, as JSON objects; returns the offset of the first.

        A call that fails, or is cancelled, may have appended some.
        """
        place = await self._place(SystemStreamPartition(self.name, stream, partition))
        values = [msgspec.json.encode(fields_of(event)) for event in events]
        return await threads.run_sync(self._produce, place, values, created_ms or 0)

    def _produce(self, place: TopicPartition, values: Sequence[bytes], created_ms: int) -> int:
        waits = {"enable.idempotence": True, "message.timeout.ms": 0}  # as long as it takes
        named = {k: v for k, v in self._producing.items() if not k.startswith(_OF_TRANSACTIONS)}
        producer = Producer({**named, **waits})
        offsets: list[int] = []
        errors: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, message: Any) -> None:
            if error is None:
                offsets.append(message.offset())
            else:
                errors.append(error)

        for value in values:
            producer.produce(
                place.topic,
                value,
                partition=place.partition,
                timestamp=created_ms,
                on_delivery=on_delivery,
            )
        try:
            while producer.flush(_LOOK_SECONDS):
                trio.from_thread.check_cancelled()
        finally:
            producer.purge()
        if errors:
            raise S4Error(f"{place.topic}[{place.partition}] took no event: {errors[0].str()}")
        return min(offsets)


_LOOK_SECONDS = 0.2
"""How often those who wait for a broker look whether they were cancelled."""
