"""The process of a container, which a supervisor starts.

Rules
- Its argument is the number of an inherited socket, the *line*: see
  :mod:`s4node.cluster.node.supervisor_protocol`.
- A thread reads the line, so that the end of the supervisor is noticed even while a handler blocks
  the loop: the process then ends after at most the time of one drain.
- Pulses come from the loop, so that they stop when the loop does. What the socket does not accept
  at once is sent later; the next message waits.
- The reason of a failure is sent to the supervisor, which reports it; it is printed only if the
  supervisor is gone.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import trio

from s4node.app.app import App
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.cluster.node import package, supervisor_protocol
from s4node.cluster.node.package import Store, packages_url
from s4node.cluster.node.restart_policy import END_SECONDS
from s4node.cluster.tree.coordinations import coordination_at
from s4node.config import settings
from s4node.config.config import Config
from s4node.deploy.load_app import load_packaged
from s4node.deploy.tracebacks import cause_trace, others_trace
from s4node.errors import EventsLost, S4Error, described, leaves, presentable, status_of
from s4node.forks import closed_in_forks
from s4node.metrics.statistics import ContainerStatistics
from s4node.metrics.table import Sample, finite
from s4node.process import log_setup, stdio
from s4node.process.container_entry import listed, streams_of
from s4node.process.loading import loaded
from s4node.process.stopping import tune_python
from s4node.runtime.container.container import Container

_FLUSH_SECONDS = 5.0
_FRAMES = 6


class Line:
    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        end.set_inheritable(False)
        self.go = trio.Event()
        self._socket = closed_in_forks(end)
        self._lines = supervisor_protocol.Lines()
        self._queue: list[bytes] = []
        self._unsent = b""
        self._full = trio.Event()
        self._lock = threading.Lock()
        self._token: trio.lowlevel.TrioToken | None = None
        self._on_stop: Callable[[], None] = lambda: None
        self._drain_seconds = 0.0

    def receive_begin(self) -> supervisor_protocol.Begin:
        """The first message. Ends the process if there is none."""
        message = self._read()
        if not isinstance(message, supervisor_protocol.Begin):
            os._exit(0)
        threading.Thread(target=self._listen, name="line", daemon=True).start()
        return message

    def attach(self, on_stop: Callable[[], None], drain_seconds: float) -> None:
        """Let a stop call ``on_stop``, in trio, from now on; before that it ends the process."""
        with self._lock:
            self._on_stop = on_stop
            self._drain_seconds = drain_seconds
            self._token = trio.lowlevel.current_trio_token()

    def detach(self) -> None:
        """Ignore a stop from now on, as trio ends."""
        with self._lock:
            self._on_stop = lambda: None

    def say(self, message: supervisor_protocol.Message) -> None:
        """Send a message without waiting."""
        self._unsent += supervisor_protocol.encode(message)
        self._send()

    def pulse(
        self, statistics: ContainerStatistics | None, own: list[Sample] | None = None
    ) -> None:
        """Send a pulse, unless the last one is still unsent. Statistics that are too large for a
        line are left out."""
        if self._unsent:
            return
        line = supervisor_protocol.encode(supervisor_protocol.Pulse(statistics, own or []))
        if len(line) > supervisor_protocol.MAX_LINE_BYTES:
            line = supervisor_protocol.encode(supervisor_protocol.Pulse())
        self._unsent = line
        self._send()

    async def carry(self) -> None:
        """Send what the socket did not accept at once, until cancelled."""
        while True:
            await self._full.wait()
            self._full = trio.Event()
            await trio.lowlevel.wait_writable(self._socket)
            self._send()

    def flush(self) -> bool:
        """Wait until everything is sent; returns False if the supervisor does not read it."""
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        while self._unsent and poll.poll(_FLUSH_SECONDS * 1000) and self._send():
            pass
        return not self._unsent

    def _send(self) -> bool:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            self._full.set()
            return True
        except OSError:
            return False
        return True

    def _read(self) -> supervisor_protocol.ToContainer | None:
        """The next message, or None at the end of the line."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while not self._queue:
            poll.poll()
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                continue
            except OSError:
                return None
            if not data:
                return None
            self._queue += self._lines.feed(data)
        return supervisor_protocol.to_container(self._queue.pop(0))

    def _listen(self) -> None:
        """Read to the end of the line, which comes even after a stop if the supervisor dies."""
        while (message := self._read()) is not None:
            if isinstance(message, supervisor_protocol.Go):
                with self._lock:
                    self._in_trio(self.go.set)
            else:
                self._stop()
        self._stop()
        time.sleep(self._drain_seconds)
        os._exit(1)

    def _stop(self) -> None:
        with self._lock:
            if self._token is None:  # the app is still being loaded
                os._exit(0)
            self._in_trio(self._on_stop)

    def _in_trio(self, function: Callable[[], None]) -> None:
        try:
            assert self._token is not None
            self._token.run_sync_soon(function)
        except trio.RunFinishedError:  # trio has ended meanwhile
            pass


