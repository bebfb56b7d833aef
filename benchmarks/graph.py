"""graph: an app as a whole: nine PEs, windows, a join and timers, of which all is saved.

Rides of 500 drivers in 30 cities come in disorder by up to 20 seconds. One PE has the state of each
driver and refuses what cannot follow it. Others have the takings of a city by window, how soon a
request is accepted (a join of two streams in the order of time, which is two PEs more), the
requests of a city in overlapping windows and the busiest cities of all; one awaits a call for a
ride, and one is idle. A ride is sent as fast as the app takes it, or 2,000 a second, in twenties.

The limit is the same computed by plain loops in one process, over the events as objects. A run is
checked: its results are equal to those. ``CPU s/M`` is in µs of the app's process a ride, until the
last result; ``producer_us`` is that of the producer.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, Literal

import trio

from benchmarks.runner import (
    Result,
    Role,
    Run,
    answer,
    container_of,
    in_turn,
    listen,
    middle,
    rate_of,
    running,
    usage,
)
from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import Stream
from s4node.app.windows import hopping, tumbling
from s4node.events.event import Event
from s4node.net.client.client import Client
from s4node.pes.aggregates import Aggregates, Count, Sum, Top
from s4node.pes.pairs import Pairs

RATE = 2000
_SMALL, _LARGE = 20, 2048
_FIRST = 1_700_000_100.0
_DISORDER, _LATENESS = 20.0, 60.0
_SOON = 120.0
"""Seconds in which a request is accepted, to count as matched."""
_END = 2000.0
"""Seconds after the last ride that end all windows."""
_CLOSING = 200
"""Rides that end the windows of all partitions."""
_PATIENCE = 60.0

Status = Literal["requested", "accepted", "started", "finished", "cancelled"]
_NEXT: dict[str, dict[str, str]] = {
    "": {"requested": "requested"},
    "requested": {"accepted": "accepted", "cancelled": ""},
    "accepted": {"started": "started", "cancelled": ""},
    "started": {"finished": ""},
}
"""By the state of a driver, what may follow, and the state after it."""


class Ride(Event):
    """The outcome of a ride."""

    ride: str
    driver: str
    city: str
    status: Status
    price: int
    at: float


class Position(Event):
    """Where a driver is; nobody says it here."""

    driver: str
    at: float


class Trip(Event):
    ride: str
    driver: str
    city: str
    price: int
    at: float


class Requested(Event):
    ride: str
    city: str
    at: float


class Accepted(Event):
    ride: str
    at: float


class Requests(Event):
    """The requests of a city in five minutes."""

    city: str
    requests: int
    at: float


found: dict[str, Any] = {}
"""The results of this process's PEs."""


def _nothing() -> dict[str, Any]:
    return {
        "refused": 0,
        "trips": 0,
        "takings": [],
        "matched": 0,
        "in_ms": 0,
        "alone": 0,
        "top": [],
    }


class Driver(ProcessingElement):
    """The ride of a driver."""

    finished: Stream
    called: Stream
    requested: Stream
    by_city: Stream
    accepted: Stream
    state: str = ""
    ride: str = ""
    done: int = 0

    def on_event(self, ride: Ride) -> None:
        after = _NEXT[self.state].get(ride.status)
        if after is None or (self.state and ride.ride != self.ride):
            found["refused"] += 1
            return
        self.state, self.ride = after, ride.ride
        if ride.status == "requested":
            requested = Requested(ride.ride, ride.city, ride.at)
            self.requested.put(requested)
            self.by_city.put(requested)
        elif ride.status == "accepted":
            self.accepted.put(Accepted(ride.ride, ride.at))
        elif ride.status == "finished":
            self.done += 1
            trip = Trip(ride.ride, ride.driver, ride.city, ride.price, ride.at)
            self.finished.put(trip)
            if ride.city == "city0":
                self.called.put(trip)


class Takings(Aggregates, of=Trip):
    """A city's revenue in five minutes."""

    cents = Sum("price")
    rides = Count()

    def on_window(self) -> None:
        found["takings"].append([self.key, self.window.start, self.cents, self.rides])


class Matching(Pairs, left=Requested, right=Accepted, within=(0, _SOON)):
    """Requests, and when they were accepted."""

    def on_pair(self, left: Requested, right: Accepted) -> None:
        found["matched"] += 1
        found["in_ms"] += round((right.at - left.at) * 1000)

    def on_alone(self, _left: Requested) -> None:
        found["alone"] += 1


class Asked(Aggregates, of=Requested):
    """The requests of a city in five minutes, each minute."""

    counts: Stream
    n = Count()

    def on_window(self) -> None:
        self.counts.put(Requests(str(self.key), self.n, self.window.last))


