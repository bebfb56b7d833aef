"""A broker of Kafka in a process of its own, for tests; ``tools/install kafka`` gets it."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio

pytest.importorskip("confluent_kafka", reason="needs the extra kafka: tools/install kafka")

from certificates import Issuer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from harness import free_port, running
from input_systems import dies

from s4node import App

JARS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "s4node" / "kafka-3.9.1"

_START_SECONDS = 90
"""A broker answers after 5 seconds on a quiet machine, and after 60 on a busy one."""

# Records have times of their own, so none is deleted by its age.
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{guarded},\
  SSL://127.0.0.1:{tls},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{guarded},\
  SSL://127.0.0.1:{tls}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,\
  SSL:SSL,CONTROLLER:PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={folder}/broker.pem
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=\
  org.apache.kafka.common.security.plain.PlainLoginModule required user_joe="secret";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
log.dirs={folder}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
auto.create.topics.enable=false
log.cleaner.backoff.ms=200
log.retention.ms=-1
"""


def lacking() -> str:
    """The parts that the machine lacks to run a broker; empty if none."""
    if shutil.which("java") is None:
        return "no java on PATH"
    if not (JARS / "complete").exists():
        return "Kafka's broker is not installed: run tools/install kafka"
    return ""


needs_broker = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lacking()), reason=lacking()),
]
"""The marks of all tests that need one."""


