"""The promises of logs whose events are in any partition: a replay loses none of them as late."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from harness import running, until
from test_windows_over_inputs import EVENTS, Counts, FromLog, Row, Trade, expected, seen

from s4node import Client
from s4node.runtime.container.container import Container
from s4node.systems.memory import MemorySystem
from s4node.testing.app_test import AppTest

__all__ = ["seen"]

LONG = [Trade("abcdefg"[n % 7], 100 + n / 2) for n in range(6000)]


def in_any_partition(events: list[Trade], partitions: int) -> list[list[Trade]]:
    """The events of each partition, out of order by less than the lateness."""
    chance = random.Random(1)
    places: list[list[Trade]] = [[] for _ in range(partitions)]
    for trade in sorted(events, key=lambda trade: trade.at + chance.uniform(0, 4.9)):
        places[chance.randrange(partitions)].append(trade)
    return places


def late(container: Container) -> int:
    return sum(task.statistics().late["Count"] for task in container.tasks.values())


@pytest.mark.parametrize("filled", [3, 2], ids=["all", "fewer than tasks"])
async def test_a_replay_of_a_log_with_events_of_all_keys_in_all_partitions_loses_none(
    filled: int, system: MemorySystem, settings: dict[str, str], seen: list[Row]
) -> None:
    system.create("trades", filled)
    for partition, events in enumerate(in_any_partition(LONG, filled)):
        system.put("trades", partition, *events)
    async with running(Counts("counts"), settings, partitions=3) as container:
        await until(lambda: len(seen) > 500)
        assert late(container) == 0
    async with running(Counts("counts"), settings, partitions=3) as container:
        rows = expected(LONG, LONG[-1].at - 15)
        await until(lambda: rows <= set(seen))
        assert late(container) == 0
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("killed", [False, True])
def test_partitions_of_one_log_may_be_far_apart(killed: bool, seen: list[Row]) -> None:
    with AppTest(FromLog, partitions=3) as test:
        for partition in range(3):
            test.send("trades", Trade("a", 90), partition=partition)
        test.advance(seconds=2)
        for partition, events in enumerate(in_any_partition(EVENTS, 3)):
            test.send("trades", *events, partition=partition)
            test.advance(seconds=5)
            if killed:
                test.crash()
        assert {start for _, start, _ in seen} == {90, 100, 110}
        for partition in range(3):
            test.end_input("trades", partition=partition)
        test.advance(seconds=2)
        assert test.output("late") == []
        assert set(seen) == {("a", 90, 3)} | expected(EVENTS, 1000)


def test_a_partition_without_news_is_waited_for_until_it_is_idle(seen: list[Row]) -> None:
    with AppTest(FromLog, partitions=3) as test:
        for partition in range(3):
            test.send("trades", Trade("a", 90), partition=partition)
        for _ in range(25):
            test.send("trades", *EVENTS[-40:], partition=0)
            test.advance(seconds=1)
        assert seen == []
        for _ in range(10):
            test.send("trades", EVENTS[-1], partition=0)
            test.advance(seconds=1)
        assert {start for _, start, _ in seen} == {90}


async def test_events_of_a_program_that_cannot_find_their_key_are_not_late(
    tmp_path: Path, seen: list[Row]
) -> None:
    class Unnamed(Counts):
        system = "live"

        def create_input_stream(self, name: str, *pes: Any, **options: Any) -> Any:
            return super().create_input_stream(name, *pes, **options | {"key": symbol_of})

    settings = {"s4.state.folder": str(tmp_path)}
    async with (
        running(Unnamed("counts"), settings, partitions=3) as container,
        Client(container.address, producer="p") as client,
    ):
        trades = await client.stream("trades", types=Trade)
        await trades.send(Trade("a", 90))
        await trades.flush()
        for at in range(0, len(LONG), 500):
            await trades.send_many(sent := LONG[at : at + 500])
            await until(lambda: reported(container) >= sent[-1].at)
        await trades.flush()
        trades.watermark(LONG[-1].at + 20)
        await until(lambda: len(seen) == 1 + len(expected(LONG, 1e6)))
        assert late(container) == 0


def reported(container: Container) -> float:
    """The time that the program has reported to each partition."""
    lanes = container.ports["trades"].admission.lanes.values()
    return min(lane.reported for lane in lanes if lane.producer == "p")


def symbol_of(trade: Trade) -> str:
    return trade.symbol