class Busiest(Aggregates, of=Requests):
    """The cities with most requests."""

    top = Top(10, "requests", of="city")

    def on_window(self) -> None:
        found["top"].append([self.window.start, [requests for requests, _ in self.top]])


class Activity(ProcessingElement):
    """Drivers of whom nothing is heard."""

    def on_event(self, position: Position) -> None:
        self.at(position.at + 600, "inactive")

    def on_timer(self, name: str) -> None:
        raise AssertionError(name)


class Call(ProcessingElement):
    """Awaits a call for each ride."""

    n: int = 0

    async def on_event(self, _trip: Trip) -> None:
        await trio.lowlevel.checkpoint()
        self.n += 1
        found["trips"] += 1


def graph() -> App:
    """The app; ``rides`` is its input."""
    app = App("graph")
    driver, takings, matching = (
        app.create_pe(Driver),
        app.create_pe(Takings),
        app.create_pe(Matching),
    )
    asked, busiest = app.create_pe(Asked), app.create_pe(Busiest)
    activity, call = app.create_pe(Activity), app.create_pe(Call)
    takings.set_window(tumbling(300), grace=60)
    asked.set_window(hopping(300, every=60))
    busiest.set_window(tumbling(60))
    timed: dict[str, Any] = {"time": "at", "lateness": _LATENESS}
    asked.counts = app.create_stream("counts", busiest, key=_all, types=Requests, time="at")
    driver.finished = app.create_stream("finished", takings, key="city", types=Trip, **timed)
    driver.by_city = app.create_stream("by-city", asked, key="city", types=Requested, **timed)
    timed_in_order = {**timed, "order": "time"}
    driver.requested = app.create_stream(
        "requested", matching, key="ride", types=Requested, **timed_in_order
    )
    driver.accepted = app.create_stream(
        "accepted", matching, key="ride", types=Accepted, **timed_in_order
    )
    driver.called = app.create_stream("called", call, key="driver", types=Trip)
    driver.called.set_parallelism(50)
    app.create_input_stream("rides", driver, key="driver", types=Ride, **timed)
    app.create_input_stream("positions", activity, key="driver", types=Position, **timed)
    return app


