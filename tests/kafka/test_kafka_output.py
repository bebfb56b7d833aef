"""Apps that write topics: each record is there once, whatever is killed."""

from __future__ import annotations

import json
import os
import random
import signal
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import kafka_sums
import pytest
import trio
from harness import children, plain_errors, running, s4_process, until
from kafka_broker import Broker, needs_broker, run_words, stops
from kafka_sums import Sums

from s4node import failpoints
from s4node.errors import ConfigError, EventError, MarkerError, S4Error, UnknownStream

pytestmark = needs_broker


class Job:
    def __init__(self, broker: Broker, folder: Path, *, partitions: int = 2) -> None:
        name = broker.name("job")
        self.broker = broker
        self.clicks, self.totals = f"clicks-{name}", f"totals-{name}"
        self.markers = f"__s4-{name}-sums"
        broker.create(self.clicks, partitions)
        broker.create(self.totals, 4)
        self.settings = {
            "s4.cluster.name": name,
            **broker.settings,
            "streams.clicks.samza.physical.name": self.clicks,
            "streams.totals.samza.physical.name": self.totals,
            "streams.totals.record.time": "at",
            "streams.totals.record.headers": "headers",
            "s4.state.folder": str(folder / "state"),
        }
        self.sent = 0
        self._producer = broker.producer()

    def put(self, number: int, *, users: int = 5) -> None:
        for n in range(self.sent, self.sent + number):
            user = f"user-{n % users}"
            value = json.dumps({"user": user, "number": n, "at": 1_700_000_000.5 + n})
            self._producer.produce(self.clicks, value, user)
        assert self._producer.flush(30) == 0
        self.sent += number

    @property
    def truth(self) -> list[tuple[str, int]]:
        """Each event with the total of its user."""
        return sorted((f"user-{n % 5}", n // 5 + 1) for n in range(self.sent))

    def found(self) -> list[tuple[str, int]]:
        values = [json.loads(each.value()) for each in self.broker.records(self.totals)]
        return sorted((each["user"], each["total"]) for each in values)

    @property
    def command(self) -> list[Any]:
        return run_words(kafka_sums, self.settings)


async def test_records_have_key_partition_time_and_headers_as_kafkas_producers_make_them(
    broker: Broker, tmp_path: Path
) -> None:
    job = Job(broker, tmp_path, partitions=1)
    job.put(10)
    broker.put(job.clicks, [b'{"user": "user-1", "number": -1}'])
    with plain_errors():
        async with running(Sums("sums"), job.settings, deadline=120):
            await until(lambda: len(broker.records(job.totals)) == 11, "all are there")
    found = broker.records(job.totals)
    by_number = {json.loads(each.value())["number"]: each for each in found if each.value()}
    assert sorted(by_number) == list(range(10))
    seventh = by_number[7]
    assert json.loads(seventh.value()) == {
        "user": "user-2", "number": 7, "total": 2, "at": 1_700_000_007.5,
    }  # fmt: skip
    assert (seventh.key(), seventh.headers()) == (b"user-2", [("from", b"sums")])
    assert seventh.timestamp()[1] == 1_700_000_007_500
    (tombstone,) = [each for each in found if each.value() is None]
    assert tombstone.key() == b"user-1"
    producer, places = broker.producer(partitioner="murmur2_random"), {}
    for user in {each.key() for each in found}:

        def note(_: Any, message: Any) -> None:
            places[message.key()] = message.partition()

        producer.produce(job.totals, b"", user, on_delivery=note)
        producer.flush(30)
    assert {each.key(): each.partition() for each in found} == places


async def test_records_are_there_once_after_kills_at_each_step(
    broker: Broker, tmp_path: Path
) -> None:
    job = Job(broker, tmp_path)
    points = ("commit.write", "commit.written", "outlet.open", "outlet.opened", "outlet.begun")
    points += ("outlet.sent", "outlet.published", "outlet.settled")
    for index, point in enumerate(points):
        job.put(100)
        fault = f"{point}:{1 + index % 2}"
        async with s4_process(*job.command, cwd=tmp_path, ready=False, fault=fault) as process:
            with trio.fail_after(60):
                await process.wait()
        job.put(20)
    assert await finished(job) == job.truth


@pytest.mark.parametrize("kills", [int(os.environ.get("KILLS", "12"))])
async def test_records_are_there_once_after_kills_of_members_and_of_the_broker(
    broker: Broker, tmp_path: Path, kills: int
) -> None:
    """``KILLS=100`` is the long one (``make torture-kafka``)."""
    job = Job(broker, tmp_path, partitions=4)
    draw = random.Random(kills)
    points = [name for name in failpoints.POINTS if name.startswith(("outlet.", "commit."))]
    for turn in range(kills):
        job.put(40)
        fault = f"{draw.choice(points)}:{draw.randrange(1, 6)}" if draw.random() < 0.5 else ""
        async with s4_process(*job.command, cwd=tmp_path, ready=False, fault=fault) as process:
            with trio.move_on_after(draw.uniform(0.8, 4)):
                await process.wait()
            if turn % 10 == 5:
                broker.kill()
                broker.start()
            elif turn % 10 == 8:
                broker.pause()
                with trio.move_on_after(draw.uniform(1, 4)):
                    await process.wait()
                broker.resume()
            await process.kill()
            assert await process.wait() == -signal.SIGKILL, process.errors
    assert await finished(job) == job.truth


@pytest.mark.parametrize("kills", [int(os.environ.get("KILLS", "12"))])
async def test_records_are_there_once_while_containers_come_and_go(
    broker: Broker, tmp_path: Path, kills: int
) -> None:
    """Tasks move between 1, 3 and 2 containers, which are killed; now and then the job goes back to
    a savepoint after which it has published nothing. ``KILLS=100`` is the long one."""
    job = Job(broker, tmp_path, partitions=6)
    draw = random.Random(kills)
    points = [name for name in failpoints.POINTS if name.startswith(("outlet.", "commit."))]
    killed, more = 0, list[str]()
    for turn in count():
        job.put(40)
        died = tmp_path / f"died {turn}"
        fault = f"{draw.choice(points)}:{draw.randrange(1, 6)}@{died}"
        words = (*job.command, "--nodes", "132"[turn % 3], *more)
        async with s4_process(*words, cwd=tmp_path, ready=False, fault=fault) as process:
            # a container that dies before all of them run ends the start
            await until(lambda: process.readiness or process.process.returncode is not None)
            assert process.readiness or died.exists(), process.errors
            for _ in range(3):
                job.put(20)
                with trio.move_on_after(draw.uniform(0.3, 3)):
                    await process.wait()
                if draw.random() < 0.1:
                    broker.kill()
                    broker.start()
                for container in draw.sample(found := children(process.pid), min(1, len(found))):
                    with suppress(ProcessLookupError):  # it has just died by itself
                        os.kill(container, signal.SIGKILL)
                        killed += 1
            killed += died.exists()
            if draw.random() < 0.5:
                process.process.terminate()
                with trio.move_on_after(20):
                    await process.wait()
        if killed >= kills:
            break
        more = []
        if turn % 4 == 3:
            assert await finished(job) == job.truth
            words = ("savepoint", "take", *job.command[1:2], *job.command[4:], "--name", f"{turn}")
            async with s4_process(*words, cwd=tmp_path, ready=False) as process:
                assert await process.wait() == 0, process.errors
            more = ["--from", f"{turn}"]
    assert await finished(job) == job.truth


async def test_a_job_that_goes_back_to_a_savepoint_says_how_much_comes_again(
    broker: Broker, tmp_path: Path
) -> None:
    job = Job(broker, tmp_path, partitions=1)
    job.put(20)
    assert await finished(job) == job.truth
    words = ("savepoint", "take", *job.command[1:2], *job.command[4:], "--name", "one")
    async with s4_process(*words, cwd=tmp_path, ready=False) as process:
        assert await process.wait() == 0, process.errors
    job.put(10)
    assert await finished(job) == job.truth
    back = (*job.command, "--from", "one")
    async with s4_process(*back, cwd=tmp_path, ready=False) as process:
        assert await process.wait() == 1
    assert "output to kafka: 10 events come again" in process.errors
    async with s4_process(*back, "--outputs", "again", cwd=tmp_path):
        await until(lambda: len(job.found()) >= 40, "they are there again", seconds=60)
    again = job.truth
    assert sorted(job.found()) == sorted(
        again + [(f"user-{n % 5}", n // 5 + 1) for n in range(20, 30)]
    )


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"streams.totals.samza.physical.name": "no.such"}, UnknownStream, "no stream 'no.such'"),
        ({"systems.kafka.producer.acks": "1"}, ConfigError, "acks is set, and cannot be"),
        ({"systems.kafka.producer.transactional.id": "x"}, ConfigError, "name of the task"),
        ({"systems.kafka.producer.sasl.password": "x"}, ConfigError, "sasl.password.file"),
        ({"systems.kafka.producer.no.such": "1"}, ConfigError, "No such configuration property"),
        (
            {"systems.kafka.producer.transaction.timeout.ms": "900001"},
            ConfigError,
            "900001 is above transaction.max.timeout.ms of the brokers",
        ),
        ({"systems.kafka.producer.message.max.bytes": "1000"}, EventError, "larger than 1000"),
    ],
)
async def test_what_is_wrong_stops_the_app_and_loses_nothing(
    broker: Broker, tmp_path: Path, more: dict[str, str], error: type[Exception], said: str
) -> None:
    job = Job(broker, tmp_path, partitions=1)
    job.put(5)
    if "message.max.bytes" in str(more):
        large = json.dumps({"user": "x" * 1000, "number": 1}).encode()
        broker.put(job.clicks, [large])
    await stops(Sums("sums"), {**job.settings, **more}, error, said)
    with plain_errors():
        async with running(Sums("sums"), job.settings, deadline=120):
            await until(lambda: len(broker.records(job.totals)) >= 5, "all are there")
    assert [each for each in job.found() if len(each[0]) < 10] == job.truth


