"""Kafka: a keyed count of a topic, and records that a task writes, beside bare confluent-kafka.

A broker runs beside, on the same cores. Before each count a producer fills a topic with JSON; all
runs read the same topics, from the oldest record.

- count: a container reads the topic, decodes and counts by key, with a commit every second. The
  limit is a bare loop over the topic of one partition in one process: consume, one decode call for
  each batch, and a dict of counts. It has the same options of the client. Of 8 partitions, records
  are sent on to the tasks of their keys, or ``routed``: they are where the keys are. The limit of
  those that are sent on is the loop that also sorts them by key, and encodes and decodes them
  again, but for those of one partition.
- Bytewax, if it is installed (``pip install bytewax``): the same count of the topic of one
  partition, with the same options of the client and without recovery.
- process: from producing a record, at 50 a second, to its handler.
- output: from the handler to a reader of committed records, with a commit every 100 ms; half of
  that interval is waiting for the commit.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import trio

from benchmarks import servers, workload
from benchmarks.runner import (
    Result,
    Run,
    answer,
    container_of,
    in_turn,
    measured,
    middle,
    rate_of,
    running,
    usage,
)
from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import OutputStream
from s4node.events.event import Event
from s4node.events.keys import Partitioner

PARTITIONS = (1, 8)
ROUTED = "8 partitions, routed"
BARE, SENT_ON = "the bare loop", "the bare loop that sends on"
PEER = "bytewax"
_INTERVAL_MS = 100
_A_SECOND = 50
_POLL_SECONDS = 0.002
_OPTIONS = {
    "fetch.queue.backoff.ms": 5,
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 16_384,
}
"""Options of consumers, as the container has them."""

_PLACES = Partitioner(max(PARTITIONS)).memo


class Timed(Event):
    """An event with the time at which it was produced or put."""

    key: str
    at: float


class Row(msgspec.Struct):
    """A reading, as the bare loop decodes it."""

    key: str
    value: int
    ts: int


class Sent(Row, array_like=True, gc=False):
    """A reading on its way to another task."""


_encode_sent = msgspec.msgpack.Encoder().encode
_decode_sent = msgspec.msgpack.Decoder(list[Sent]).decode


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each number of partitions, one for what is processed, and one for output."""
    if not servers.can_run_kafka():
        say("SKIPPED: a broker of Kafka is not installed; run tools/install kafka")
        return []
    runs, events, seconds = (1, 20_000, 2.0) if quick else (5, workload.LENGTH * 4, 8.0)
    with (
        tempfile.TemporaryDirectory(prefix="s4-bench-") as folder,
        servers.kafka(Path(folder) / "broker") as address,
    ):
        for partitions in PARTITIONS:
            say(f"{events:,} records into {partitions} partitions")
            measured("kafka.filling", address=address, partitions=partitions, events=events)
        given = {"address": address, "events": events}
        cases: dict[str, Callable[[], Run]] = {
            f"{each} partitions": partial(measured, "kafka.counting", partitions=each, **given)
            for each in PARTITIONS
        }
        cases[ROUTED] = partial(measured, "kafka.counting", partitions=8, routed=True, **given)
        cases[BARE] = partial(measured, "kafka.bare", **given)
        cases[SENT_ON] = partial(measured, "kafka.bare", sends_on=True, **given)
        if importlib.util.find_spec("bytewax") is None:
            say("no row of Bytewax, which is not installed; pip install bytewax")
        else:
            cases[PEER] = partial(measured, "kafka.counting_by_bytewax", **given)
        for each in ("processed", "published"):
            task = {"address": address, "seconds": seconds}
            cases[each] = partial(measured, f"kafka.{each}", **task)
        found = in_turn(cases, runs, say)
    limit = rate_of(found[BARE])
    limits = dict(zip(PARTITIONS, (limit, rate_of(found[SENT_ON])), strict=True))
    rows = [
        Result.of("kafka", found[f"{each} partitions"], limits[each], partitions=each)
        for each in PARTITIONS
    ]
    rows.append(Result.of("kafka", found[ROUTED], limit, partitions=8, routed=True))
    if PEER in found:
        rows.append(Result.of("kafka", found[PEER], limit, partitions=1, by=PEER))
    for each in ("processed", "published"):
        row = Result.of("kafka", found[each], until=each)
        row.p50_ms = middle([one["p50_ms"] for one in found[each]])
        row.p99_ms = middle([one["p99_ms"] for one in found[each]])
        row.events_per_s = None
        rows.append(row)
    rows[-1].notes["commit_ms"] = _INTERVAL_MS
    return rows


# -- the roles -------------------------------------------------------------------------------------


