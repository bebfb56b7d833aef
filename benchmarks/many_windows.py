"""Many open windows and timers: their memory, how they move, and what waits while all of them end.

Two containers of an app share two partitions. The events of one partition open a window and set a
timer for each key. Its owner is killed with -9, and later another one stops in order: both times
the next owner has to have all of them. At the end they become due at once, while a program sends a
probe to the other partition, every 2 ms, until the commit with the last of them is written. A
probe's delay is from its sending to its handler.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import trio

from benchmarks.runner import Result, Role, answer, container_of, listen, resident_mb, running
from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.windows import tumbling
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.cluster.tree.folder import FolderCoordination
from s4node.errors import S4Error
from s4node.events.event import Event
from s4node.events.keys import Partitioner, crc32m
from s4node.net.client.client import Client
from s4node.net.client.client_stream import ClientStream

WINDOWS, QUICK_WINDOWS = 1_000_000, 2_000
SECONDS, QUICK_SECONDS = 10.0, 0.5
"""Seconds of probes while nothing ends."""

_PAUSE = 0.002
_LOOK = 0.5
_CHUNK = 2000
_HOUR = 3600
_AT = 1_700_000_000.0
_PATIENCE = 600.0


class Opening(Event):
    """Opens a window, and sets a timer."""

    key: int
    at: float = _AT


class Probe(Event):
    key: int
    sent: float


class Open(ProcessingElement):
    """A window with a number; ``ended`` counts them."""

    ended: ClassVar[list[int]] = [0]
    n: int = 0

    def on_event(self, _event: Opening) -> None:
        self.n += 1

    def on_window(self) -> None:
        self.ended[0] += 1


class Alarm(ProcessingElement):
    """A timer; ``fired`` counts them."""

    fired: ClassVar[list[int]] = [0]

    def on_event(self, event: Opening) -> None:
        self.at(event.at + _HOUR)

    def on_timer(self, _name: str) -> None:
        self.fired[0] += 1


class Probed(ProcessingElement):
    """Notes the delays of probes."""

    delays: ClassVar[list[float]] = []

    def on_event(self, probe: Probe) -> None:
        self.delays.append(time.monotonic() - probe.sent)


class Opened(App):
    """Windows and timers, and probes."""

    def on_init(self) -> None:
        opened, alarm, probed = map(self.create_pe, (Open, Alarm, Probed))
        opened.set_window(tumbling(_HOUR))
        self.create_input_stream("events", opened, alarm, key="key", time="at", idle=_PATIENCE)
        self.create_input_stream("probes", probed, key="key")


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for the owner that is killed, one for that which stops, and one for the end."""
    windows = QUICK_WINDOWS if quick else WINDOWS
    say(f"{windows:,} open windows and timers")
    with TemporaryDirectory(prefix="s4-bench-") as folder, ExitStack() as stack:
        return trio.run(_Run(Path(folder), stack, windows, say).run, quick)