async def test_a_record_that_the_topic_does_not_take_stops_the_app_with_the_topic(
    broker: Broker, tmp_path: Path
) -> None:
    job = Job(broker, tmp_path, partitions=1)
    broker.delete(job.totals)
    broker.create(job.totals, 1, max_message_bytes="300")
    job.put(1)
    broker.put(job.clicks, [json.dumps({"user": "x" * 1000, "number": 1}).encode()])
    said = f"topic '{job.totals}': raise max.message.bytes of the topic"
    await stops(Sums("sums"), job.settings, S4Error, said)


async def test_markers_that_are_gone_stop_the_app_until_it_goes_back(
    broker: Broker, tmp_path: Path
) -> None:
    job = Job(broker, tmp_path, partitions=1)
    job.put(20)
    assert await finished(job) == job.truth
    broker.delete(job.markers)
    job.put(10)
    said = "has no marker of task 'Partition 0', which has published commit"
    await stops(Sums("sums"), job.settings, MarkerError, said)


async def test_a_topic_of_markers_that_deletes_them_stops_the_app_before_it_publishes(
    broker: Broker, tmp_path: Path
) -> None:
    job = Job(broker, tmp_path, partitions=1)
    broker.create(job.markers, 1, cleanup_policy="compact,delete")
    job.put(5)
    said = f"'{job.markers}' has cleanup.policy=compact,delete, .* --add-config cleanup.policy"
    await stops(Sums("sums"), job.settings, S4Error, said)
    assert job.found() == []


