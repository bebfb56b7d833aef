"""Outlets in a cluster in memory: hosts are killed, paused and cut; each record is there once."""

from __future__ import annotations

import json
import os

import pytest

from s4node import App, Event, OutputStream, ProcessingElement
from s4node.config.config import Config
from s4node.systems.memory import MemorySystem
from s4node.systems.memory_receiver import Published
from s4node.testing import ClusterTest

_published: dict[str, Published] = {}


class Brokers(MemorySystem):
    """Brokers that all hosts of a cluster reach, with every topic; their address is its name."""

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        self.published = _published.setdefault(self.address, Published())

    async def partitions(self, stream: str) -> int:
        return 4


class Click(Event):
    user: str


class Total(Event):
    user: str
    total: int


class Sum(ProcessingElement):
    totals: OutputStream
    total: int = 0

    def on_event(self, click: Click) -> None:
        self.total += 1
        self.totals.put(Total(self.key, self.total))


class Sums(App):
    def on_init(self) -> None:
        pe = self.create_pe(Sum)
        pe.totals = self.create_output_stream("totals", key="user", system="out")
        self.create_input_stream("clicks", pe, key="user")


@pytest.mark.parametrize("seed", range(int(os.environ.get("SEEDS", "5"))))
def test_each_record_is_there_once_and_in_order_after_faults_of_hosts(seed: int) -> None:
    settings = {"systems.out.type": f"{__name__}:Brokers", "systems.out.address": f"seed {seed}"}
    _published.pop(f"seed {seed}", None)
    with ClusterTest(Sums, hosts=3, seed=seed, settings=settings) as test:
        test.faults(4, seconds=6)
        for n in range(60):
            test.send("clicks", Click(f"user {n % 5}"))
            test.advance(0.1)
        test.settle()
        test.advance(20)
    found: dict[str, list[int]] = {}
    for record in _published[f"seed {seed}"].of("totals"):
        value = json.loads(record.value or b"")
        found.setdefault(value["user"], []).append(value["total"])
    assert found == {f"user {n}": [*range(1, 13)] for n in range(5)}
