"""Apps that read a topic: records of other programs count once, whatever is killed."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

pytest.importorskip("confluent_kafka", reason="needs the extra kafka: tools/install kafka")

import kafka_clicks
from harness import metric, plain_errors, running, s4_process, until
from input_systems import dies
from kafka_broker import Broker, lacking, running_broker
from kafka_clicks import Clicks
from structlog.testing import capture_logs

from s4node.errors import (
    CheckpointError,
    ConfigError,
    InputLost,
    S4Error,
    UnknownStream,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lacking()), reason=lacking()),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("kafka")) as found:
        yield found


@pytest.fixture
def settings(broker: Broker, tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    return {
        "systems.kafka.type": "kafka",
        "systems.kafka.address": broker.address,
        "systems.kafka.samza.offset.default": "oldest",
        "streams.clicks.samza.physical.name": f"shop.{request.node.name[:40]}",
        "s4.state.folder": str(tmp_path / "state"),
        "task.commit.ms": "20",
    }


@pytest.fixture
def topic(settings: dict[str, str]) -> str:
    return settings["streams.clicks.samza.physical.name"]


async def test_records_of_transactions_count_once_while_the_app_and_the_broker_are_killed(
    broker: Broker, topic: str, settings: dict[str, str], tmp_path: Path
) -> None:
    broker.create(topic, 4)
    truth = put_transactions(broker, topic, range(200), partitions=4)
    command = ["run", kafka_clicks.__file__, "--listen", "tcp://127.0.0.1:0"]
    command += [word for name, text in settings.items() for word in ("-p", f"{name}={text}")]
    draw = random.Random(7)
    for turn in range(4):
        async with s4_process(*command, cwd=tmp_path) as process:
            with trio.move_on_after(draw.uniform(0.2, 1.5)):
                await process.wait()
            if turn == 2:
                broker.kill()
                broker.start()
            assert process.process.returncode is None, process.errors
            await process.kill()
        truth.update(put_transactions(broker, topic, range(200 + 50 * turn, 250 + 50 * turn), 4))
    assert await counted(settings, truth) == truth


async def test_one_partition_of_a_compacted_topic_counts_its_records_once(
    broker: Broker, topic: str, settings: dict[str, str]
) -> None:
    """Offsets have holes, and a commit may come amid a batch."""
    soon = {"segment_ms": "100", "min_cleanable_dirty_ratio": "0.01"}
    broker.create(topic, 1, cleanup_policy="compact", **soon)
    truth = Counter({("joe", number): 1 for number in range(3000)})
    producer = broker.producer()
    for number in range(3000):
        value = json.dumps({"user": "joe", "number": number}).encode()
        producer.produce(topic, value, f"key-{number}".encode(), 0)
        producer.produce(topic, b"{}", b"overwritten", 0)
        if number % 500 == 499:
            producer.flush(30)
            await trio.sleep(0.2)  # the age of a segment, by the broker's clock
    producer.produce(topic, json.dumps({"user": "joe", "number": 3000}).encode(), b"last", 0)
    producer.flush(30)
    truth["joe", 3000] = 1
    await until(lambda: broker.count(topic) < 5000, "the broker has compacted", seconds=60)
    more = {
        **settings,
        "task.drop.deserialization.errors": "true",
        "streams.clicks.tombstones": "skip",
    }
    assert await counted(more, truth) == truth


async def test_a_topic_that_is_made_anew_or_trimmed_stops_the_app(
    broker: Broker, topic: str, settings: dict[str, str]
) -> None:
    broker.create(topic, 1)
    truth = put(broker, topic, range(10))
    assert await counted(settings, truth) == truth
    put(broker, topic, range(10, 30))
    broker.trim(topic, 0, 20)
    with dies(InputLost, match="offset 10, but the oldest event is at 20"):
        async with running(Clicks("clicks"), settings):
            await trio.sleep_forever()
    broker.delete(topic)
    broker.create(topic, 1)
    put(broker, topic, range(40))
    with dies(CheckpointError, match="kafka.clicks was deleted and made anew under its name"):
        async with running(Clicks("clicks"), settings):
            await trio.sleep_forever()


async def test_a_bounded_input_ends_where_it_ended_at_the_start(
    broker: Broker, topic: str, settings: dict[str, str]
) -> None:
    broker.create(topic, 2)
    truth = put_transactions(broker, topic, range(60), partitions=2)
    bounded = {**settings, "streams.clicks.samza.bounded": "true"}
    with plain_errors():
        async with running(Clicks("clicks"), bounded) as container:
            feeds = container.replay.consumers._feeds
            await until(lambda: [feed.ended for feed in feeds.values()] == [True, True])
            put(broker, topic, range(60, 70))
            await until(lambda: numbers_of(container) == truth)


async def test_a_transaction_that_nobody_ends_is_named_with_what_it_holds_up(
    broker: Broker, topic: str, settings: dict[str, str]
) -> None:
    broker.create(topic, 1)
    foreign = broker.producer(transactional_id="foreign", transaction_timeout_ms="30000")
    foreign.init_transactions(30)
    foreign.begin_transaction()
    foreign.produce(topic, b'{"user": "joe", "number": 1}', b"joe", 0)
    foreign.flush(30)
    truth = put(broker, topic, range(10))
    with plain_errors(), capture_logs() as logs:
        async with running(Clicks("clicks"), settings, deadline=120) as container:
            await until(lambda: metric(container, "s4_input_uncommitted") == 11, seconds=60)
            foreign.abort_transaction(30)
            await until(lambda: numbers_of(container) == truth)
            assert metric(container, "s4_input_uncommitted") == 0
    (named,) = [each for each in logs if "has not ended holds up a reader" in each["event"]]
    assert (named["input"], named["offset"], named["open"]) == ("kafka.clicks[0]", 0, "foreign")


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"streams.clicks.samza.physical.name": "no.such"}, UnknownStream, "no stream 'no.such'"),
        ({"systems.kafka.consumer.group.id": "mine"}, ConfigError, "group.id is set, and cannot"),
        ({"systems.kafka.consumer.sasl.password": "x"}, ConfigError, "consumer.sasl.password.file"),
        ({"systems.kafka.consumer.sasl.password.file": "/no"}, ConfigError, "cannot be read"),
        ({"systems.kafka.consumer.no.such": "1"}, ConfigError, "No such configuration property"),
        ({"systems.kafka.address": ""}, ConfigError, "set systems.kafka.address to host:port"),
        (
            {
                "systems.kafka.consumer.security.protocol": "sasl_plaintext",
                "systems.kafka.consumer.sasl.mechanism": "PLAIN",
                "systems.kafka.consumer.sasl.username": "joe",
                "systems.kafka.consumer.sasl.password.file": __file__,
            },
            S4Error,
            "system 'kafka' at .* refuses: .*SASL",
        ),
    ],
)
async def test_what_is_wrong_with_its_settings_is_said_at_once(
    broker: Broker,
    settings: dict[str, str],
    more: dict[str, str],
    error: type[Exception],
    said: str,
) -> None:
    with dies(error, match=said):
        async with running(Clicks("clicks"), {**settings, **more}):
            await trio.sleep_forever()


# -- set-up ---------------------------------------------------------------------------------------


async def counted(settings: dict[str, str], truth: Counter[Any]) -> Counter[Any]:
    """What the app has counted once it has as many numbers as the truth."""
    with plain_errors():
        async with running(Clicks("clicks"), settings) as container:
            await until(lambda: numbers_of(container).total() >= truth.total(), "all are counted")
            return numbers_of(container)
    raise AssertionError


def numbers_of(container: Any) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for task in container.tasks.values():
        for user, pe in task.instances["Count"].items():
            found.update((user, number) for number in pe.numbers)
    return found


def put(broker: Broker, topic: str, numbers: range) -> Counter[Any]:
    records = [{"user": f"user-{n % 5}", "number": n} for n in numbers]
    broker.put(topic, [json.dumps(record).encode() for record in records])
    return Counter((record["user"], record["number"]) for record in records)


def put_transactions(broker: Broker, topic: str, numbers: range, partitions: int) -> Counter[Any]:
    """A transaction for each number, of some records; each fourth is aborted. Returns the truth."""
    producer = broker.producer(transactional_id=f"{topic}-{numbers.start}")
    producer.init_transactions(60)
    truth: Counter[Any] = Counter()
    for n in numbers:
        producer.begin_transaction()
        for part in range(5):
            user = f"user-{part}"
            value = json.dumps({"user": user, "number": n, "unknown": None}).encode()
            producer.produce(topic, value, user.encode(), (n + part) % partitions)
        if n % 4 == 3:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
            truth.update((f"user-{part}", n) for part in range(5))
    return truth