async def test_an_app_that_stops_while_the_broker_is_away_loses_nothing(
    broker: Broker, tmp_path: Path
) -> None:
    job = Job(broker, tmp_path)
    job.put(20)
    assert await finished(job) == job.truth
    job.put(20)
    with plain_errors():
        async with running(Sums("sums"), job.settings, deadline=120) as container:
            await until(lambda: container.statistics().replay.commits > 1)
            broker.pause()
            await until(lambda: "kafka" in container.statistics().replay.away, seconds=60)
    broker.resume()
    assert await finished(job) == job.truth


async def test_a_topic_of_markers_that_was_compacted_still_has_the_last_ones(
    broker: Broker, tmp_path: Path
) -> None:
    job = Job(broker, tmp_path, partitions=1)
    broker.create(job.markers, 1, cleanup_policy="compact", segment_ms="100",
                  min_cleanable_dirty_ratio="0.01")  # fmt: skip
    for _ in range(3):
        job.put(10)
        assert await finished(job) == job.truth
    broker.put(job.markers, [None])  # of another key, so that a segment ends
    await until(lambda: broker.count(job.markers) <= 4, "it is compacted", seconds=60)
    job.put(10)
    assert await finished(job) == job.truth


async def test_a_transaction_that_nobody_ends_holds_up_readers_and_no_commit(
    broker: Broker, tmp_path: Path
) -> None:
    job = Job(broker, tmp_path, partitions=1)
    job.put(5)
    foreign = broker.producer(transactional_id=job.totals, transaction_timeout_ms="5000")
    foreign.init_transactions(30)
    foreign.begin_transaction()
    for each in broker.partitions(job.totals):
        foreign.produce(job.totals, b"", b"", each.partition)
    foreign.flush(30)
    with plain_errors():
        async with running(Sums("sums"), job.settings, deadline=120) as container:
            await until(lambda: container.statistics().replay.commits > 1)
            await until(lambda: not any(each.depth for each in container.statistics().outboxes))
            assert job.found() == []  # they are there, behind the transaction
            await until(lambda: job.found() == job.truth, "the broker has ended it", seconds=60)


# -- set-up ---------------------------------------------------------------------------------------


async def finished(job: Job) -> list[tuple[str, int]]:
    """The records of the topic once an undisturbed run of the app has nothing left to do."""
    with plain_errors():
        async with running(Sums("sums"), job.settings, deadline=120):
            await until(lambda: len(job.found()) >= job.sent, "all are there", seconds=60)
    return job.found()
