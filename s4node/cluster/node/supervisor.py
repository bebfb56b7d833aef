"""The supervisor: starts container processes, watches, restarts and stops them.

Rules
- :mod:`s4node.cluster.node.restart_policy` decides; the supervisor has the processes and the
  connections to them.
- A container process has a session of its own, so Ctrl-C at a terminal reaches only the supervisor,
  which stops its containers in order.
- Leaving :func:`supervising` leaves no process behind: those that still run are killed and awaited.
  If the supervisor itself is killed, its connections end, and containers then drain and end.
- When a process has ended, what the app has started and is left in its group is killed.
- Every end of a process that nobody asked for is logged once, with its reason.
- A process has a session of its cluster. The supervisor ends it as soon as the process has ended,
  so that others need not wait for its timeout.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager, suppress
from itertools import count

import msgspec
import trio

from s4node.cluster.node import supervisor_protocol
from s4node.cluster.node.container_status import ContainerStatus
from s4node.cluster.node.history import Happening, History
from s4node.cluster.node.node_status import NodeStatus
from s4node.cluster.node.restart_policy import (
    END_SECONDS,
    LONGEST_PAUSE,
    LOOK_SECONDS,
    Action,
    Limits,
    Phase,
    Restarts,
)
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConfigError, ContainerFailed, CoordinationError
from s4node.events.schema import UNREADABLE
from s4node.logger import get_logger
from s4node.metrics.statistics import ContainerStatistics
from s4node.metrics.table import Sample
from s4node.offsets.death_files import event_of

log = get_logger("s4node.cluster")

EndSession = Callable[[str], Awaitable[None]]

_LEAVING_SECONDS = 2.0
_READ_ON_SECONDS = 1.0
"""How long to read on after a process has ended."""

_PROGRAM = "import gc; gc.disable(); from s4node.process.container_process import main; main()"
_COMMAND = (sys.executable, "-P", "-c", _PROGRAM)


def limits_of(config: Config) -> Limits:
    return Limits(
        start=config[settings.CONTAINER_START_TIMEOUT],
        pulse=config[settings.CONTAINER_PULSE_TIMEOUT],
        drain=config[settings.TASK_SHUTDOWN_MS] + END_SECONDS,
        pause=config[settings.CONTAINER_RESTART_DELAY],
        longest_pause=LONGEST_PAUSE * config[settings.CONTAINER_RESTART_DELAY],
    )


class ContainerProcess:
    """One container process, over all its starts; created by :meth:`Supervisor.start`."""

    def __init__(
        self,
        begin: supervisor_protocol.Begin,
        limits: Limits,
        on_change: Callable[[ContainerProcess], None],
        end_session: EndSession | None,
    ) -> None:
        self.begin = begin
        self.address = ""
        """The address on which it listens; empty while it is not ready."""
        self.is_settled = False
        """True once it has the partitions that others were to hand over when it started."""
        self.prepared: supervisor_protocol.Prepared | None = None
        self.statistics: ContainerStatistics | None = None
        self.own_metrics: list[Sample] = []
        self.failure: supervisor_protocol.Failed | None = None
        self.ended_because = ""
        """The reason of its last failure."""
        self._failed_ms = 0
        self.ended = trio.Event()
        self._life = Restarts(limits, trio.current_time())
        self._on_change = on_change
        self._end_session = end_session
        self._session = ""  # the key of its session
        self._died_while = ""
        self._process: trio.Process | None = None
        self._line: trio.SocketStream | None = None
        self._saying = trio.Lock()
        self._changed = trio.Event()
        self._look = trio.Event()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def phase(self) -> Phase:
        return self._life.phase

    @property
    def is_done(self) -> bool:
        """Return True if it has ended because the app's tasks are finished."""
        return self.ended.is_set() and not self.ended_because

    @property
    def starts(self) -> int:
        return self._life.starts

    def status(self) -> ContainerStatus:
        waits = self.begin.hold and self.phase is Phase.RUNNING
        return ContainerStatus(
            app=self.begin.app,
            node=self.begin.node,
            version=self.begin.version,
            phase="prepared" if waits else self.phase.value,
            pid=self.pid,
            address=self.address,
            starts=self.starts,
            failure=self.ended_because,
            failed_ms=self._failed_ms,
        )

    async def wait_prepared(self) -> supervisor_protocol.Prepared:
        """Wait until its app is loaded and checked; raises ContainerFailed with the reason."""
        while self.prepared is None:
            await self._wait_change()
        return self.prepared

    async def wait_ready(self) -> str:
        """Wait until it is ready; returns its address. Raises ContainerFailed with the reason."""
        while not self.address:
            await self._wait_change()
        return self.address

    async def go(self) -> None:
        """Let a held process begin; does nothing otherwise."""
        if self.begin.hold:
            self.begin = msgspec.structs.replace(self.begin, hold=False)
            self._life.go(trio.current_time())
            await self._say(supervisor_protocol.Go())

    def stop_soon(self) -> None:
        """Have it drain and end; it is killed if that takes too long."""
        self._life.stop(trio.current_time())
        self._nudge()

    async def stop(self) -> None:
        self.stop_soon()
        await self.ended.wait()

    # -- its life ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep it alive until it is stopped; if cancelled, kill it."""
        try:
            while self._life.phase is not Phase.ENDED:
                if self._life.look(trio.current_time()) is Action.START:
                    await self._live()
                else:
                    await self._wait_look()
        finally:
            self.ended.set()
            self._announce()

    async def _live(self) -> None:
        """Run one process from its start to its end."""
        self.failure = None
        self._died_while = ""
        try:
            near, process = await self._open()
        except OSError as error:  # too many processes or files, or Python itself is gone
            self.failure = supervisor_protocol.Failed(f"it cannot be started: {error}")
            self._exited(None)
            return
        with near:
            self._process = process
            self._line = line = trio.SocketStream(trio.socket.from_stdlib_socket(near))
            try:
                async with trio.open_nursery() as nursery:
                    read_all = trio.Event()
                    nursery.start_soon(self._drive, nursery)
                    nursery.start_soon(self._listen, line, read_all)
                    await self._say(self.begin)
                    await _wait_gone(process)
                    if process.returncode:  # before others take its tasks over
                        self._died_while = self._find_event(process.pid)
                    await self._leave_cluster()
                    with trio.move_on_after(_READ_ON_SECONDS):
                        await read_all.wait()
                    nursery.cancel_scope.cancel()
            finally:
                with trio.CancelScope(shield=True):
                    process.kill()
                    await _wait_gone(process)
                self._line = self._process = None
                self.address = ""
                self.is_settled = False
                self.prepared = None
                self.statistics = None
                self.own_metrics = []
        self._exited(process.returncode)

    async def _leave_cluster(self) -> None:
        key, self._session = self._session, ""
        if key and self._end_session is not None:
            with trio.move_on_after(_LEAVING_SECONDS), suppress(CoordinationError):
                await self._end_session(key)  # else it ends after its timeout

    async def _open(self) -> tuple[socket.socket, trio.Process]:
        """Our end of a new connection, and the process at its other end."""
        near, far = socket.socketpair()
        with far, ExitStack() as undo:
            undo.callback(near.close)
            with trio.CancelScope(shield=True):  # or the process would belong to nobody
                process = await trio.lowlevel.open_process(
                    [*_COMMAND, str(far.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[far.fileno()],
                    start_new_session=True,
                )
            undo.pop_all()
            return near, process

    async def _drive(self, nursery: trio.Nursery) -> None:
        """Do what the restart policy says, until cancelled."""
        while True:
            match self._life.look(trio.current_time()):
                case Action.STOP:
                    # in a task of its own, because a stopped process reads nothing
                    nursery.start_soon(self._say, supervisor_protocol.Stop())
                case Action.KILL:
                    assert self._process is not None
                    self._process.kill()
                case _:
                    await self._wait_look()

    async def _listen(self, line: trio.SocketStream, read_all: trio.Event) -> None:
        lines = supervisor_protocol.Lines()
        try:
            async for data in line:
                for text in lines.feed(data):
                    self._on_message(supervisor_protocol.from_container(text))
        except trio.BrokenResourceError:
            pass
        except (ValueError, *UNREADABLE) as error:
            self.failure = supervisor_protocol.Failed(f"it sent an invalid message: {error}")
            assert self._process is not None
            self._process.kill()
        read_all.set()

    def _on_message(self, message: supervisor_protocol.FromContainer) -> None:
        now = trio.current_time()
        match message:
            case supervisor_protocol.Pulse():
                self.statistics, self.own_metrics = message.statistics, message.own
                last = self.statistics
                self._life.pulse(now, waits=last is not None and bool(last.replay.failing))
                return
            case supervisor_protocol.Prepared():
                self.prepared = message
                if self.begin.hold:
                    self._life.ready(now)
            case supervisor_protocol.Enrolled():
                self._session = message.key
                return
            case supervisor_protocol.Ready():
                self._life.ready(now)
                self.address = message.address
            case supervisor_protocol.Settled():
                self.is_settled = True
            case supervisor_protocol.Failed():
                self.failure = message
            case supervisor_protocol.Done():
                log.info("a container is done", app=self.begin.app, container=self.begin.member)
                self._life.stop(now)
        self._nudge()

    def _find_event(self, pid: int) -> str:
        """The event at which a careful process has died, as text; empty if there is none."""
        from s4node.state.job import folder_of  # which loads databases, and few processes die

        config, app = Config.from_values(self.begin.settings), self.begin.app
        with suppress(ConfigError, OSError):
            folder = folder_of(config[settings.STATE_FOLDER], config[settings.CLUSTER_NAME], app)
            if (at := event_of(folder, pid)) is not None:
                return f" while {at.advice(app)}"
        return ""

    def _exited(self, status: int | None) -> None:
        asked = self._life.phase is Phase.STOPPING
        killed = self._life.reason if self._life.phase is Phase.KILLED else ""
        now = trio.current_time()
        if self.begin.hold:  # a held process is not restarted
            self._life.stop(now)
        self._life.exited(now)
        if not asked or status:
            if self.failure is None:
                why = (killed or _ending(status)) + self._died_while
                self.failure = supervisor_protocol.Failed(why)
            self.ended_because = self.failure.error
            self._failed_ms = int(time.time() * 1000)
            if not self.begin.hold:  # reported to the client that waits for a held process
                self._log(self.failure, now)
        self._announce()

    def _log(self, failure: supervisor_protocol.Failed, now: float) -> None:
        pause = None if self._life.next_at is None else round(self._life.next_at - now, 3)
        trace = {"trace": failure.trace} if failure.trace else {}
        log.error(
            "a container ended",
            app=self.begin.app,
            container=self.begin.member,
            reason=failure.error,
            starts_again_in=pause,
            **trace,
        )

    async def _say(self, message: supervisor_protocol.Message) -> None:
        line = self._line
        if line is not None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                async with self._saying:
                    await line.send_all(supervisor_protocol.encode(message))

    # -- waiting -----------------------------------------------------------------------------

    async def _wait_look(self) -> None:
        """Wait until the restart policy has to be asked again."""
        now = trio.current_time()
        left = LOOK_SECONDS if self._life.next_at is None else self._life.next_at - now
        with trio.move_on_after(min(max(left, 0), LOOK_SECONDS)):
            await self._look.wait()
        self._look = trio.Event()

    def _nudge(self) -> None:
        self._look.set()
        self._announce()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
        self._on_change(self)

    async def _wait_change(self) -> None:
        """Wait for a change; raises ContainerFailed if it has failed since its last start."""
        if self._life.phase is Phase.ENDED or (self._life.phase is Phase.WAITING and self.failure):
            failed = self.failure or supervisor_protocol.Failed("it was stopped")
            raise ContainerFailed(self.begin.member, failed.error, failed.trace, failed.status)
        await self._changed.wait()


class Supervisor:
    """The container processes of a node; see :func:`supervising`."""

    def __init__(
        self, nursery: trio.Nursery, limits: Limits, end_session: EndSession | None
    ) -> None:
        self.limits = limits
        self._end_session = end_session
        self.processes: list[ContainerProcess] = []
        self.history = History()
        self.changed = trio.Event()
        """Set, and replaced by a new event, whenever a process has changed, or an app has gone."""
        self._nursery = nursery

    def start(self, begin: supervisor_protocol.Begin) -> ContainerProcess:
        seconds = min(begin.pulse_seconds, self.limits.pulse_interval)
        taken = {process.begin.place for process in self.processes}
        place = next(number for number in count(1) if number not in taken)
        begin = msgspec.structs.replace(begin, pulse_seconds=seconds, place=place)
        process = ContainerProcess(begin, self.limits, self._change, self._end_session)
        self.processes.append(process)
        self._nursery.start_soon(process.run)
        return process

    async def stop(self) -> list[str]:
        """Stop all processes at the same time; returns the messages of those that lost events."""
        processes = list(self.processes)
        for process in processes:
            process.stop_soon()
        for process in processes:
            await process.ended.wait()
        return [
            f"{each.begin.member}: {each.failure.error}"
            for each in processes
            if each.failure is not None and each.failure.lost
        ]

    def _change(self, process: ContainerProcess) -> None:
        self.history.failed_once(process.status(), is_new=process.begin.hold)
        if process.ended.is_set() and process in self.processes:
            self.processes.remove(process)
        self.note_change()

    def note_change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


@asynccontextmanager
async def supervising(
    limits: Limits, end_session: EndSession | None = None
) -> AsyncIterator[Supervisor]:
    """A supervisor for the block; processes that still run at its end are killed. ``end_session``
    ends the session with a key."""
    async with trio.open_nursery() as nursery:
        try:
            yield Supervisor(nursery, limits, end_session)
        finally:
            nursery.cancel_scope.cancel()


def status_of(
    name: str,
    cluster: str,
    address: str,
    processes: Iterable[ContainerProcess],
    history: Iterable[Happening] = (),
) -> NodeStatus:
    found = [(each.status(), each.statistics) for each in processes]
    statistics = [each for _, each in found if each is not None]
    containers = [each for each, _ in found]
    return NodeStatus(name, cluster, os.getpid(), address, containers, statistics, list(history))


async def _wait_gone(process: trio.Process) -> None:
    """Wait until a process has ended, and end what it leaves behind in its group."""
    await process.wait()
    with suppress(OSError):  # nothing is left
        os.killpg(process.pid, signal.SIGKILL)


def _ending(status: int | None) -> str:
    if status is None or status >= 0:
        return f"it ended with exit status {status}"
    try:
        return f"it was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"it was ended by signal {-status}"