def main() -> NoReturn:
    """Run what the first message says; ends the process."""
    loaded()
    if stdio.provide():
        stdio.discard()
    line = Line(socket.socket(fileno=int(sys.argv[1])))
    begin = line.receive_begin()
    status = 0
    log_setup.print_whole_lines()
    try:
        config = Config.from_values(begin.settings)
        log_setup.configure_from(config)
        app = _load(begin, config)
        trio.run(_run, line, begin, app, config)
        sys.stdout.flush()
    except BaseException as error:
        failed = failure(error)
        status = failed.status
        line.say(failed)
        if not line.flush():
            print(f"{failed.trace}s4: {failed.error}", file=sys.stderr)
    with suppress(OSError):  # already reported, or a more serious error was
        sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # does not wait for threads of the app


def failure(error: BaseException) -> supervisor_protocol.Failed:
    found = [leaf for leaf in leaves(error) if not isinstance(leaf, trio.Cancelled)] or [error]
    ours = [leaf for leaf in found if isinstance(leaf, S4Error)]
    leaf = (ours or found)[0]
    status = status_of(leaf)
    if ours:
        lost = isinstance(leaf, EventsLost)
        return supervisor_protocol.Failed(
            presentable(str(leaf)), cause_trace(ours[0]), status, lost
        )
    if stdio.is_unwritten(leaf):
        return supervisor_protocol.Failed(stdio.unwritten(leaf), "", status)
    trace = others_trace(leaf) or presentable(
        "".join(traceback.format_exception(leaf, limit=-_FRAMES))
    )
    return supervisor_protocol.Failed(described(leaf), trace, status)


def _load(begin: supervisor_protocol.Begin, config: Config) -> App:
    file, place = Path(begin.package), begin.coordination
    url = packages_url(place, config)  # since the node fetched it, the file may have been removed
    data = Store(file.parent, url, config[settings.CLUSTER_NAME]).get(begin.digest)
    return load_packaged(package.decode(data), Path(begin.folder))


async def _run(line: Line, begin: supervisor_protocol.Begin, app: App, config: Config) -> None:
    container = Container(app, config, node=begin.member, deployed_as=begin.app, node_log=begin.log)
    stopping = trio.Event()

    def stop() -> None:
        stopping.set()
        if container.ready.is_set() or container.tasks:
            container.stop()
        else:  # it waits for the other members, and has taken no events
            nursery.cancel_scope.cancel()

    drain = config[settings.TASK_SHUTDOWN_MS] + END_SECONDS
    async with trio.open_nursery() as nursery:
        line.attach(stop, drain)
        with _signals(stop):
            nursery.start_soon(line.carry)
            nursery.start_soon(_pulses, line, container, begin.pulse_seconds)
            await container.prepare(waits=not begin.hold)  # else the result goes to who has asked
            if begin.hold and not stopping.is_set():
                await container.check_saved_state(begin.check)
            line.say(supervisor_protocol.Prepared(*streams_of(app)))
            if begin.hold:
                async with trio.open_nursery() as either:
                    for event in (line.go, stopping):
                        either.start_soon(_wait, event, either.cancel_scope)
            if not stopping.is_set():
                nursery.start_soon(_announce, line, container)
                async with listed(container, begin), _enrolled(container, begin, config, line):
                    try:
                        await container.run()
                    except EventsLost:
                        _say_done(line, stopping)
                        raise
                _say_done(line, stopping)
            line.detach()
            nursery.cancel_scope.cancel()


def _say_done(line: Line, stopping: trio.Event) -> None:
    if not stopping.is_set():
        line.say(supervisor_protocol.Done())
        line.flush()


@asynccontextmanager
async def _enrolled(
    container: Container, begin: supervisor_protocol.Begin, config: Config, line: Line
) -> AsyncIterator[None]:
    """Make the container a member of its cluster, if it belongs to one."""
    if not begin.coordination:
        yield
        return
    coordination = coordination_at(begin.coordination, config)
    async with coordination.session(f"{begin.app} on {begin.member}") as session:
        line.say(supervisor_protocol.Enrolled(session.key))
        container.enrolment = Enrolment(
            session,
            cluster=config[settings.CLUSTER_NAME],
            app=begin.app,
            member=begin.member,
            expected=begin.expected,
            containers=config[settings.CONTAINER_COUNT],
            gather_timeout=config[settings.CLUSTER_GATHER_TIMEOUT],
            stay=config[settings.CLUSTER_STAY],
            zone=config[settings.NODE_ZONE],
            node=begin.node,
            version=begin.version,
        )
        yield


async def _wait(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def _announce(line: Line, container: Container) -> None:
    await container.ready.wait()
    tune_python()
    line.say(supervisor_protocol.Ready(container.address))
    await container.parts.ownership.settled.wait()
    line.say(supervisor_protocol.Settled())


async def _pulses(line: Line, container: Container, seconds: float) -> None:
    is_monitored = bool(container.config[settings.HTTP_ADDRESS])
    while True:
        waits = container.replay.failing or container.replay.away
        if container.tasks or waits or container.ready.is_set():
            own = finite(container.own_metrics()) if is_monitored else []
            line.pulse(container.statistics(), own)
        else:
            line.pulse(None)
        await trio.sleep(seconds)


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Drain at SIGTERM, as at a stop of the supervisor, which alone handles Ctrl-C."""
    token = trio.lowlevel.current_trio_token()
    before = signal.signal(signal.SIGTERM, lambda *_: token.run_sync_soon(stop))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
