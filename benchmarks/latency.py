"""One-by-one sends on a fixed schedule, from the intended send time to ``on_event``.

latency: open loop, so a late send does not move later ones. For comparison the same frames are
sent, in turn, with pynng's plain blocking send and receive, one way, at the same times. Both
senders are paced by the same kernel timer (timerfd), which is exact to some microseconds; all times
are ``CLOCK_MONOTONIC`` in seconds, the same in every process of a machine. Both exclude imported
objects from garbage collection, as nodes do and as any program should that needs latencies of
milliseconds: collecting them takes 15 ms.

tls: the keyed count and the latency with certificates, in turn with the same without. The limit is
the speed without TLS, on the same machine at the same time.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import pynng
import trio

from benchmarks import keyed_count
from benchmarks.runner import (
    Result,
    Role,
    Run,
    answer,
    container_of,
    in_turn,
    rate_of,
    running,
    usage,
)
from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.config.config import Config
from s4node.events.event import Event
from s4node.events.schema import EventType
from s4node.net.certificates.authority import Authority
from s4node.net.certificates.credentials import Credentials
from s4node.net.client.client import Client
from s4node.net.wire import frame as wire
from s4node.process.stopping import tune_python

RATES = (1_000, 5_000, 10_000)
_TFD_NONBLOCK, _TFD_TIMER_ABSTIME, _CLOCK_MONOTONIC = 0o4000, 1, 1
_LEAD = 0.2
_TLS_RATE = 5_000
_TLS = {"s4.listener.address": "tls+tcp://127.0.0.1:0"}


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each rate; percentiles are medians over runs that together last 30 s."""
    runs, seconds = (1, 0.5) if quick else (5, 6.0)
    results = []
    for rate in RATES:
        sides = {
            f"{rate:,} events a second, {receiver}": partial(measure, receiver, rate, seconds)
            for receiver in ("bare", "delay")
        }
        bare, system = in_turn(sides, runs, say).values()
        result = _result("latency", system, rate)
        result.limit_events_per_s = rate
        bare_p99 = median(one["p99_ms"] for one in bare)
        assert result.p99_ms is not None
        result.ratio = result.p99_ms / bare_p99
        result.checked = all(one["checked"] for one in (*system, *bare))
        result.notes = {
            "bare_p50_ms": median(one["p50_ms"] for one in bare),
            "bare_p99_ms": bare_p99,
            "max_ms": max(one["max_ms"] for one in system),
        }
        results.append(result)
    return results


def run_tls(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for the keyed count over 64 partitions, and one for the latency."""
    runs, seconds = (1, 0.5) if quick else (5, 5.5)
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority.in_folder(Path(folder))
        node = _settings(authority, "s4://default/node/node") | _TLS
        producer = _settings(authority, "s4://default/producer/producer")
        count = partial(keyed_count.system, 64, seconds)
        delay = partial(measure, "delay", _TLS_RATE, seconds)
        sides = {
            "the count": count,
            "the count with TLS": partial(count, settings=node, **producer),
            "the latency": delay,
            "the latency with TLS": partial(delay, node, **producer),
        }
        plain, secured, plain_delay, delay_of_tls = in_turn(sides, runs, say).values()
    counted = Result.of("tls", secured, rate_of(plain), partitions=64)
    counted.checked = all(one["checked"] for one in (*plain, *secured))
    timed = _result("tls", delay_of_tls, _TLS_RATE)
    p50, p99 = (median(one[key] for one in plain_delay) for key in ("p50_ms", "p99_ms"))
    assert timed.p99_ms is not None
    timed.checked = all(one["checked"] for one in (*plain_delay, *delay_of_tls))
    timed.notes = {"plain_p50_ms": p50, "plain_p99_ms": p99, "p99_ms_more": timed.p99_ms - p99}
    return [counted, timed]


def _result(name: str, runs: list[Run], rate: int) -> Result:
    """The row of some runs of one rate, with the medians of their percentiles."""
    result = Result.of(name, runs)
    result.events_per_s = rate
    result.p50_ms = median(one["p50_ms"] for one in runs)
    result.p99_ms = median(one["p99_ms"] for one in runs)
    return result


def measure(
    receiver: str,
    rate: int,
    seconds: float,
    settings: Mapping[str, str] = MappingProxyType({}),
    **task: Any,
) -> Run:
    """One run; the receiver ``delay`` is our node, ``bare`` a plain pynng socket. ``settings`` are
    the node's, and ``task`` is more for the sender."""
    count = int(rate * seconds)
    with Role(f"latency.{receiver}", count=count, settings=dict(settings)) as receiving:
        address = receiving.hear()["address"]
        sender = "latency.timed" if receiver == "delay" else "latency.bare_timed"
        with Role(sender, address=address, rate=rate, count=count, **task) as sending:
            cpu_s = sending.hear()["cpu_s"]
            found = receiving.hear()
    return {
        **found,
        "seconds": seconds,
        "cpu_s": found["cpu_s"] + cpu_s,
        "checked": found["events"] == count,
    }


def _settings(authority: Authority, identity: str) -> dict[str, str]:
    """The settings of a holder of a new certificate."""
    holder = authority.issue([identity], 1)
    config = Config.load([authority.folder / holder.name / "tls.properties"], {})
    return {entry.name: entry.text for entry in config.items() if entry.origin != "default"}


# -- the roles -------------------------------------------------------------------------------------


class Timed(Event):
    """An event with its intended send time."""

    key: str
    value: int
    due: float


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
        return self.start + number / self.rate


def timed(task: dict[str, Any]) -> None:
    """Send ``count`` events one by one through the trio client."""

    async def main() -> None:
        credentials = Credentials.in_options(task)
        async with Client(task["address"], credentials=credentials) as client:
            stream = await client.stream("timed")
            tune_python()
            schedule = Schedule(task["rate"])
            before, sent, ticks = usage()["cpu_s"], 0, 0
            while sent < task["count"]:
                await trio.lowlevel.wait_readable(schedule.fd)
                ticks = min(ticks + schedule.ticks(), task["count"])
                while sent < ticks:
                    await stream.send(Timed("latency", sent, schedule.due(sent)))
                    sent += 1
            await stream.flush()
            answer(cpu_s=usage()["cpu_s"] - before)

    trio.run(main)


def bare_timed(task: dict[str, Any]) -> None:
    """Send the same frames through a plain pynng socket."""
    kind = EventType(Timed)
    socket = pynng.Pair0(send_buffer_size=128)
    socket.dial(task["address"], block=True)
    tune_python()
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
    answer(cpu_s=usage()["cpu_s"] - before)
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
        async with running(container_of(app, task.get("settings", {}))) as container:
            before = usage()["cpu_s"]
            answer(address=container.address)
            while len(late) < task["count"]:  # noqa: ASYNC110 - an Event would cost time
                await trio.sleep(0.05)
            answer(**_percentiles(late), cpu_s=usage()["cpu_s"] - before)

    trio.run(main)


def bare(task: dict[str, Any]) -> None:
    """Run a plain pynng socket that notes when each frame arrives."""
    late: list[float] = []
    socket = pynng.Pair0(recv_buffer_size=128)
    listener = socket.listen("tcp://127.0.0.1:0")
    before = usage()["cpu_s"]
    answer(address=f"tcp://127.0.0.1:{_port(listener.local_address.port)}")
    for _ in range(task["count"]):
        data = socket.recv()
        arrived = time.monotonic()
        late.append(arrived - struct.unpack(">d", data[-8:])[0])
    answer(**_percentiles(late), cpu_s=usage()["cpu_s"] - before)
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
