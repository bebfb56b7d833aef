"""An app's container during a test, and the programs that send to it.

Rules
- The container is the real one, also at starts, stops and after crashes. Only its time, its threads
  and its network differ; see ``world``.
- A call returns when nothing more happens at this time.
- The app has no consumers: all events that it puts on any stream are kept in ``put``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import trio

from s4node.app.app import App
from s4node.app.stream import Carrier, InputStream, OutputStream, Stream
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import GraphError, S4Error, WouldBlock
from s4node.events.copies import copies_of
from s4node.net.client.client import Client
from s4node.runtime.container.container import Container
from s4node.runtime.task.task import Task
from s4node.testing.failures import Failures
from s4node.testing.sender import InputSender, LiveSender, OwnSender, Sender
from s4node.testing.world import World

_ADDRESS = "tcp://app:1"
_DEFAULTS = {
    "s4.listener.address": _ADDRESS,
    "s4.watchdog.ms": "0",  # time stands still during a step
    "job.container.thread.pool.size": "0",  # threads are not used
}
_SHARED = "/dev/shm"  # noqa: S108 - a folder of its own is made there
_RECONNECT_SECONDS = 10.0
_DRAIN_SECONDS = 10.0
"""The time for the whole end of a container, beyond task.shutdown.ms."""


class Runtime:
    """Runs an app made by ``make``; every call returns when the app is idle.

    An error that stops a node's app is raised by the current call.
    """

    def __init__(self, make: Callable[[], App], values: dict[str, str]) -> None:
        self.config = Config.from_values({**values, **_DEFAULTS})
        self.failed = False
        self.ended = False
        self.failures = Failures()
        self.senders: dict[str, Sender] = {}
        self.put: dict[str, list[Any]] = {}
        self.overflowing: set[str] = set()
        self.room = trio.lowlevel.ParkingLot()
        self.app: App
        self.container: Container
        self._make = make
        self._client: Client | None = None
        self._scope = trio.CancelScope()
        self.world: World
        self._folder: tempfile.TemporaryDirectory[str]

    # -- life --------------------------------------------------------------------------------

    def set_up(self) -> None:
        """Make the world, and start the first container in it."""
        self._folder = tempfile.TemporaryDirectory(prefix="s4-test-", dir=shared_folder())
        if self.config.origin(settings.STATE_FOLDER) == "default":
            self.config = self.config.with_({"s4.state.folder": self._folder.name})
        self.world = World()
        self.world.inputs.partitions = self.config[settings.CLUSTER_PARTITIONS]
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start a container, for the first time or after a crash."""
        app = self.app = self._make()
        if app._frozen and type(app).on_init is not App.on_init:
            raise GraphError(
                f"app {app.name!r} has run before and declares its graph in on_init; give AppTest "
                f"the class, or a new object"
            )
        self._scope = trio.CancelScope()
        self.container = Container(app, self.config, node="app", listeners=[_Listener(self)])
        self.world.run(self.container.prepare)
        for prototype, _ in app.prototypes.values():
            self.failures.wrap(prototype)
        for stream in app.streams.values():
            self.put.setdefault(stream.name, [])
            if stream.name not in self.senders and not isinstance(stream, OutputStream):
                self.senders[stream.name] = self._sender(stream)
        self.ended = False
        self.world.start_soon(self._live, self.container, self._scope)
        self.wait_idle()

    def _sender(self, stream: Stream) -> Sender:
        if not isinstance(stream, InputStream):
            return OwnSender(self, stream.name)
        return LiveSender(self, stream.name) if stream.is_live else InputSender(self, stream.name)

    async def _live(self, container: Container, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await container.run()
        finally:
            self.ended = True

    def stop(self) -> None:
        """Stop in order, as a node does, once all events that were sent are done."""
        for name in list(self.overflowing):
            self.relieve(name)
        grace = self.config[settings.TASK_SHUTDOWN_MS]
        for sender in self.senders.values():
            sender.hurry()
        self.advance(grace, lambda: self.ended or not self._busy)
        stuck = not self.ended and self._busy
        if not self.ended:
            self.world.call(self.container.stop)
            self.advance(grace + _DRAIN_SECONDS, lambda: self.ended)
        if stuck:
            raise S4Error(
                "the app has handlers that have not ended within task.shutdown.ms; give them what "
                "they wait for before the test ends"
            )

    def crash(self) -> None:
        """End the container at once, without calling any hook, and start another one."""
        self.container.abandon()
        self.world.call(self._scope.cancel)
        self.world.wait_idle()
        self.failures.unwrap()
        self.overflowing.clear()
        self.start()
        connected = lambda: all(sender.connected for sender in self.senders.values())  # noqa: E731
        self.advance(_RECONNECT_SECONDS, connected)

    def close(self) -> None:
        """End whatever still runs."""
        self.failures.unwrap()
        try:
            self.world.close()
        finally:
            self._folder.cleanup()

    @property
    def _busy(self) -> bool:
        """True if events wait, or a handler has not ended."""
        return any(sender.busy for sender in self.senders.values()) or not (
            self.container.parts.loop.idle and not self.container.parts.partitions.has_waiting
        )

    # -- what a test does --------------------------------------------------------------------

    def wait_idle(self) -> None:
        self.world.wait_idle()
        self._raise_failure()

    def advance(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Move the clock, and run what falls due on the way."""
        self.world.pass_time(seconds, until)
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self.world.failures:
            self.failed = True
            raise self.world.failures[0]

    def overflow(self, name: str) -> None:
        """Make the stream's stage full from now on."""
        self.overflowing.add(name)
        order = self.container.parts.pipeline.order
        if isinstance(self.app.streams[name], OutputStream):
            order.filled(name, self)
            return
        order.stick(name)
        for task in self.tasks:
            for stage in _stages(task, name):
                stage.capacity = 1

    def relieve(self, name: str) -> None:
        """End an overflow: waiting events go on."""
        self.overflowing.discard(name)
        order = self.container.parts.pipeline.order
        if isinstance(self.app.streams[name], OutputStream):
            order.emptied(name, self)
        else:
            order.unstick(name)
            for task in self.tasks:
                for stage in _stages(task, name):
                    stage.capacity = stage.settings.capacity
        self.world.call(self._go_on)
        if name in self.senders:
            self.senders[name].go_on()
        self.wait_idle()

    def _go_on(self) -> None:
        self.room.unpark_all()
        for task in self.tasks:
            self.container.parts.loop.wake(task)

    @property
    def tasks(self) -> list[Task]:
        return [task for _, task in sorted(self.container.tasks.items())]

    async def client(self) -> Client:
        """The program that sends from outside; it outlives the app."""
        if self._client is None:
            opened = trio.Event()

            async def live() -> None:
                async with Client(_ADDRESS, producer="test") as client:
                    self._client = client
                    opened.set()
                    await trio.sleep_forever()

            self.world.start_soon(live)
            await opened.wait()
        assert self._client is not None
        return self._client


def shared_folder() -> str | None:
    """A folder in memory for files; None if there is none."""
    return _SHARED if os.access(_SHARED, os.W_OK | os.X_OK) else None


def _stages(task: Task, name: str) -> list[Any]:
    return [stage for stage in task.backlog.stages.values() if stage.settings.stream == name]


class _Listener:
    """Observes streams from when the container's parts exist, before a task starts."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def on_step(self, step: str) -> None:
        """Observe the events that tasks and sources put."""
        if step != "readers":
            return
        runtime = self._runtime
        world = runtime.world
        runtime.app.clock = lambda: world.now
        readers = runtime.container.parts.readers
        for stream in runtime.app.streams.values():
            assert stream.carrier is not None
            stream.check_values()
            readers.look_on(stream.name, _Onlooker(runtime.put[stream.name]))
            stream.carrier = _Carrier(runtime, stream, stream.carrier)


class _Onlooker:
    """Keeps the events that tasks put on a stream."""

    waits = False

    def __init__(self, kept: list[Any]) -> None:
        self._kept = kept

    def deliver(self, events: Sequence[Any]) -> None:
        self._kept += events


class _Carrier:
    """Passes on the events of the app's sources, and keeps them."""

    def __init__(self, runtime: Runtime, stream: Stream, carrier: Carrier) -> None:
        self._runtime = runtime
        self._stream = stream
        self.inner = carrier

    @property
    def pressure(self) -> float:
        """1 while the test makes the stream overflow; otherwise the real one."""
        full = self._stream.name in self._runtime.overflowing
        return max(1.0, self.inner.pressure) if full else self.inner.pressure

    async def send(self, events: Sequence[Any]) -> int:
        while self._stream.name in self._runtime.overflowing:
            await self._runtime.room.park()
        kept = self._checked(events)
        dropped = await self.inner.send(events)
        self._runtime.put[self._stream.name] += kept
        return dropped

    def send_nowait(self, events: Sequence[Any]) -> int:
        if self._stream.name in self._runtime.overflowing:
            raise WouldBlock(f"stream {self._stream.name!r} is full")
        kept = self._checked(events)
        dropped = self.inner.send_nowait(events)
        self._runtime.put[self._stream.name] += kept
        return dropped

    def watermark(self, time: float) -> None:
        inner: Any = self.inner  # of an output stream
        inner.watermark(time)

    def _checked(self, events: Sequence[Any]) -> Sequence[Any]:
        """The events, or copies, as PEs may change theirs; raises EventError for a bad value."""
        for kind in self._stream.types:
            kind.encode_checked([event for event in events if type(event) is kind.cls])
        return copies_of(events)