def filling(task: dict[str, Any]) -> None:
    """Fill a topic with readings as JSON, with their keys."""
    from confluent_kafka import Producer

    topic = _created(task["address"], task["partitions"])
    options = {"linger.ms": 50, "partitioner": "murmur2_random"}
    producer = Producer({"bootstrap.servers": task["address"], **options})
    for reading in _readings(task["events"]):
        while True:
            try:
                producer.produce(topic, _json(reading), reading.key)
                break
            except BufferError:
                producer.poll(0.1)
    answer(left=producer.flush(60))


def bare(task: dict[str, Any]) -> None:
    """Consume, decode and count the topic of one partition, perhaps as if others counted it."""
    from confluent_kafka import Consumer, TopicPartition

    received = _sent_on if task.get("sends_on") else iter
    consumer = Consumer({"bootstrap.servers": task["address"], "group.id": "bench", **_OPTIONS})
    consumer.assign([TopicPartition(_topic(1), 0, 0)])
    decode = msgspec.json.Decoder(list[Row]).decode
    counts: Counter[str] = Counter()
    done = first = 0
    began = before = 0.0
    while done < task["events"]:
        values = [each.value() or b"" for each in consumer.consume(2000, 0.05)]
        if not values:
            continue
        for reading in received(decode(b"[" + b",".join(values) + b"]")):
            counts[reading.key] += 1
        done += len(values)
        if not first:
            first, began, before = done, time.perf_counter(), usage()["cpu_s"]
    seconds = time.perf_counter() - began
    used = {**usage(), "cpu_s": usage()["cpu_s"] - before}
    right = counts == Counter(each.key for each in _readings(done))
    answer(events=done - first, seconds=seconds, checked=right, **used)


def counting_by_bytewax(task: dict[str, Any]) -> None:
    """Count the topic of one partition in a flow of Bytewax."""
    from bytewax import operators, outputs, testing
    from bytewax.connectors.kafka import KafkaSource
    from bytewax.dataflow import Dataflow

    decode = msgspec.json.Decoder(Row).decode
    counts: dict[str, int] = {}
    done = first = 0
    began = before = ended = 0.0

    def keyed(record: Any) -> tuple[str, Row]:
        reading = decode(record.value or b"")
        return reading.key, reading

    class Counts(outputs.StatelessSinkPartition[Any]):
        def write_batch(self, items: list[Any]) -> None:
            nonlocal done, first, began, before, ended
            counts.update(items)
            done += len(items)
            ended = time.perf_counter()
            if not first:
                first, began, before = done, ended, usage()["cpu_s"]

    class Sink(outputs.DynamicSink[Any]):
        def build(self, *_: Any) -> Counts:
            return Counts()

    flow = Dataflow("count")
    options = {name: str(value) for name, value in _OPTIONS.items()}
    source = KafkaSource([task["address"]], [_topic(1)], tail=False, add_config=options)
    records = operators.input("records", flow, source)
    readings = operators.map("decode", records, keyed)
    counted = operators.stateful_map("count", readings, lambda n, _: ((n or 0) + 1, (n or 0) + 1))
    operators.output("counts", counted, Sink())
    run_main: Any = testing.run_main
    run_main(flow)
    right = counts == Counter(each.key for each in _readings(done))
    used = {**usage(), "cpu_s": usage()["cpu_s"] - before}
    answer(events=done - first, seconds=ended - began, checked=right, **used)


def counting(task: dict[str, Any]) -> None:
    """Run a container that counts a topic; report its time and counts."""

    async def main(folder: str) -> None:
        app = App("kafka-count")
        app.create_input_stream(
            "readings", app.create_pe(workload.Tally), key="key", system="kafka"
        )
        values = _settings(task["address"], folder) | {
            "streams.readings.samza.physical.name": _topic(task["partitions"]),
            "task.commit.ms": "1000",
        }
        if task.get("routed"):
            values |= {"s4.hasher": "kafka", "streams.readings.routed": "true"}
        async with running(container_of(app, values)) as container:
            while not (first := container.processed):  # noqa: ASYNC110 - it measures
                await trio.sleep(_POLL_SECONDS)
            began, before = time.perf_counter(), usage()["cpu_s"]
            while container.processed < task["events"]:  # noqa: ASYNC110 - it measures
                await trio.sleep(_POLL_SECONDS)
            seconds, cpu_s = time.perf_counter() - began, usage()["cpu_s"] - before
            tallies = workload.tallies(container)
        answer(
            events=task["events"] - first,
            seconds=seconds,
            checked=workload.digest(tallies) == workload.digest_of(task["events"]),
            **{**usage(), "cpu_s": cpu_s},
        )

    _run_in_folder(main)