class _Run:
    """One run; ``stack`` ends its processes."""

    def __init__(
        self, folder: Path, stack: ExitStack, windows: int, say: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._stack = stack
        self._windows = windows
        self._say = say
        self._containers: dict[str, Role] = {}
        self._addresses: list[str] = []

    async def run(self, quick: bool) -> list[Result]:
        for name in ("one", "two"):
            self._start(name)
        for name in self._containers:
            self._addresses.append(self._containers[name].hear()["address"])
        owned = self._look("one")["owned"]
        async with Client(self._addresses, producer="opening", timeout=_PATIENCE) as client:
            events = await client.stream("events", types=Opening)
            keys = _keys_of(owned[0])
            before, began = self._look("one")["rss_mb"], time.monotonic()
            left = self._windows
            while left:
                part = list(map(Opening, islice(keys, min(left, _CHUNK))))
                await events.send_many(part)
                left -= len(part)
            await events.flush()
            filled = time.monotonic() - began
            rss = self._look("one")["rss_mb"]
            self._say("kill its owner")
            killed = await self._moved(events, owned[0], self._kill, "one")
            self._start("three")
            address = self._containers["three"].hear()["address"]
            owner = await self._owner(owned[0])
            self._say("stop its owner")
            stopped = await self._moved(events, owned[0], self._stop, owner)
            [last] = self._containers
            self._say("end all")
            async with Client([*self._addresses, address], timeout=_PATIENCE) as probing:
                probes = await probing.stream("probes", types=Probe)
                key = next(_keys_of(1 - owned[0]))
                quiet, _ = await self._probed(
                    probes, key, last, QUICK_SECONDS if quick else SECONDS, 0
                )
                began = time.monotonic()
                events.watermark(_AT + 3 * _HOUR)
                ending, due = await self._probed(probes, key, last, 0.0, self._windows)
                written = list[float]()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_write_all, events, owned[0], written)
                    while not written:
                        more, _ = await self._probed(probes, key, last, _LOOK, 0)
                        ending = sorted(ending + more)
            self._stop(last)
        right = due["ended"] == due["fired"] == self._windows
        row = {"events": self._windows, "checked": right}
        notes = {"windows": f"{self._windows:,} open, with a timer each"}
        return [
            Result(
                "windows",
                **row,
                seconds=killed,
                events_per_s=self._windows / filled,
                rss_mb=rss,
                notes={
                    **notes,
                    "what": "kill -9 of the owner",
                    "bytes_each": (rss - before) * 1e6 / self._windows,
                },
            ),
            Result("windows", **row, seconds=stopped, notes={**notes, "what": "the owner stops"}),
            Result(
                "windows",
                **row,
                seconds=written[0] - began,
                ratio=_at(ending, 0.999) / _at(quiet, 0.999),
                p50_ms=_at(ending, 0.5),
                p99_ms=_at(ending, 0.99),
                notes={
                    **notes,
                    "what": "all end at once; probes of another task",
                    "p999_ms": _at(ending, 0.999),
                    "quiet_p999_ms": _at(quiet, 0.999),
                },
            ),
        ]

    def _start(self, name: str) -> None:
        role = Role("many_windows.opened", folder=str(self._folder), member=name)
        self._containers[name] = self._stack.enter_context(role)

    def _kill(self, name: str) -> None:
        self._containers.pop(name).kill()

    def _stop(self, name: str) -> None:
        self._containers.pop(name).tell({"what": "stop"})

    def _look(self, name: str) -> dict[str, Any]:
        self._containers[name].tell({"what": "look"})
        return self._containers[name].hear()

    async def _owner(self, partition: int) -> str:
        while True:
            owned = {name: self._look(name)["owned"] for name in self._containers}
            if all(len(each) == 1 for each in owned.values()):
                return next(name for name, each in owned.items() if partition in each)
            await trio.sleep(0.05)

    async def _moved(
        self, events: ClientStream, partition: int, end: Callable[[str], None], owner: str
    ) -> float:
        """End an owner; return the longest time to a commit until another one has committed."""
        began, longest = time.monotonic(), 0.0
        end(owner)
        moved = False
        while not moved and time.monotonic() - began < _PATIENCE:
            moved = any(partition in self._look(name)["owned"] for name in self._containers)
            sent = time.monotonic()
            await events.send(Opening(next(_keys_of(partition))))
            await events.flush()
            longest = max(longest, time.monotonic() - sent)
        return longest

    async def _probed(
        self, probes: ClientStream, key: int, owner: str, seconds: float, ended: int
    ) -> tuple[list[float], dict[str, Any]]:
        """The sorted delays of probes, in some seconds, and until so much was due."""
        await trio.to_thread.run_sync(self._look, owner)  # without the delays of before
        delays = list[float]()
        began = now = looked = time.monotonic()
        while True:
            await probes.send(Probe(key, now))
            await trio.sleep(_PAUSE)
            now = time.monotonic()
            if now - looked < _LOOK or now - began < seconds:
                continue
            found = await trio.to_thread.run_sync(self._look, owner)
            looked = now
            delays += found["delays"]
            if min(found["ended"], found["fired"]) >= ended:
                return sorted(delays), found
            if now - began > _PATIENCE:
                raise S4Error(f"{found['ended']} windows and {found['fired']} timers ended")


async def _write_all(events: ClientStream, partition: int, written: list[float]) -> None:
    """Wait until the task has committed what it has done; note when that was."""
    await events.send(Opening(next(_keys_of(partition)), _AT + 4 * _HOUR))
    await events.flush()
    written.append(time.monotonic())


def _keys_of(partition: int) -> Iterator[int]:
    """The whole numbers whose partition of two this is."""
    by = Partitioner(2, crc32m)
    return (key for key in count() if by.partition_of(key) == partition)


def _at(delays: list[float], part: float) -> float:
    """The delay that this part of them does not exceed, in ms."""
    return delays[min(len(delays) - 1, int(len(delays) * part))] * 1000


def opened(task: dict[str, Any]) -> None:
    """Run a container; it tells what it has when it is asked, and stops when it is told to."""
    folder, name = Path(task["folder"]), task["member"]
    values = {"s4.cluster.partitions": "2", "s4.state.folder": str(folder / "state")}

    async def main() -> None:
        app = Opened("opened")
        coordination = FolderCoordination(str(folder / "nodes"))
        async with coordination.session(name) as session:
            enrolment = Enrolment(session, "default", app.name, name, 2)
            made = container_of(app, values, node=name, enrolment=enrolment)
            async with running(made) as container:
                answer(address=container.address)
                while (await trio.to_thread.run_sync(listen))["what"] == "look":
                    delays = Probed.delays[:]
                    del Probed.delays[: len(delays)]
                    answer(
                        delays=delays,
                        owned=sorted(
                            at for at, task in container.tasks.items() if task.gate.begins
                        ),
                        ended=Open.ended[0],
                        fired=Alarm.fired[0],
                        rss_mb=resident_mb(),
                    )

    trio.run(main)
