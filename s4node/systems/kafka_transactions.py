"""Transactions that hold up readers of Kafka, because their producer has not ended them.

Rules
- Readers of committed records stop before the first open transaction. The brokers abort it after
  the time-out of its producer, which is a minute by default and up to 15.
- A reader is held up if it stands still before records that are there, and are not committed.
- The transactions are found in the brokers' own topic of them, if the user may read it. Its values
  are not decoded: only the state is read, which has the same place in all versions, and whether the
  topic is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakSet

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from s4node import clocks, threads
from s4node.logger import get_logger
from s4node.systems.kafka_reader import KafkaReader

log = get_logger("s4node.systems")

_STATES = "__transaction_state"
_STATE_AT = 2 + 8 + 2 + 4  # behind version, producer, epoch and time-out
_OPEN = 1
_KEY_HEAD = 4  # version and length
_SECONDS = 10.0
"""The most seconds for reading the states."""

_STILL_SECONDS = 5.0
"""A reader that has got nothing new for so long may be held up; it is, if the next look agrees."""


class OpenTransactions:
    """Finds those that hold up ``readers``; ``options`` are those of consumers."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.readers = WeakSet[KafkaReader]()
        self._options = dict(options)
        self._admin: AdminClient | None = None
        self._next_look = 0.0

    async def note_held_up(self, now: float) -> None:
        """Note what is behind readers that are held up, and log by whose transactions."""
        still = [each for each in self.readers if now - each.still_since > _STILL_SECONDS]
        if not still or now < self._next_look:
            return
        self._next_look = now + _STILL_SECONDS
        if self._admin is None:
            self._admin = AdminClient(self._options)
        places = {reader.key for reader in still}
        try:
            ends = await threads.run_sync(_ends_of, self._admin, places, abandon_on_cancel=True)
        except KafkaException:
            return
        for reader in still:
            behind = max(0, ends[reader.key] - reader.arrived_end)
            agrees, reader.maybe_uncommitted = reader.maybe_uncommitted, behind > 0
            if behind and agrees and not reader.uncommitted:
                found = await threads.run_sync(
                    _open_in, self._options, reader.key[0], abandon_on_cancel=True
                )
                log.warning(
                    "a transaction that its producer has not ended holds up a reader",
                    input=str(reader.ssp),
                    offset=reader.arrived_end,
                    records=reader.uncommitted,
                    open=", ".join(found) or f"unknown: {_STATES} cannot be read",
                )
            reader.uncommitted = behind if agrees else 0


def _ends_of(admin: AdminClient, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """The ends of partitions, with records that are not committed; called in a thread."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    answers = admin.list_offsets(
        {TopicPartition(*place): latest for place in places},
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        request_timeout=_SECONDS,
    )
    return {(p.topic, p.partition): answer.result().offset for p, answer in answers.items()}


def _open_in(options: Mapping[str, Any], topic: str) -> list[str]:
    """The ids of the transactions that are open in a topic, as far as they can be read; called in a
    thread."""
    consumer = Consumer({**options, "isolation.level": "read_uncommitted"})
    found: dict[bytes | None, bytes | None] = {}
    try:
        parts = consumer.list_topics(_STATES, timeout=_SECONDS).topics[_STATES].partitions
        consumer.assign([TopicPartition(_STATES, number, OFFSET_BEGINNING) for number in parts])
        left, give_up = set(parts), clocks.steady() + _SECONDS
        while left and clocks.steady() < give_up:
            for message in consumer.consume(1000, 0.1):
                error = message.error()
                if error is None:
                    found[message.key()] = message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    return []
    except KafkaException:
        return []
    finally:
        consumer.close()
    name = topic.encode()
    named = (len(name).to_bytes(2, "big") + name, bytes([(len(name) + 1) & 0x7F]) + name)
    return sorted(
        key[_KEY_HEAD:].decode(errors="replace")
        for key, value in found.items()
        if key and value and value[_STATE_AT] == _OPEN and any(each in value for each in named)
    )
