"""scale: how many partitions move, and how long they pause, when nodes become 4 and 3 again.

The nodes keep their state at a folder's URL, and find each other through a ZooKeeper if Spark and
kazoo are installed, or else in a folder. A producer sends events with all keys in turn, and a probe
to each partition every 50 ms. The app notes the longest time between two probes of a partition; the
state moves with it, so that includes the hand-over. ``worst_moved_s`` is that of the moved
partitions, ``worst_other_s`` that of the others; in the first row's time nothing moves. ``checked``
compares the counts at the URL with what was sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from itertools import count

import trio

from benchmarks import servers
from benchmarks.nodes import (
    PAUSE_SECONDS,
    WAIT_SECONDS,
    ZOOKEEPER,
    Click,
    Nodes,
    keys_of_partitions,
    nodes_at,
)
from benchmarks.runner import Result
from s4node.net.client.client import Client
from s4node.net.client.client_stream import ClientStream

PARTITIONS, KEYS, RATE = 60, 1_000_000, 20_000
QUICK = (8, 1_000, 1_000)

_STEADY_SECONDS = 10.0
_STRIDE = 7919
_THREE, _FOURTH = ("one", "two", "three"), "four"
_STEPS = ("nothing moves", "3 to 4 nodes", "4 to 3 nodes")
_SOURCE = """
import time

from s4node import App, Event, ProcessingElement


class Click(Event):
    key: str


class Count(ProcessingElement):
    clicks: int = 0
    last: float = 0.0
    longest: float = 0.0

    def on_event(self, event: Click) -> None:
        self.clicks += 1
        if event.key.startswith("probe"):
            now = time.monotonic()
            if self.last:
                self.longest = max(self.longest, now - self.last)
            self.last = now


class Counting(App):
    def on_init(self):
        self.create_input_stream("clicks", self.create_pe(Count), key="key")
"""


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each step."""
    partitions, keys, rate = QUICK if quick else (PARTITIONS, KEYS, RATE)
    place = ZOOKEEPER if servers.can_run_zookeeper() and not quick else "folder"
    with nodes_at(place, partitions) as nodes:
        scaling = _Scaling(nodes, keys, rate, 1.0 if quick else _STEADY_SECONDS, say)
        trio.run(scaling.run)
        counted, pauses = _counted(nodes)
    results = []
    for step, moved in zip(_STEPS, scaling.moved, strict=True):
        found = [pauses.get(key, 0.0) for key in keys_of_partitions(partitions, _prefix(step))]
        others = [found[each] for each in range(partitions) if each not in moved]
        results.append(
            Result(
                "scale",
                events=scaling.sent,
                events_per_s=scaling.rate,
                checked=counted == scaling.sent,
                notes={
                    "step": step,
                    "partitions": partitions,
                    "moved": len(moved),
                    "worst_moved_s": max((found[each] for each in moved), default=0.0),
                    "worst_other_s": max(others, default=0.0),
                    "keys": keys,
                },
            )
        )
    return results


class _Scaling:
    """One run; ``moved`` has the partitions with another owner after each step."""

    def __init__(
        self, nodes: Nodes, keys: int, rate: int, steady: float, say: Callable[[str], None]
    ) -> None:
        self.sent = 0
        self._seconds = 0.0
        self.moved: list[set[int]] = []
        self._nodes = nodes
        self._keys = keys
        self._batch = int(rate * PAUSE_SECONDS)
        self._steady = steady
        self._say = say
        self._stream: ClientStream

    @property
    def rate(self) -> float:
        """The events that were sent in a second of the steps."""
        return (self.sent - self._keys) / self._seconds

    async def run(self) -> None:
        with ExitStack() as stack:
            addresses = [await self._start(stack, name) for name in _THREE]
            await trio.to_thread.run_sync(self._nodes.deploy, _SOURCE)
            async with Client(addresses, timeout=WAIT_SECONDS) as client:
                self._stream = await client.stream("clicks", types=Click)
                self._say(f"{self._keys:,} keys in {self._nodes.partitions} partitions")
                await self._send_keys([f"key-{number}" for number in range(self._keys)])
                await self._stream.flush()
                async with self._step(_STEPS[0]):
                    await trio.sleep(self._steady)
                async with self._step(_STEPS[1]):
                    await self._start(stack, _FOURTH)
                    await self._wait_owners({*_THREE, _FOURTH})
                async with self._step(_STEPS[2]):
                    await trio.to_thread.run_sync(self._nodes.command, "drain", _FOURTH)
                    await self._wait_owners(set(_THREE))
                await self._stream.flush()

    async def _start(self, stack: ExitStack, name: str) -> str:
        node = self._nodes.node(name)
        return (await trio.to_thread.run_sync(stack.enter_context, node))[1]

    @asynccontextmanager
    async def _step(self, step: str) -> AsyncIterator[None]:
        """Send events and probes during the block, and note which partitions it moves."""
        self._say(step)
        before = await self._nodes.wait_owners()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_probes, _prefix(step))
            yield
            await trio.sleep(20 * PAUSE_SECONDS)
            nursery.cancel_scope.cancel()
        self._seconds += trio.current_time() - began
        after = await self._nodes.wait_owners()
        self.moved.append({p for p, owner in enumerate(before) if after[p] != owner})

    async def _send_probes(self, prefix: str) -> None:
        probes = keys_of_partitions(self._nodes.partitions, prefix)
        started = trio.current_time()
        for number in count(1):
            first = number * self._batch
            others = [
                f"key-{each * _STRIDE % self._keys}" for each in range(first, first + self._batch)
            ]
            await self._send_keys([*probes, *others])
            await trio.sleep_until(started + number * PAUSE_SECONDS)

    async def _send_keys(self, keys: list[str]) -> None:
        with trio.CancelScope(shield=True):  # so that what was sent is known
            await self._stream.send_many(map(Click, keys))
            self.sent += len(keys)

    async def _wait_owners(self, names: set[str]) -> None:
        """Return once these nodes share the partitions out evenly."""

        def even(owners: list[str]) -> bool:
            shares = [owners.count(name) for name in names]
            return set(owners) == names and max(shares) - min(shares) < 2

        await self._nodes.wait_owners(even)


def _prefix(step: str) -> str:
    """The beginning of the keys of a step's probes."""
    return f"probe {step} "


def _counted(nodes: Nodes) -> tuple[int, dict[str, float]]:
    """The counts at the URL, and the longest pause of each probe."""
    counted, pauses = 0, dict[str, float]()
    for state in nodes.states():
        for key, row in state.instances("Count"):
            counted += row["clicks"]
            if row["longest"]:
                pauses[str(key)] = row["longest"]
    return counted, pauses
