"""Apps that read a topic: records of other programs count once, whatever is killed."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kafka_clicks
import pytest
import trio
from harness import free_port, metric, plain_errors, run_s4, running, s4_process, until
from input_systems import dies
from kafka_broker import Broker, as_joe, needs_broker, run_words, stops
from kafka_clicks import Clicks
from kafka_sums import Sums
from structlog.testing import capture_logs

from s4node import App
from s4node.errors import (
    CheckpointError,
    ConfigError,
    DecodeError,
    InputLost,
    MisplacedKey,
    S4Error,
    UnknownStream,
)
from s4node.events.keys import Partitioner, kafka

pytestmark = needs_broker


@pytest.fixture
def settings(broker: Broker, tmp_path: Path) -> dict[str, str]:
    return {
        **broker.settings,
        "streams.clicks.samza.physical.name": broker.name("shop.clicks"),
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
    command = run_words(kafka_clicks, settings)
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
    said = "offset 10, but the oldest event is at 20.*onLost = oldest"
    await stops(Clicks("clicks"), settings, InputLost, said)
    left = Counter((f"user-{n % 5}", n) for n in range(20, 30))
    assert await counted({**settings, "streams.clicks.onLost": "oldest"}, truth | left) == (
        truth | left
    )
    broker.delete(topic)
    broker.create(topic, 1)
    put(broker, topic, range(40))
    said = "kafka.clicks was deleted and made anew under its name"
    await stops(Clicks("clicks"), settings, CheckpointError, said)


async def test_keys_stay_where_their_producers_put_them_and_one_elsewhere_stops_the_app(
    broker: Broker, topic: str, settings: dict[str, str]
) -> None:
    broker.create(topic, 3)
    producer, places = broker.producer(partitioner="murmur2_random"), dict[str, int]()

    def note(_: Any, message: Any) -> None:
        places[message.key().decode()] = message.partition()

    users = [f"user-{n}-{'x' * (n % 9)}é" for n in range(2000)]
    for n, user in enumerate(users):
        value = json.dumps({"user": user, "number": n}).encode()
        producer.produce(topic, value, user.encode(), on_delivery=note)
    assert producer.flush(30) == 0
    home = Partitioner(3, kafka).partition_of
    assert places == {user: home(user) for user in users}
    truth = Counter((user, n) for n, user in enumerate(users))
    routed = {**settings, "s4.hasher": "kafka", "streams.clicks.routed": "true"}
    assert await counted(routed, truth) == truth
    producer = broker.producer()
    wrong = (home("bob") + 1) % 3
    producer.produce(topic, b'{"user": "bob", "number": 1}', b"bob", wrong)
    assert producer.flush(30) == 0
    said = f"'bob' came in partition {wrong} of kafka.{re.escape(topic)}.*partition {home('bob')}"
    await stops(Clicks("clicks"), routed, MisplacedKey, said)
    bob = Counter({("bob", 1): 1})  # the others are in the state, and not in memory
    assert await counted({**routed, "streams.clicks.routed": "false"}, bob) == bob


async def test_a_topic_that_gets_more_partitions_stops_the_app_which_goes_on_with_all(
    broker: Broker, topic: str, settings: dict[str, str]
) -> None:
    broker.create(topic, 2)
    truth = put(broker, topic, range(10))
    monitored = {**settings, "job.coordinator.monitor-partition-change.frequency.ms": "50"}
    with dies(S4Error, match="clicks has 4 partitions, but had 2 .*Start the app again"):
        async with running(Clicks("clicks"), monitored) as container:
            await until(lambda: numbers_of(container) == truth)
            broker.grow(topic, 4)
            await trio.sleep_forever()
    for partition in range(4):
        truth += put(broker, topic, range(10 + partition, 30, 4), partition)
    with plain_errors():
        async with running(Clicks("clicks"), settings) as container:
            await until(lambda: numbers_of(container).total() >= truth.total())
            assert numbers_of(container) == truth
            assert len(container.tasks) == 2


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (b"joe", b"{", r"kafka\.clicks\[0\].*offset 1.*Click does not decode"),
        (None, b"{}", "offset 1.*the record has no key"),
        (b"\0\0\0\0\1Hjoe", b"\0\0\0\0\1Hjoe", "offset 1.*the id of a schema, as Confluent's"),
    ],
)
async def test_a_record_that_is_no_event_stops_the_app_or_is_a_dead_letter(
    broker: Broker,
    topic: str,
    settings: dict[str, str],
    key: bytes | None,
    value: bytes,
    said: str,
) -> None:
    letters = broker.name("letters")
    settings["streams.clicks.record.key"] = "user"
    broker.create(topic, 1)
    broker.create(letters, 1)
    producer = broker.producer()
    for each in ((b"joe", b'{"number": 1}'), (key, value), (b"joe", b'{"number": 2}')):
        producer.produce(topic, each[1], each[0])
    assert producer.flush(30) == 0
    await stops(Clicks("clicks"), settings, DecodeError, said)
    kept = {**settings, "task.dead.letter.stream": f"kafka.{letters}"}
    truth = Counter([("joe", 1), ("joe", 2)])
    assert await counted(kept, truth) == truth
    (letter,) = broker.records(letters)
    assert json.loads(letter.value())["offset"] == 1


async def test_what_the_broker_denies_stops_the_app_with_the_right_that_lacks(
    broker: Broker, topic: str, settings: dict[str, str], tmp_path: Path
) -> None:
    broker.create(topic, 1)
    truth = put(broker, topic, range(10))
    secret = tmp_path / "secret"
    settings |= {**as_joe(secret), "systems.kafka.address": broker.guarded}

    async def refused(said: str, app: Callable[[str], App] = Clicks) -> None:
        await stops(app("clicks"), settings, S4Error, said)

    secret.write_text("wrong\n")
    await refused("refuses: .*Authentication failed")
    secret.write_text("secret\n")
    await refused("refuses topic .*TOPIC_AUTHORIZATION_FAILED.* rights to describe inputs")
    broker.allow(topic, "DESCRIBE")
    await refused("refuses.*TOPIC_AUTHORIZATION_FAILED.* and to read inputs")
    broker.allow(topic, "READ")
    assert await counted(settings, truth) == truth
    totals, markers = broker.name("totals"), "__s4-denied-clicks"
    broker.create(totals, 1)
    settings |= {
        "s4.cluster.name": "denied",
        "streams.totals.samza.physical.name": totals,
        "s4.state.folder": str(tmp_path / "other"),
    }
    await refused(f"refuses topic '{totals}'.*rights to describe inputs and outputs", Sums)
    broker.allow(totals, "DESCRIBE")
    await refused("TRANSACTIONAL_ID_AUTHORIZATION_FAILED.* with this transactional id", Sums)
    for task in range(1):
        name = f"s4/denied/clicks/Partition {task}/kafka"
        broker.allow(name, "WRITE", "TRANSACTIONAL_ID")
    await refused(f"'{markers}' cannot be created.*kafka-topics.sh --create --topic", Sums)
    broker.create(markers, 16, cleanup_policy="compact")
    for right in ("READ", "WRITE"):
        broker.allow(markers, right)
    await refused("records of .*TOPIC_AUTHORIZATION_FAILED.*rights to write to the topics", Sums)
    broker.allow(totals, "WRITE")
    with plain_errors():
        async with running(Sums("clicks"), settings):
            await until(lambda: len(broker.records(totals)) == 10, "all are there")


async def test_a_broker_with_tls_is_read_and_one_of_an_unknown_authority_refused(
    broker: Broker, topic: str, settings: dict[str, str]
) -> None:
    broker.create(topic, 1)
    truth = put(broker, topic, range(10))
    consumer = "systems.kafka.consumer"
    settings |= {
        "systems.kafka.address": broker.tls,
        f"{consumer}.security.protocol": "ssl",
        f"{consumer}.ssl.endpoint.identification.algorithm": "none",  # its name is no address
    }
    await stops(Clicks("clicks"), settings, S4Error, "refuses: .*certificate")
    settings[f"{consumer}.ssl.ca.location"] = broker.authority
    assert await counted(settings, truth) == truth


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
        ({"systems.kafka.consumer.isolation.level": "x"}, ConfigError, "once they are committed"),
        ({"systems.kafka.consumer.sasl.password": "x"}, ConfigError, "consumer.sasl.password.file"),
        ({"systems.kafka.consumer.sasl.password.file": "/no"}, ConfigError, "cannot be read"),
        ({"systems.kafka.consumer.no.such": "1"}, ConfigError, "No such configuration property"),
        ({"systems.kafka.address": ""}, ConfigError, "set systems.kafka.address to host:port"),
        (as_joe(__file__), S4Error, "system 'kafka' at .* refuses: .*SASL"),
    ],
)
async def test_what_is_wrong_with_its_settings_is_said_at_once(
    broker: Broker,
    settings: dict[str, str],
    more: dict[str, str],
    error: type[Exception],
    said: str,
) -> None:
    await stops(Clicks("clicks"), {**settings, **more}, error, said)


async def test_the_log_command_reads_a_topic_with_the_formats_of_the_app(
    broker: Broker, topic: str, settings: dict[str, str], tmp_path: Path
) -> None:
    broker.create(topic, 2)
    producer = broker.producer()
    for value in (b'{"n": 1}', b"{", b'{"n": 2}'):
        producer.produce(topic, value, b"joe", 1, timestamp=1500)
    assert producer.flush(30) == 0
    settings["streams.clicks.record.key"] = "user"
    settings["streams.clicks.record.time"] = "at"
    file = tmp_path / "app.properties"
    file.write_text("".join(f"{name} = {text}\n" for name, text in settings.items()))

    async def log(*words: str) -> Any:
        return await run_s4("log", *words, "--system", "kafka", "--config", file, cwd=tmp_path)

    tailed = await log("tail", "clicks", "--from", "oldest", "--count", "2", "--json")
    assert [json.loads(line) for line in tailed.stdout.splitlines()] == [
        {"partition": 1, "offset": at, "time": 1.5, "event": {"n": n, "user": "joe"}}
        for at, n in ((0, 1), (2, 2))
    ]
    assert "kafka.clicks[1]: offset 1 is left out: GenericEvent does not decode" in tailed.stderr
    tailed = await log("tail", "clicks", "--from", "newest", "--partition", "1", "--count", "1")
    assert tailed.stdout == '{"n":2,"user":"joe"}\n'
    described = await log("describe", topic)
    assert described.stdout == f"{topic}: 2 partitions\n  0: offsets 0 to 0\n  1: offsets 0 to 3\n"
    found = json.loads((await log("describe", "--json")).stdout)
    assert {"partition": 1, "oldest": 0, "upcoming": 3} in [
        part for each in found if each["stream"] == topic for part in each["partitions"]
    ]
    unknown = await log("tail", "no.such")
    assert unknown.returncode == 1
    assert re.search(f"no stream 'no.such'.* it has: .*{re.escape(topic)}", unknown.stderr)
    nowhere = ("-p", f"systems.kafka.address=127.0.0.1:{free_port()}")
    away = await log("describe", "clicks", "--timeout", "1", *nowhere)
    assert (away.returncode, away.stdout) == (1, "")
    assert "system 'kafka' at 127.0.0.1:" in away.stderr
    assert "does not answer within 1 s" in away.stderr
    settings |= as_joe(__file__)
    file.write_text("".join(f"{name} = {text}\n" for name, text in settings.items()))
    denied = await log("tail", "clicks")
    assert denied.returncode == 1
    assert re.search(r"system 'kafka' at .* refuses: .*SASL", denied.stderr)


# -- set-up ---------------------------------------------------------------------------------------


async def counted(settings: dict[str, str], truth: Counter[Any]) -> Counter[Any]:
    """The counts of the app once it has as many numbers as the truth."""
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


def put(broker: Broker, topic: str, numbers: range, partition: int = 0) -> Counter[Any]:
    records = [{"user": f"user-{n % 5}", "number": n} for n in numbers]
    broker.put(topic, [json.dumps(record).encode() for record in records], partition)
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
