"""Kafka as a system: the contract's kit over a broker, and what only Kafka does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

pytest.register_assert_rewrite("conformance.systems")

from conformance.systems import RECORD_SETTINGS, Lab, Record, SystemConformance  # noqa: E402
from harness import plain_errors, until  # noqa: E402
from kafka_broker import Broker, needs_broker  # noqa: E402

from s4node import GenericEvent  # noqa: E402
from s4node.config.config import Config  # noqa: E402
from s4node.offsets.startpoint import Timestamp  # noqa: E402
from s4node.offsets.system import Bounds, InputBatch, SystemStreamPartition  # noqa: E402
from s4node.systems.kafka import KafkaSystem  # noqa: E402

pytestmark = needs_broker


class KafkaLab(Lab):
    """A broker that others use, too: each stream is a topic of its own."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics = {name: broker.name(name) for name in ("clicks", "taps")}
        names = {f"streams.{n}.samza.physical.name": t for n, t in self._topics.items()}
        self.system = KafkaSystem("kafka", config(broker, {**RECORD_SETTINGS, **names}))

    async def create(self, stream: str, partitions: int) -> None:
        await trio.to_thread.run_sync(self._broker.create, self._topics[stream], partitions)

    async def grow(self, stream: str, partitions: int) -> bool:
        await trio.to_thread.run_sync(self._broker.grow, self._topics[stream], partitions)
        return True

    async def lose_end(self, stream: str, partition: int, first: int) -> bool:
        topic = self._topics[stream]
        await trio.to_thread.run_sync(self._broker.lose_end, topic, partition, first)
        return True

    async def drop(self, stream: str) -> None:
        await trio.to_thread.run_sync(self._broker.delete, self._topics[stream])

    async def put_records(self, stream: str, *records: Record) -> bool:
        await self.create(stream, 1)
        producer = self._broker.producer()
        for key, value, time_ms, headers in records:
            producer.produce(
                self._topics[stream], value, key, 0, timestamp=time_ms, headers=list(headers)
            )
        assert await trio.to_thread.run_sync(producer.flush, 30) == 0
        return True

    async def trim(self, stream: str, partition: int, below: int) -> None:
        topic = self._topics[stream]
        await trio.to_thread.run_sync(self._broker.trim, topic, partition, below)

    async def go_away(self) -> None:
        self._broker.pause()

    async def come_back(self) -> None:
        self._broker.resume()


class TestKafka(SystemConformance):
    """The kit's claims, over a broker."""

    @pytest.fixture
    def open_lab(self, broker: Broker) -> Any:
        @asynccontextmanager
        async def lab() -> AsyncIterator[Lab]:
            with plain_errors():
                async with trio.open_nursery() as nursery:
                    made = KafkaLab(broker)
                    await nursery.start(made.system.run)
                    try:
                        yield made
                    finally:
                        broker.resume()
                    nursery.cancel_scope.cancel()

        return lab


async def test_questions_wait_for_a_broker_that_is_killed_and_starts(broker: Broker) -> None:
    """Each has a client of its own: an answer to one question is known for others, too."""
    topic = broker.name("clicks")
    broker.create(topic, 2)
    broker.put(topic, [b"{}"] * 9)
    place = SystemStreamPartition("kafka", topic, 0)

    async def first_read(system: KafkaSystem) -> int:
        reader = await system.open(place, 3, [GenericEvent], epoch=1)
        try:
            batch = await reader.read()
            assert isinstance(batch, InputBatch)
            return batch.first
        finally:
            await reader.aclose()

    questions: list[tuple[Callable[[KafkaSystem], Awaitable[Any]], Any]] = [
        (lambda system: system.partitions(topic), 2),
        (lambda system: system.identity(topic), None),
        (lambda system: system.bounds(place), Bounds(0, 9)),
        (lambda system: system.resolve(place, Timestamp(1)), 0),
        (first_read, 3),
    ]
    answered: set[int] = set()

    async def ask(number: int, system: KafkaSystem) -> None:
        question, answer = questions[number]
        while True:
            found = await question(system)
            assert answer is None or found == answer
            answered.add(number)

    with plain_errors():
        async with trio.open_nursery() as nursery:
            for number in range(len(questions)):
                system = KafkaSystem("kafka", config(broker, {}))
                await nursery.start(system.run)
                nursery.start_soon(ask, number, system)
            for restarts in range(3):
                if restarts:
                    await trio.to_thread.run_sync(broker.kill)
                    await trio.to_thread.run_sync(broker.start)
                answered.clear()
                await until(lambda: len(answered) == len(questions), "all have answers", 60)
            nursery.cancel_scope.cancel()


# -- set-up ---------------------------------------------------------------------------------------


def config(broker: Broker, values: dict[str, str]) -> Config:
    return Config.from_values({"systems.kafka.address": broker.address, **values})
