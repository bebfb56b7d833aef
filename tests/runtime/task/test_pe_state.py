"""State saved beside a PE's own: the counts of its triggers, and since when they count."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from shared_apps import Click

from s4node import App, ProcessingElement
from s4node.events.event import EventBatch
from s4node.runtime.task.pe_processor import PeProcessor
from s4node.runtime.task.task import at_once


def test_rows_that_say_how_long_ago_a_trigger_fired_are_read() -> None:
    memory = Memory()
    memory.rows["joe"] = ROW_BEFORE
    assert msgspec.msgpack.decode(ROW_BEFORE) == {"state": b"\x92\x00\x02", "counts": [[3, 8.0]]}
    life = Life(memory)
    life.wait(1.9)
    life.send("joe")
    assert life.fired("joe") == 2
    life.send("joe")
    assert life.fired("joe") == 3  # at the fifth event
    memory.rows["ann"] = ROW_BEFORE
    life.send("ann")
    assert life.fired("ann") == 2
    life.wait(2.1)
    life.send("ann")
    assert life.fired("ann") == 3


def test_the_bytes_on_disk_never_change() -> None:
    life = Life(Memory())
    life.send("joe", "joe")
    life.wait(4)
    life.evict("joe")
    assert life.memory.rows["joe"] == (
        b"\x82\xa5state\xc4\x03\x92\x00\x00\xa5fired\x91\x92\x02\xcb\x41\xd9\x54\xfc\x40" + bytes(3)
    )


@pytest.mark.parametrize("restarts", [False, True])
def test_time_passes_while_an_instance_is_not_in_memory(restarts: bool) -> None:
    life = Life(Memory())
    life.send("joe")
    life.wait(4)
    life.evict("joe")
    life.wait(5)
    if restarts:
        life = Life(life.memory, clock=3.0)
    life.send("joe")
    assert life.fired("joe") == 0
    life.evict("joe")
    life.wait(1.5)
    life.send("joe")
    assert life.fired("joe") == 1


def test_a_clock_that_was_set_back_makes_no_trigger_wait_longer_than_its_time() -> None:
    life = Life(Memory())
    life.send("joe")
    life.evict("joe")
    life.memory.unix -= 1_000_000
    life.send("joe")
    life.wait(10)
    life.send("joe")
    assert life.fired("joe") == 1


# -- set-up ---------------------------------------------------------------------------------------


class Other(Click):
    pass


class Fires(ProcessingElement):
    fired: int = 0

    def on_event(self, event: Click) -> None: ...

    def on_trigger(self, event: Click) -> None:
        self.fired += 1


class Memory:
    """The rows of a task by key, of one PE."""

    def __init__(self) -> None:
        self.rows: dict[Any, bytes] = {}
        self.unix = 1_700_000_000.0
        self.stored = True
        self.mark = self.saving = object()
        self.touched: list[Any] = []

    def now(self) -> float:
        return self.unix

    def meta(self, _name: str) -> None: ...

    def set_meta(self, _name: str, _value: Any) -> None: ...

    def store(self, _spec: Any) -> None: ...

    def unused(self) -> list[str]:
        return []

    def saved(self, _name: str, live: Any, codec: Any) -> Memory:
        self.live, self.codec = live, codec
        return self

    def find(self, keys: Iterable[Any]) -> dict[Any, bytes]:
        return {key: self.rows[key] for key in keys if key in self.rows}

    def touch(self, _keys: Iterable[Any]) -> None: ...

    def touch_one(self, _instance: Any) -> None: ...

    def touch_new(self, _instance: Any) -> None: ...

    def remove(self, key: Any) -> None:
        self.rows.pop(key, None)

    def evict(self, key: Any) -> None:
        self.rows[key] = self.codec.encode(self.live[key])


class Life:
    """A task with one PE that has a trigger, from its start on."""

    def __init__(self, memory: Memory, clock: float = 50.0) -> None:
        app = App("life")
        pe = app.create_pe(Fires)
        pe.set_trigger(Click, events=5, seconds=10)
        pe.set_pe_cache(max_size=1)
        app.create_input_stream("clicks", pe, key="user", types=[Click, Other])
        app.freeze()
        self.memory, self.clock = memory, clock
        self.elements = PeProcessor(app, 0, lambda: self.clock)
        self.elements.attach_state(memory)
        self.instances = self.elements.instances["Fires"]

    def send(self, *users: str) -> None:
        events = [Click(user) for user in users]
        at_once(self.elements.process(EventBatch("clicks", 0, events), events))

    def evict(self, user: str) -> None:
        """Something else takes the place of the instance in memory."""
        self.send(f"not {user}")
        self.instances.trim()
        assert user not in self.instances

    def fired(self, user: str) -> int:
        """How often the key's trigger has; it is in memory."""
        return self.instances.get(user).fired  # type: ignore[union-attr]

    def wait(self, seconds: float) -> None:
        self.clock += seconds
        self.memory.unix += seconds


ROW_BEFORE = b"\x82\xa5state\xc4\x03\x92\x00\x02\xa6counts\x91\x92\x03\xcb@\x20" + bytes(6)
"""Fired twice, three events and 8 seconds ago, as it was kept until there were Unix times."""