def processed(task: dict[str, Any]) -> None:
    """Produce records at a rate; report how long each took to its handler."""
    from confluent_kafka import Producer

    took: list[float] = []

    class Notes(ProcessingElement):
        def on_event(self, event: Timed) -> None:
            took.append(time.time() - event.at)

    async def main(folder: str) -> None:
        topic = _created(task["address"], 1, "timed")
        app = App("kafka-latency")
        app.create_input_stream("timed", app.create_pe(Notes), key="key", system="kafka")
        values = _settings(task["address"], folder)
        values["streams.timed.samza.physical.name"] = topic
        producer = Producer({"bootstrap.servers": task["address"], "linger.ms": 0})
        async with running(container_of(app, values)):
            producer.produce(topic, _json(Timed("first", 0.0)))
            await _first(took)
            async for number in _at_a_rate(task["seconds"]):
                value = _json(Timed(f"key {number % 9}", time.time()))
                producer.produce(topic, value)
                producer.poll(0)
            producer.flush(30)
            while len(took) <= number:  # noqa: ASYNC110 - it measures
                await trio.sleep(_POLL_SECONDS)
        _answer_times(took, number + 1)

    _run_in_folder(main)


def published(task: dict[str, Any]) -> None:
    """Put events at a rate; report how long each took to a reader of committed records."""
    from confluent_kafka import Consumer, TopicPartition

    class Puts(ProcessingElement):
        out: OutputStream

        def on_event(self, _: Timed) -> None:
            self.out.put(Timed(str(self.key), time.time()))

    async def main(folder: str) -> None:
        topic = _created(task["address"], 1, "published")
        app = App(topic)
        pe = app.create_pe(Puts)
        pe.out = app.create_output_stream("out", key="key", types=Timed, system="kafka")
        stream = app.create_input_stream("timed", pe, key="key")
        values = _settings(task["address"], folder) | {
            "streams.out.samza.physical.name": topic,
            "s4.stream.timed.grade": "durable",
            "task.commit.ms": str(_INTERVAL_MS),
        }
        reader = Consumer({"bootstrap.servers": task["address"], "group.id": "bench"})
        reader.assign([TopicPartition(topic, 0, 0)])
        took: list[float] = []

        def read() -> None:
            while len(took) < task["seconds"] * _A_SECOND:  # the first one is dropped
                found = [each.value() for each in reader.consume(1, 0.5)]
                took.extend(time.time() - json.loads(each)["at"] for each in found if each)

        async with running(container_of(app, values)), trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, read)
            await stream.send(Timed("first", 0.0))
            await _first(took)
            async for number in _at_a_rate(task["seconds"]):
                await stream.send(Timed(f"key {number % 9}", 0.0))
        _answer_times(took, int(task["seconds"] * _A_SECOND))

    _run_in_folder(main)


# -- what they share -------------------------------------------------------------------------------


def _settings(address: str, folder: str) -> dict[str, str]:
    return {
        "systems.kafka.type": "kafka",
        "systems.kafka.address": address,
        "systems.kafka.samza.offset.default": "oldest",
        "s4.state.folder": folder,
    }


def _run_in_folder(main: Callable[[str], Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="s4-bench-") as folder:
        trio.run(main, folder)


def _topic(partitions: int) -> str:
    return f"readings-{partitions}"


def _created(address: str, partitions: int, name: str = "") -> str:
    """A topic, which is new if it has a name."""
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    topic = f"{name}-{time.time_ns()}" if name else _topic(partitions)
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    return topic


def _sent_on(readings: list[Row]) -> Iterator[Row]:
    """Readings as the tasks of their keys get them, in one of which they were read."""
    lanes: list[list[Sent]] = [[] for _ in range(max(PARTITIONS))]
    for each in readings:
        lanes[_PLACES[each.key]].append(Sent(each.key, each.value, each.ts))
    yield from lanes[0]
    for lane in lanes[1:]:
        yield from _decode_sent(_encode_sent(lane))


def _json(event: Event) -> bytes:
    return msgspec.json.encode(msgspec.structs.asdict(event))


def _readings(number: int) -> Iterator[workload.Reading]:
    batches = workload.batches(workload.key_sequence(), 512)
    return islice((each for batch in batches for each in batch), number)


async def _first(took: list[float]) -> None:
    """Wait for the first time, and drop it: connections and transactions are made with it."""
    while not took:  # noqa: ASYNC110 - it measures
        await trio.sleep(_POLL_SECONDS)
    took.clear()


async def _at_a_rate(seconds: float) -> Any:
    """The numbers from 0, at a rate, for some seconds."""
    began = trio.current_time()
    for number in range(int(seconds * _A_SECOND)):
        await trio.sleep_until(began + number / _A_SECOND)
        yield number


def _answer_times(took: list[float], number: int) -> None:
    took = sorted(took)
    answer(
        events=number,
        seconds=sum(took),
        checked=len(took) == number,
        p50_ms=took[len(took) // 2] * 1e3,
        p99_ms=took[int(len(took) * 0.99)] * 1e3,
    )
