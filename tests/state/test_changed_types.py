"""The table of changed types in docs/state.md says what happens, cell by cell."""

from __future__ import annotations

from pathlib import Path

import trio
from changed_types import EVENTS, STATE, Order, order, said, table
from harness import running, until
from log_nodes import log_at
from shared_apps import counting

from s4node import App, Client, Config, Container, Event, GenericEvent, ProcessingElement
from s4node.deploy.savepoint import savepoint_of
from s4node.errors import S4Error, StateError
from s4node.offsets.system import SystemStreamPartition
from s4node.savepoints.manifest import StateCheck
from s4node.systems.memory import MemorySystem

OF_EVENTS = table("| an event's type |")
OF_STATE = table("| a PE's state |")


class Readers(App):
    """Reads Orders as each later version, from a live stream of its own."""

    def __init__(self) -> None:
        super().__init__("readers")
        for number, change in enumerate(EVENTS):
            pe = self.create_pe(counting(Event), name=f"PE{number}")
            self.create_input_stream(f"live{number}", pe, key="user", types=change.later)


async def test_events_of_an_earlier_version_on_live_streams() -> None:
    found = {}
    async with running(Readers()) as container, Client(container.address, timeout=10) as client:
        for number, change in enumerate(EVENTS):
            try:
                stream = await client.stream(f"live{number}", types=Order)
                await stream.send(order())
                refused = [each.reason for each in await stream.flush()]
            except S4Error as error:
                refused = [str(error)]
            found[change.row] = "".join(refused) or "accepted"
    check("live", OF_EVENTS, found)


async def test_events_of_an_earlier_version_in_a_log(tmp_path: Path) -> None:
    found = {}
    settings = {"s4.log.folder": str(tmp_path / "log")}
    async with running(Readers(), settings) as container, log_at(container.address) as log:
        for number, change in enumerate(EVENTS):
            name = f"stored{number}"
            await log.create(name, key="user")
            await log.append(name, 0, [order()])
            reader = await log.open(SystemStreamPartition("log", name, 0), 0, [change.later])
            batch = await reader.read()
            batch.load()
            found[change.row] = "".join(why for _, why, _ in batch.undecoded) or "accepted"
            await reader.aclose()
    check("log", OF_EVENTS, found)


class Keeping(App):
    def __init__(self, *pes: type[ProcessingElement]) -> None:
        super().__init__("keeping")
        self.pes = pes

    def on_init(self) -> None:
        pes = [self.create_pe(pe) for pe in self.pes]
        self.create_input_stream("clicks", *pes, key="user", system="memory")


async def test_saved_state_of_an_earlier_version(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, GenericEvent(user="joe"))
    async with running(Keeping(*(each.first for each in STATE)), settings) as container:
        await until(
            lambda: all(len(container.tasks[0].instances[each.first.__name__]) for each in STATE)
        )
    config = Config.from_values({**settings, "s4.listener.address": "tcp://127.0.0.1:0"})
    of = savepoint_of("keeping", config)
    assert of is not None
    manifest = await trio.to_thread.run_sync(of.take_stopped, "first")
    running_state, savepoint = {}, {}
    with of.place.opened(manifest) as saved:
        for change in STATE:
            others = tuple(e.first.__name__ for e in STATE if e is not change)
            beside = Container(Keeping(change.later), config)
            await beside.prepare()
            done = "migrated" if hasattr(change.later, "migrate") else "accepted"
            try:
                await beside.check_saved_state(StateCheck(unused=others))
                running_state[change.row] = done
            except StateError as error:
                running_state[change.row] = str(error)
            try:
                await beside.check_saved_state(StateCheck(str(saved), others))
                savepoint[change.row] = done
            except StateError as error:
                savepoint[change.row] = str(error)
    check("state", OF_STATE, running_state)
    check("savepoint", OF_STATE, savepoint)


def check(column: str, cells: dict[str, dict[str, str]], found: dict[str, str]) -> None:
    """Assert that the cells of a column say what came out, for the same rows."""
    assert cells.keys() == found.keys()
    wrong = {
        row: (cells[row][column], told)
        for row, told in found.items()
        if not said(told, cells[row][column])
    }
    assert wrong == {}
