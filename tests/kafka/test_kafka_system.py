"""Kafka as a system: the contract's kit over a broker, and what only Kafka does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
import trio

pytest.importorskip("confluent_kafka", reason="needs the extra kafka: tools/install kafka")
pytest.register_assert_rewrite("conformance.systems")

from conformance.systems import RECORD_SETTINGS, Lab, Record, SystemConformance  # noqa: E402
from harness import plain_errors  # noqa: E402
from kafka_broker import Broker, lacking, running_broker  # noqa: E402

from s4node.config.config import Config  # noqa: E402
from s4node.systems.kafka import KafkaSystem  # noqa: E402

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(lacking()), reason=lacking()),
]

_numbers = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("kafka")) as found:
        yield found


class KafkaLab(Lab):
    """A broker that others use, too: each stream is a topic of its own."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics = {name: f"{name}-{next(_numbers)}" for name in ("clicks", "taps")}
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


# -- set-up ---------------------------------------------------------------------------------------


def config(broker: Broker, values: dict[str, str]) -> Config:
    return Config.from_values({"systems.kafka.address": broker.address, **values})
