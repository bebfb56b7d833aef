"""The processes of a cluster in memory: containers, a log, programs that send, and commands.

Rules
- What a process runs is a function of the process, and starts anew with it.
- A command runs on a host of its own, which has no faults, with the code of ``s4``. If it needs a
  stopped app, the containers stop in order and start again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import trio

from s4node.app.app import App
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.cluster.node.redirector import Redirector
from s4node.config.config import Config
from s4node.deploy.repartition import Repartition
from s4node.deploy.savepoint import SavepointOf, savepoint_of
from s4node.deploy.savepoint_restore import SavepointRestore
from s4node.errors import S4Error
from s4node.log.host import LogHost
from s4node.net.client.client import Client
from s4node.net.egress.refusal import Refusal
from s4node.runtime.container.container import Container
from s4node.testing.hosts import CLUSTER, Hosts, Process
from s4node.testing.memory_store import URL
from s4node.testing.runs import Run, Runs

_CLIENT_SECONDS = 600.0
"""A program waits for nodes for longer than any fault lasts."""


def config_of(folder: Path, values: Mapping[str, str], address: str = "tcp://none:0") -> Config:
    """The settings of a process with this folder, and of commands."""
    return Config.from_values(
        {
            "s4.coordination": "zk://world:1/s4",  # any name: there is one coordination
            "s4.state.url": URL,
            **values,
            "s4.listener.address": address,
            "s4.state.folder": str(folder),
            "s4.watchdog.ms": "0",  # time stands still during a step
            "job.container.thread.pool.size": "0",
        }
    )


def container_of(
    hosts: Hosts, make: Callable[[], App], values: Mapping[str, str], *, of: int, log: str
) -> Callable[[Process], Awaitable[None]]:
    """Runs a container of an app, one ``of`` so many; ``log`` is the address of a log."""

    async def run(process: Process) -> None:
        async with hosts.coordination.session(process.name) as session:
            app = make()
            app.clock = lambda: hosts.world.now
            enrolment = Enrolment(
                session, CLUSTER, app.name, process.name, of, node=process.host.name
            )
            container = process.container = Container(
                app,
                config_of(process.host.folder, values, process.address),
                node=process.name,
                enrolment=enrolment,
                node_log=log,
            )
            process.ready, process.stop = container.ready.is_set, container.stop
            await container.run()

    return run


async def run_log(process: Process) -> None:
    folder = process.host.folder
    values = {"s4.log.folder": str(folder / "log")}
    node = Redirector(config_of(folder, values, process.address), process.name, _no_app)
    stopping = trio.Event()
    process.stop = stopping.set
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        process.log, process.ready = node.log, lambda: True
        await stopping.wait()
        await node.finish()
        nursery.cancel_scope.cancel()


def _no_app(stream: str, reads: bool) -> str:
    del reads
    return f"no app here takes {stream!r}"


def is_busy(container: Container) -> bool:
    parts = container.parts
    outputs = parts.outputs
    sent = any(each.depth for each in outputs.outboxes())
    return not parts.loop.idle or sent or bool(outputs.unacknowledged())


def waiting_in(container: Container) -> int:
    """The number of events that wait in a container, or on their way from it."""
    sent = container.parts.outputs.outboxes() if container.tasks else ()
    stages = (s for task in container.tasks.values() for s in task.backlog.stages.values())
    return sum(each.depth for each in stages) + sum(each.depth for each in sent)


Place = tuple[str, int]
"""A stream of a log, and a partition."""


def read_to(container: Container) -> dict[Place, int]:
    """The offsets at which a restart would resume; -1 for what no commit has yet."""
    return {
        (one.stream, one.partition): -1 if one.committed is None else one.committed
        for one in container.replay.statistics().progress
    }


def ends_of(log: LogHost) -> dict[Place, int]:
    """The next offset of each partition."""
    return {
        (stream.name, partition.number): partition.bounds.upcoming
        for stream in log.hosted
        for partition in stream.partitions
    }


class Program:
    """A program that sends to inputs, each ``at`` the addresses of those who take it.

    Refusals are added to ``refused``. If it ``keeps_id``, a new life sends all that earlier lives
    have sent again; a durable stream knows what it has committed. Without an id a new life sends
    again what had no verdict.
    """

    def __init__(
        self,
        name: str,
        at: Callable[[str], Sequence[str]],
        refused: list[Refusal],
        *,
        keeps_id: bool,
    ) -> None:
        self.sent: dict[str, list[Any]] = {}
        self.settled: Counter[str] = Counter()
        self.process: Process
        self._id = name if keeps_id else ""
        self._at = at
        self._refused = refused
        self._lives = 0
        self._more: trio.Event

    def send(self, stream: str, events: Sequence[Any], runs: Runs) -> None:
        self.sent.setdefault(stream, []).extend(events)
        if self.process.ready():
            runs.soon(self.process.run, lambda: self._more.set())

    @property
    def unanswered(self) -> dict[str, int]:
        """The number of events that have no verdict, by stream."""
        return {name: len(sent) - self.settled[name] for name, sent in self.sent.items()}

    async def run(self, process: Process) -> None:
        again = bool(self._id and self._lives)
        self._lives += 1
        self._more, process.ready = trio.Event(), lambda: True
        handed = Counter[str]() if again else self.settled.copy()
        clients: dict[tuple[str, ...], Client] = {}
        async with AsyncExitStack() as stack:
            while True:
                streams = {}
                for name, events in list(self.sent.items()):
                    fresh = events[handed[name] :]
                    if not fresh:
                        continue
                    handed[name] += len(fresh)
                    addresses = tuple(self._at(name))
                    if addresses not in clients:
                        client = Client(addresses, producer=self._id, timeout=_CLIENT_SECONDS)
                        clients[addresses] = await stack.enter_async_context(client)
                    streams[name] = await clients[addresses].stream(name, again=again)
                    await streams[name].send_many(fresh)
                for name, stream in streams.items():
                    self._refused += await stream.flush()
                    self.settled[name] = handed[name]
                await self._more.wait()
                self._more = trio.Event()


_STOP_SECONDS = 120.0
"""The time for the containers to stop, by the clock of the test."""


class Commands:
    """The commands for an app with these ``members``, its containers."""

    def __init__(self, hosts: Hosts, app: str, config: Config, members: Sequence[Process]) -> None:
        self._hosts = hosts
        self._app = app
        self._config = config
        self._members = members

    def take_savepoint(self, name: str) -> None:
        job = self._job()
        self._hosts.world.run_in_time(lambda: job.take(name))

    def go_back(self, name: str) -> None:
        """Have the app go on from a savepoint; what came after it is lost."""
        with self._stopped():
            job = self._job()
            manifest = job.place.manifest_of(name)
            with job.place.opened(manifest) as saved:
                restore = SavepointRestore(
                    job.app, job.folder, job.config, job.remote_job, manifest, saved
                )
                restore.restore(outputs_again=True, accept_loss=True)

    def repartition(self, partitions: int) -> None:
        with self._stopped():
            job = self._job()
            Repartition(
                job.app, job.folder, job.config, job.guard, partitions, job.remote_job
            ).run()

    def _job(self) -> SavepointOf:
        with self._hosts.world.inside():
            job = savepoint_of(self._app, self._config)
        if job is None:
            raise S4Error(f"app {self._app!r} has no saved state yet; let it commit first")
        return job

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        world = self._hosts.world
        asked: set[Run] = set()

        def stopped() -> bool:
            """Ask those to stop that can by now; one that starts cannot yet."""
            for process in self._members:
                if process.run and process.stop and process.run not in asked:
                    asked.add(process.run)
                    world.runs.soon(process.run, process.stop)
            return not any(each.run for each in self._members)

        self._hosts.held.update(self._members)
        try:
            world.pass_time(_STOP_SECONDS, stopped)
            if any(each.run for each in self._members):
                raise S4Error(f"app {self._app!r} has not stopped within {_STOP_SECONDS:g} s")
            with world.inside():
                yield
        finally:
            self._hosts.held.difference_update(self._members)
            for process in self._members:
                self._hosts.start(process)
