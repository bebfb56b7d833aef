"""ClusterTest: an app on several hosts in one process, which are killed, cut and paused by a seed.

Rules
- The seed decides all that happens: the same seed gives the same trace.
- Programs that send are on a host of their own, which has no faults.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, overload

import trio

from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.errors import S4Error
from s4node.events.keys import Key
from s4node.net.client.client import Client
from s4node.net.egress.refusal import Refusal
from s4node.runtime.task.gate import Phase
from s4node.runtime.task.pe_processor import PeProcessor
from s4node.testing.app_test import prototype_of
from s4node.testing.faults import Fault, schedule
from s4node.testing.hosts import POINTS, SESSION_SECONDS, Host, Hosts
from s4node.testing.memory_network import Message
from s4node.testing.runs import waits_of
from s4node.testing.runtime import shared_folder
from s4node.testing.seeds import recorded

P = TypeVar("P", bound=ProcessingElement)

_CLIENT_SECONDS = 600.0
"""The program waits for nodes for longer than any fault lasts."""


class ClusterTest:
    """Runs an app on several hosts inside a test, with faults.

    ::

        with ClusterTest(Game, hosts=3, seed=7) as test:
            test.faults(2, seconds=5)
            for n in range(50):
                test.send("hits", Hit(f"player-{n % 5}"))
                test.advance(seconds=0.1)
            test.settle()
            assert test.state(Player, "player-0").points == 10

    ``app`` makes the app of each container: its class, or a function. Live inputs are durable only
    if the ``settings`` say so. State is in a folder of each host and at a URL, both in memory.
    ``parameters`` become ``app.parameters``. A container that ends with an error starts again a
    second later. If the block ends with an error, the seed and the faults are added to it.
    """

    def __init__(
        self,
        app: Callable[[], App],
        *,
        hosts: int = 2,
        partitions: int = 4,
        seed: int = 0,
        parameters: Mapping[str, object] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._app = app
        self._values = {"s4.cluster.partitions": str(partitions), **(settings or {})}
        self._values |= {f"s4.app.{name}": str(value) for name, value in (parameters or {}).items()}
        self._partitions = partitions
        self._seed = seed
        self._names = [f"host{number}" for number in range(1, hosts + 1)]
        self.refused: list[Refusal] = []
        """Events that will not be processed, and why."""
        self.planned: list[Fault] = []
        """The faults, in the order of their planning."""
        self._sent: Counter[str] = Counter()
        self._settled: Counter[str] = Counter()
        self._waiting: list[tuple[str, list[Any]]] = []
        self._more = trio.Event()
        self._folder: tempfile.TemporaryDirectory[str]
        self._hosts: Hosts

    def __enter__(self) -> ClusterTest:
        self._folder = tempfile.TemporaryDirectory(prefix="s4-test-", dir=shared_folder())
        folder = Path(self._folder.name)
        self._hosts = Hosts(folder, self._names, self._app, self._values, self._seed)
        run = recorded.get()
        if run is not None:
            run.traces.append(self.trace)
        try:
            for host in self._each:
                self._hosts.start(host)
            self._hosts.world.start_soon(self._program)
            self.settle()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            faults = "".join(f"\n    {fault}," for fault in self.planned)
            error.add_note(f"ClusterTest: seed={self._seed}, faults: [{faults}]")
        self._close()

    def _close(self) -> None:
        try:
            self._hosts.close()
        finally:
            self._folder.cleanup()

    @property
    def _each(self) -> Sequence[Host]:
        return list(self._hosts.each.values())

    # -- what a test does --------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The time in seconds; it begins at 0, and is what ``app.clock()`` returns."""
        return self._hosts.world.now

    def send(self, stream: str, *events: Any) -> None:
        """Have a program send events to an input, in order. It resends what has no verdict."""
        self._waiting.append((stream, list(events)))
        self._sent[stream] += len(events)
        self._hosts.world.call(lambda: self._more.set())
        self._raise_failure()

    def advance(self, seconds: float) -> None:
        """Move the clock, and run what falls due on the way; faults, too."""
        self._hosts.world.pass_time(seconds)
        self._raise_failure()

    def plan(self, *faults: Fault) -> None:
        """Have these faults happen. Raises S4Error for an unknown host."""
        for fault in faults:
            self._hosts.plan(fault)
            self.planned.append(fault)

    def faults(self, count: int, *, seconds: float) -> list[Fault]:
        """Plan so many faults, chosen by the seed, that begin within ``seconds`` from now."""
        found = schedule(
            self._seed,
            self._names,
            count=count,
            start=self.now,
            seconds=seconds,
            session_seconds=SESSION_SECONDS,
            points=POINTS,
        )
        run = recorded.get()
        if run is not None:
            first = len(run.chosen)
            run.chosen.extend(found)
            found = [f for number, f in enumerate(found, first) if number not in run.left_out]
        self.plan(*found)
        return found

    def settle(self, seconds: float = 30) -> None:
        """Wait until all faults have ended, and then until the cluster is healthy by itself.

        It is healthy if each host runs, each partition runs on one, all that was sent is
        committed, and no event is on its way. Raises S4Error if that takes more than ``seconds`` of
        the clock; it says what is missing, and where each task waits.
        """
        self.advance(max([0.0, *(fault.until - self.now for fault in self.planned)]))
        self._hosts.world.pass_time(seconds, lambda: not self._missing())
        self._raise_failure()
        missing = self._missing()
        if missing:
            raise S4Error(
                f"not healthy {seconds:g} s after the last fault: {'; '.join(missing)}\n"
                + "\n".join(self._waits())
            )

    # -- what a test looks at ----------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """The number of events that were sent and have no verdict: in a durable stream, those that
        are not committed."""
        return self._sent.total() - self._settled.total()

    @property
    def trace(self) -> list[Message]:
        """Every message that has arrived: time, sending host, receiving host, bytes."""
        return self._hosts.world.network.trace

    @property
    def errors(self) -> dict[str, list[Exception]]:
        """What has ended containers, by host."""
        return {host.name: host.errors for host in self._each}

    @overload
    def state(self, pe: type[P], key: Key | None = None) -> P: ...

    @overload
    def state(self, pe: str, key: Key | None = None) -> Any: ...

    def state(self, pe: str | type[ProcessingElement], key: Key | None = None) -> Any:
        """The PE's instance of ``key``, or a copy of the saved one if it is not in memory.

        Name the PE by its class, or by its name if several have that class. Raises LookupError if
        there is no instance.
        """
        for host in self._each:
            if host.container is None:
                continue
            name = prototype_of(host.container.app, pe).name
            for task in host.container.tasks.values():
                if isinstance(task.processor, PeProcessor):
                    found = task.processor.instance_of(name, key)
                    if found is not None:
                        return found
        raise LookupError(f"{pe} has no instance of key {key!r} on any host")

    # -- inside ------------------------------------------------------------------------------

    async def _program(self) -> None:
        addresses = [host.address for host in self._each]
        async with Client(addresses, producer="program", timeout=_CLIENT_SECONDS) as client:
            while True:
                await self._more.wait()
                self._more = trio.Event()
                waiting, self._waiting = self._waiting, []
                counts: Counter[str] = Counter()
                for name, events in waiting:
                    await (await client.stream(name)).send_many(events)
                    counts[name] += len(events)
                for name in counts:
                    self.refused += await (await client.stream(name)).flush()
                self._settled += counts

    def _missing(self) -> list[str]:
        """What is not as it is in a healthy cluster."""
        found = []
        for name, count in self._sent.items():
            if self._settled[name] < count:
                found.append(f"{count - self._settled[name]} events to {name!r} are not committed")
        owned: Counter[int] = Counter()
        for host in self._each:
            container = host.container
            if container is None or not container.ready.is_set():
                last = f" ({host.errors[-1]})" if host.errors else ""
                found.append(f"{host.name} does not run{last}")
                continue
            running = {
                partition
                for partition, task in container.tasks.items()
                if task.gate.phase is Phase.RUNNING
            }
            owned.update(running)
            replay = container.replay
            moving = replay is not None and not replay.exchange.idle
            if moving or not container.parts.loop.idle:
                found.append(f"events are on their way on {host.name}")
        counts = {partition: owned[partition] for partition in range(self._partitions)}
        found += [
            f"partition {p} runs on {count} hosts" for p, count in counts.items() if count != 1
        ]
        return found

    def _waits(self) -> Iterator[str]:
        for host in self._each:
            if host.run is not None:
                for line in waits_of(host.run):
                    yield f"  {host.name}: {line}"

    def _raise_failure(self) -> None:
        if self._hosts.world.failures:
            raise self._hosts.world.failures[0]
