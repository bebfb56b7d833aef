"""The way of one event through a node: functions called, files, hops between files.

Run as ``python walk.py GRADE EVENTS [FILES HOPS CALLS]``: a container and a client in one process;
each of at most EVENTS events is sent by itself and waited for, and what the package calls meanwhile
is counted. The last line is a JSON list, one ``{"files", "hops", "calls"}`` for each event. Other
tasks and threads may have their turn meanwhile, more often if the machine is busy, so the event
that touches least is the one to look at. The walk ends with an event within the bounds, if given.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from itertools import pairwise
from operator import le
from pathlib import Path
from types import FrameType
from typing import Any

import trio

import s4node
from s4node import App, Client, Config, Container, Event, ProcessingElement
from s4node.app.stream import Stream
from s4node.net.ingress import connection

PACKAGE = str(Path(s4node.__file__).parent) + "/"
HANDLERS = "<s4node run>"  # the compiled loop of a stream
_WAITS = {"before_io_wait", "after_io_wait"}  # as often as the machine lets others have a turn


class Click(Event):
    user: str
    n: int = 0


class Total(Event):
    user: str
    clicks: int = 0


class Count(ProcessingElement):
    clicks: int = 0
    totals: Stream

    def on_event(self, event: Click) -> None:
        self.clicks += 1
        self.totals.put(Total(event.user, self.clicks))


class Sum(ProcessingElement):
    total: int = 0

    def on_event(self, event: Total) -> None:
        self.total += event.clicks


class Walked(App):
    def on_init(self) -> None:
        count = self.create_pe(Count)
        count.totals = self.create_stream("totals", self.create_pe(Sum), key="user", types=Total)
        self.create_input_stream("clicks", count, key="user", types=Click)


class Walk:
    """Counts the calls of the package in all threads while it is on."""

    def __init__(self) -> None:
        self.on = False
        self._files: list[str] = []

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """For sys.setprofile."""
        if self.on and event == "call":
            file = frame.f_code.co_filename
            if frame.f_code.co_name in _WAITS:
                return
            if file.startswith(PACKAGE) or file == HANDLERS:
                self._files.append(file)

    def taken(self) -> dict[str, int]:
        """The counts since the last call."""
        files, self._files = self._files, []
        hops = sum(one != other for one, other in pairwise(files))
        return {"files": len(set(files)), "hops": hops, "calls": len(files)}


async def walk(grade: str, events: int, *bounds: int) -> list[dict[str, int]]:
    """Send events one by one; what each touches."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "s4.listener.address": "tcp://127.0.0.1:0",
            "s4.state.folder": folder,
            "s4.stream.clicks.grade": grade,
        }
        if grade == "durable":
            settings["task.commit.ms"] = "0"  # a commit for each event
        connection.VERDICT_SECONDS = 0.0
        container = Container(Walked("walked"), Config.from_values(settings))
        counted = Walk()
        threading.setprofile(counted.profile)
        found = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(container.run)
            await container.ready.wait()
            async with Client(container.address) as client:
                stream = await client.stream("clicks")
                for n in range(20 + events):
                    if n == 20:  # from here on nothing happens for the first time
                        sys.setprofile(counted.profile)
                    await trio.sleep(0.05)  # so that nothing of the event before is under way
                    counted.on = n >= 20
                    await stream.send(Click("joe", n))
                    await stream.flush()
                    counted.on = False
                    if n >= 20:
                        found.append(counted.taken())
                        if bounds and all(map(le, found[-1].values(), bounds)):
                            break
                sys.setprofile(None)
            container.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(trio.run(walk, sys.argv[1], *map(int, sys.argv[2:]))))