class Broker:
    """A broker with its data in ``folder``, at ``address``.

    At ``guarded`` the only user is joe, by SASL, with the password secret and the rights that
    ``allow`` gives. At ``tls`` it has a certificate of ``authority``.
    """

    def __init__(self, folder: Path) -> None:
        self.address = f"127.0.0.1:{(port := free_port())}"
        self.guarded = f"127.0.0.1:{(guarded := free_port())}"
        folder.mkdir(parents=True, exist_ok=True)
        self.tls = f"127.0.0.1:{(tls := free_port())}"
        certificate, key, self.authority = (
            Issuer(folder / "tls").files("s4://kafka/node/n").values()
        )
        (folder / "broker.pem").write_text(Path(key).read_text() + Path(certificate).read_text())
        self._folder = folder
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._properties = folder / "server.properties"
        self._properties.write_text(
            _PROPERTIES.format(
                port=port, guarded=guarded, tls=tls, controller=free_port(), folder=folder
            )
        )
        cluster = "AAAAAAAAAAAAAAAAAAAAAQ"
        format_ = ("kafka.tools.StorageTool", "format", "-t", cluster, "-c", self._properties)
        subprocess.run([*_java(), *format_], check=True, stdout=subprocess.DEVNULL, timeout=120)
        self.admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        self.start()

    def start(self) -> None:
        with (self._folder / "out").open("ab") as out:
            self._process = subprocess.Popen(
                [*_java(), "kafka.Kafka", str(self._properties)], stdout=out, stderr=out
            )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.admin.list_topics(timeout=2)
            except KafkaException:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    text = (self._folder / "out").read_text(errors="replace")
                    pytest.fail(f"Kafka's broker does not answer:\n{text[-2000:]}")
            else:
                return

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def settings(self) -> dict[str, str]:
        """Those of an app with a system that is called kafka."""
        return {
            "systems.kafka.type": "kafka",
            "systems.kafka.address": self.address,
            "systems.kafka.samza.offset.default": "oldest",
        }

    # -- topics --------------------------------------------------------------------------------

    def name(self, begin: str) -> str:
        return f"{begin}-{next(self._numbers)}"

    def create(self, topic: str, partitions: int = 1, **settings: str) -> None:
        new = NewTopic(
            topic, partitions, 1, config={k.replace("_", "."): v for k, v in settings.items()}
        )
        self.admin.create_topics([new])[topic].result(30)
        deadline = time.monotonic() + 30
        while len(self.admin.list_topics(topic, timeout=5).topics[topic].partitions) < partitions:
            assert time.monotonic() < deadline, f"topic {topic} is not there"

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(30)
        deadline = time.monotonic() + 30
        while topic in self.admin.list_topics(timeout=5).topics:
            assert time.monotonic() < deadline, f"topic {topic} is still there"

    def grow(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
        deadline = time.monotonic() + 30
        while len(self.partitions(topic)) < partitions:
            assert time.monotonic() < deadline, f"topic {topic} did not grow"

    def lose_end(self, topic: str, partition: int, first: int) -> None:
        """Start the broker, and so a new epoch, without the batches from an offset on, which begins
        one."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait()
        (self._folder / "data" / ".kafka_cleanshutdown").unlink(missing_ok=True)
        folder = self._folder / "data" / f"{topic}-{partition}"
        segment = folder / f"{0:020}.log"
        data, at = segment.read_bytes(), 0
        while int.from_bytes(data[at : at + 8], "big") < first:  # each begins with its offset
            at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        assert int.from_bytes(data[at : at + 8], "big") == first
        segment.write_bytes(data[:at])
        for file in (*folder.glob("*.index"), *folder.glob("*.timeindex")):
            file.unlink()
        self.start()

    def allow(self, name: str, right: str, kind: str = "TOPIC") -> None:
        """Give joe a right, such as READ."""
        operation, of = AclOperation[right], ResourceType[kind]
        exact, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        acl = AclBinding(of, name, exact, "User:joe", "*", operation, allow)
        self.admin.create_acls([acl])[acl].result(30)
        wanted = AclBindingFilter(of, name, exact, "User:joe", "*", operation, allow)
        deadline = time.monotonic() + 30
        while not self.admin.describe_acls(wanted).result(30):
            assert time.monotonic() < deadline, f"{right} of {name} is not allowed yet"

    def trim(self, topic: str, partition: int, below: int) -> None:
        place = TopicPartition(topic, partition, below)
        self.admin.delete_records([place])[place].result(30)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """The beginning of each partition."""
        count = len(self.admin.list_topics(topic, timeout=10).topics[topic].partitions)
        return [TopicPartition(topic, number, 0) for number in range(count)]

    def producer(self, **options: str) -> Producer:
        named = {name.replace("_", "."): text for name, text in options.items()}
        return Producer({"bootstrap.servers": self.address, "log_level": 0, **named})

    def count(self, topic: str) -> int:
        options = {"group.id": "tests", "enable.partition.eof": True, "log_level": 0}
        consumer = Consumer({"bootstrap.servers": self.address, **options})
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = 0
        try:
            while True:
                for message in consumer.consume(1000, 0.1):
                    if message.error() is None:
                        found += 1
                    elif message.error().code() == KafkaError._PARTITION_EOF:
                        return found
                    else:
                        raise KafkaException(message.error())
        finally:
            consumer.close()

    def records(self, topic: str) -> list[Any]:
        options = {"group.id": "tests", "enable.partition.eof": True, "log_level": 0}
        consumer = Consumer({"bootstrap.servers": self.address, **options})
        parts = self.partitions(topic)
        ends = dict[int, int]()
        deadline = time.monotonic() + _START_SECONDS
        while len(ends) < len(parts):
            with suppress(KafkaException):  # one that was stopped leads nothing for a moment
                ends = {
                    p.partition: consumer.get_watermark_offsets(p, timeout=10)[1] for p in parts
                }
            assert time.monotonic() < deadline, f"topic {topic} has no end"
        left = {number for number, end in ends.items() if end}
        consumer.assign(parts)
        found = list[Any]()
        try:
            while left:
                for message in consumer.consume(1000, 0.1):
                    at = message.offset()
                    if message.error() is None:
                        found.append(message)
                        at += 1
                    else:
                        assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    if at >= ends[message.partition()]:
                        left.discard(message.partition())
            return found
        finally:
            consumer.close()

    def put(self, topic: str, values: Sequence[bytes | None], partition: int = 0) -> None:
        """Append values without keys; None needs a key and gets one."""
        producer = self.producer()
        for value in values:
            producer.produce(topic, value, b"key" if value is None else None, partition)
        assert producer.flush(30) == 0


@contextmanager
def running_broker(folder: Path) -> Iterator[Broker]:
    broker = Broker(folder)
    try:
        yield broker
    finally:
        with suppress(ProcessLookupError):
            broker.resume()
        broker.close()


def run_words(app: ModuleType, settings: Mapping[str, str]) -> list[str]:
    """The words of ``s4`` that run the app of a module with settings."""
    given = [word for name, text in settings.items() for word in ("-p", f"{name}={text}")]
    return ["run", str(app.__file__), "--listen", "tcp://127.0.0.1:0", *given]


def as_joe(password: str | Path) -> dict[str, str]:
    """The settings of an app whose user is joe, with the password in a file."""
    options = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "joe",
        "sasl.password.file": str(password),
    }
    return {f"systems.kafka.consumer.{name}": text for name, text in options.items()}


async def stops(app: App, settings: dict[str, str], error: type[Exception], said: str) -> None:
    """Run an app, which ends with an error that says this."""
    with dies(error, match=said):
        async with running(app, settings, deadline=120):
            await trio.sleep_forever()


def _java() -> list[str]:
    return [
        *("java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *("-cp", f"{JARS}/*"),
    ]