def _all(_event: Requests) -> str:
    return "all"


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each rate and number of partitions."""
    runs, many, few = (1, 4000, 1000) if quick else (5, 100_000, 20_000)
    sides: dict[tuple[str, str], Callable[[], Run]] = {("plain loops", ""): partial(_plain, many)}
    for rate, events in ((0, many), (RATE, few)):
        for partitions in ("1", "6"):
            name = f"{rate:,} a second" if rate else "full speed"
            sides[name, partitions] = partial(_system, rate, events, partitions)
    measured = in_turn(sides, runs, say)
    limit = rate_of(measured.pop(("plain loops", "")))
    results = []
    for (rate_name, partitions), ones in measured.items():
        own = limit if rate_name == "full speed" else None
        result = Result.of("graph", ones, own, rate=rate_name, partitions=partitions)
        result.notes["producer_us"] = middle([one["producer_us"] for one in ones])
        results.append(result)
    return results


def _plain(events: int) -> Run:
    rides = made_rides(events)
    began = time.perf_counter()
    computed(rides)
    return {"events": events, "seconds": time.perf_counter() - began}


def _system(rate: int, events: int, partitions: str) -> Run:
    expected = computed(made_rides(events))
    with (
        TemporaryDirectory(prefix="s4-bench-") as folder,
        Role("graph.node", folder=folder, partitions=partitions) as node,
    ):
        address = node.hear()["address"]
        with Role("graph.producer", address=address, rate=rate, events=events) as producer:
            producer.hear()
            node.tell({})
            began = time.perf_counter()
            producer.tell({})
            sent = producer.hear()
        node.tell({"expected": _size(expected)})
        got = node.hear()
        seconds = time.perf_counter() - began
    return {
        "events": events,
        "seconds": seconds,
        "cpu_s": got["cpu_s"],
        "rss_mb": got["rss_mb"],
        "producer_us": sent["cpu_s"] / events * 1e6,
        "checked": got["found"] == expected and not sent["refused"],
    }


def _size(results: dict[str, Any]) -> int:
    return sum(one if isinstance(one, int) else len(one) for one in results.values())


# -- the roles -------------------------------------------------------------------------------------


def node(task: dict[str, Any]) -> None:
    """Run the app; report what it has found, and its CPU time between two messages."""
    found.update(_nothing())
    values = {
        "s4.cluster.partitions": task["partitions"],
        "s4.stream.rides.grade": "durable",
        "s4.state.folder": task["folder"],
    }

    async def main() -> None:
        async with running(container_of(graph(), values)) as container:
            answer(address=container.address)
            await trio.to_thread.run_sync(listen)
            before = usage()["cpu_s"]
            expected = (await trio.to_thread.run_sync(listen))["expected"]
            so_far = _size(found)
            with trio.move_on_after(_PATIENCE):
                while so_far < expected:
                    await trio.sleep(0.01)
                    so_far = _size(found)
            used = usage()
            used["cpu_s"] -= before
            answer(found=_sorted(found), **used)

    trio.run(main)


def producer(task: dict[str, Any]) -> None:
    """Send rides, and then what ends all windows; report the CPU time."""
    rate, rides = task["rate"], made_rides(task["events"])
    size = _SMALL if rate else _LARGE
    parts = [rides[first : first + size] for first in range(0, len(rides), size)]
    end = max(ride.at for ride in rides) + _END
    closing = [Ride("", f"end{n}", "", "cancelled", 0, end) for n in range(_CLOSING)]

    async def main() -> None:
        async with Client(task["address"]) as client:
            stream = await client.stream("rides", types=Ride)
            answer()
            await trio.to_thread.run_sync(listen)
            before, began = usage()["cpu_s"], trio.current_time()
            for number, part in enumerate(parts):
                if rate:
                    await trio.sleep_until(began + number * size / rate)
                await stream.send_many(part)
            await stream.send_many(closing)
            refused = await stream.flush()
            answer(cpu_s=usage()["cpu_s"] - before, refused=len(refused))

    trio.run(main)


# -- the rides, and their results ------------------------------------------------------------------


def made_rides(count: int) -> list[Ride]:
    """The first rides of all drivers, about in the order of time; one of them is quick."""
    chance = random.Random(7)
    rides: list[Ride] = []
    drivers = [(_FIRST + chance.uniform(_DISORDER, 80), n, "", "", "") for n in range(500)]
    heapq.heapify(drivers)
    while len(rides) < count:
        now, number, state, ride, city = drivers[0]
        if not state:
            ride, city, status = f"ride{len(rides)}", f"city{chance.randrange(30)}", "requested"
        elif chance.random() < 0.02:
            status = chance.choice(["requested", "finished" if state != "started" else "accepted"])
        else:
            cancels = state == "requested" and chance.random() < 0.1
            status = "cancelled" if cancels else next(iter(_NEXT[state]))
        price = chance.randrange(300, 5000) if status == "finished" else 0
        at = round(now - chance.uniform(0, _DISORDER), 3)
        rides.append(Ride(ride, f"driver{number}", city, status, price, at))  # type: ignore[arg-type]
        state = _NEXT[state].get(status, state)
        now += chance.uniform(5, 110) * (0.04 if number == 17 else 1)
        heapq.heapreplace(drivers, (now, number, state, ride, city))
    return rides


def computed(rides: Iterable[Ride]) -> dict[str, Any]:
    """The results of the app for these rides, by plain loops."""
    results = _nothing()
    drivers: dict[str, tuple[str, str]] = {}
    requested: dict[str, float] = {}
    takings: dict[tuple[str, float], list[int]] = defaultdict(lambda: [0, 0])
    asked: dict[float, Counter[str]] = defaultdict(Counter)
    for ride in rides:
        state, current = drivers.get(ride.driver, ("", ""))
        after = _NEXT[state].get(ride.status)
        if after is None or (state and ride.ride != current):
            results["refused"] += 1
            continue
        drivers[ride.driver] = after, ride.ride
        if ride.status == "requested":
            requested[ride.ride] = ride.at
            for hop in range(5):
                asked[ride.at // 60 * 60 + hop * 60][ride.city] += 1
        elif ride.status == "accepted":
            after_s = ride.at - requested[ride.ride]
            if 0 <= after_s <= _SOON:
                results["matched"] += 1
                results["in_ms"] += round(after_s * 1000)
        elif ride.status == "finished":
            results["trips"] += ride.city == "city0"
            one = takings[ride.city, ride.at // 300 * 300]
            one[0] += ride.price
            one[1] += 1
    results["alone"] = len(requested) - results["matched"]
    results["refused"] += _CLOSING
    results["takings"] = [[city, start, *one] for (city, start), one in takings.items()]
    results["top"] = [
        [start, [n for _, n in counts.most_common(10)]] for start, counts in asked.items()
    ]
    return _sorted(results)


def _sorted(results: dict[str, Any]) -> dict[str, Any]:
    return {name: sorted(one) if isinstance(one, list) else one for name, one in results.items()}
