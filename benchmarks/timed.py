"""The roles of the latency benchmark: senders on a schedule, and receivers that read the clock.

Both senders are paced by the same kernel timer (timerfd), which is exact to some microseconds; all
times are ``CLOCK_MONOTONIC`` in seconds, the same in every process of a machine. Both exclude
imported objects from garbage collection, as nodes do and as any program should that needs latencies
of milliseconds: collecting them takes 15 ms.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import struct
import sys
import time
from typing import Any

import pynng
import trio

from benchmarks.process import usage
from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.config.config import Config
from s4node.events.event import Event
from s4node.events.schema import EventType
from s4node.net.certificates.credentials import Credentials
from s4node.net.client.client import Client
from s4node.net.wire import frame as wire
from s4node.process.serve import tune_python
from s4node.runtime.container.container import Container

_TFD_NONBLOCK, _TFD_TIMER_ABSTIME, _CLOCK_MONOTONIC = 0o4000, 1, 1
_LEAD = 0.2


class Timed(Event):
    """An event with its intended send time."""

    key: str
    value: int
    due: float


def say(**message: Any) -> None:
    """Answer the benchmark."""
    print(json.dumps(message), flush=True)


class Schedule:
    """Ticks at ``start + n / rate``: a file descriptor that is readable once some are due."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.start = time.monotonic() + _LEAD
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK)
        interval = 1_000_000_000 // rate
        first = struct.pack("qqqq", 0, interval, int(self.start), max(1, int(self.start % 1 * 1e9)))
        if self.fd < 0 or self._libc.timerfd_settime(self.fd, _TFD_TIMER_ABSTIME, first, None):
            raise OSError(ctypes.get_errno(), "timerfd")

    def ticks(self) -> int:
        """The number of ticks since the last call; call it when the fd is readable."""
        return int(struct.unpack("Q", os.read(self.fd, 8))[0])

    def due(self, number: int) -> float:
        """When tick ``number`` is due."""
        return self.start + number / self.rate


def timed(task: dict[str, Any]) -> None:
    """Send ``count`` events one by one through the trio client."""

    async def main() -> None:
        credentials = Credentials.in_options(task)
        async with Client(task["address"], credentials=credentials) as client:
            stream = await client.stream("timed")
            tune_python(Config.from_values({}))
            schedule = Schedule(task["rate"])
            before, sent, ticks = usage()["cpu_s"], 0, 0
            while sent < task["count"]:
                await trio.lowlevel.wait_readable(schedule.fd)
                ticks = min(ticks + schedule.ticks(), task["count"])
                while sent < ticks:
                    await stream.send(Timed("latency", sent, schedule.due(sent)))
                    sent += 1
            await stream.flush()
            say(cpu_s=usage()["cpu_s"] - before)

    trio.run(main)


def bare_timed(task: dict[str, Any]) -> None:
    """Send the same frames through a plain pynng socket."""
    kind = EventType(Timed)
    socket = pynng.Pair0(send_buffer_size=128)
    socket.dial(task["address"], block=True)
    tune_python(Config.from_values({}))
    schedule = Schedule(task["rate"])
    poll = select.poll()
    poll.register(schedule.fd, select.POLLIN)
    before, sent, ticks = usage()["cpu_s"], 0, 0
    while sent < task["count"]:
        poll.poll()
        ticks = min(ticks + schedule.ticks(), task["count"])
        while sent < ticks:
            body = kind.encode([Timed("latency", sent, schedule.due(sent))])
            sections = (wire.Section(kind.fingerprint, 1, len(body)),)
            data = wire.Data(
                "timed", 0, "client-0123456789", sent, 1, sections, created_ms=1_700_000_000_000
            )
            socket.send(wire.envelope([wire.encode_frame(data, body)]))
            sent += 1
    say(cpu_s=usage()["cpu_s"] - before)
    sys.stdin.readline()
    socket.close()


def delay(task: dict[str, Any]) -> None:
    """Run a node whose PE notes when each event arrives."""
    late: list[float] = []
    clock = time.monotonic

    class Watch(ProcessingElement):
        def on_event(self, event: Timed) -> None:
            late.append(clock() - event.due)

    async def main() -> None:
        app = App("latency")
        app.create_input_stream("timed", app.create_pe(Watch), key="key")
        own = {"s4.listener.address": "tcp://127.0.0.1:0"}
        container = Container(app, Config.from_values({**own, **task.get("settings", {})}))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(container.run)
            await container.ready.wait()
            tune_python(container.config)
            before = usage()["cpu_s"]
            say(address=container.address)
            while len(late) < task["count"]:  # noqa: ASYNC110 - an Event would cost time
                await trio.sleep(0.05)
            say(**_percentiles(late), cpu_s=usage()["cpu_s"] - before)
            container.stop()

    trio.run(main)


def bare(task: dict[str, Any]) -> None:
    """Run a plain pynng socket that notes when each frame arrives."""
    late: list[float] = []
    socket = pynng.Pair0(recv_buffer_size=128)
    listener = socket.listen("tcp://127.0.0.1:0")
    before = usage()["cpu_s"]
    say(address=f"tcp://127.0.0.1:{_port(listener.local_address.port)}")
    for _ in range(task["count"]):
        data = socket.recv()
        arrived = time.monotonic()
        late.append(arrived - struct.unpack(">d", data[-8:])[0])
    say(**_percentiles(late), cpu_s=usage()["cpu_s"] - before)
    socket.close()


def _port(port: int) -> int:
    """A port in host byte order; pynng gives it in network byte order."""
    return int.from_bytes(port.to_bytes(2, sys.byteorder), "big")


def _percentiles(late: list[float]) -> dict[str, float]:
    ordered = sorted(late)
    return {
        "events": len(ordered),
        "p50_ms": ordered[len(ordered) // 2] * 1000,
        "p99_ms": ordered[int(len(ordered) * 0.99)] * 1000,
        "max_ms": ordered[-1] * 1000,
    }
