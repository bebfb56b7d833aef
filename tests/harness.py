"""The base of the tests: containers, real processes, raw peers, and a proxy that cuts connections.

Nothing here is a mock: everything talks over TCP on a free port of 127.0.0.1.
"""

from __future__ import annotations

import fcntl
import math
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pynng
import pytest
import trio

from s4node import Client
from s4node.config.config import Config
from s4node.errors import leaves
from s4node.events.event import GenericEvent
from s4node.events.schema import EventType
from s4node.net.ingress import peer_limits
from s4node.net.wire import frame as wire
from s4node.runtime.container.container import Container

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio.abc import ReceiveStream, SendStream

    from s4node.app.app import App

ROOT = Path(__file__).resolve().parent.parent
ANY_PORT = "tcp://127.0.0.1:0"
DEADLINE = 30.0
"""Seconds after which a test has failed; nothing waits for so long where it works."""
QUICK = {
    "s4.listener.address": ANY_PORT,
    "s4.container.restartDelay": "50",
    "s4.container.pulseTimeout": "2000",
    "s4.cluster.gatherTimeout": "3000",
    "task.shutdown.ms": "5000",
}
"""Settings of a node of which nothing waits for long."""


T = TypeVar("T")


async def until(condition: Callable[[], object], why: str = "", seconds: float = DEADLINE) -> None:
    """Return as soon as ``condition()`` is true; fail after ``seconds``.

    A condition that reads files blocks the loop, so what it waits for gets as much time as it took.
    """
    with trio.move_on_after(seconds) as scope:
        began = time.perf_counter()
        while not condition():
            await trio.sleep(max(0.002, time.perf_counter() - began))
            began = time.perf_counter()
    assert not scope.cancelled_caught, f"it did not happen within {seconds:g} s: {why or condition}"


async def until_told(
    ask: Callable[[], Awaitable[T]],
    wanted: Callable[[T], object],
    why: str = "",
    seconds: float = DEADLINE,
) -> T:
    """Ask until the answer is ``wanted``, and return it; fail after ``seconds``."""
    answer: T | None = None
    with trio.move_on_after(seconds):
        while not wanted(answer := await ask()):
            await trio.sleep(0.05)
        return answer
    raise AssertionError(f"within {seconds:g} s it was never what was wanted: {why or answer}")


async def until_still(look: Callable[[], T], seconds: float = 0.3) -> T:
    """Return what ``look()`` gives, once it has given the same for so long."""
    found, since = look(), trio.current_time()
    with trio.fail_after(DEADLINE):
        while trio.current_time() - since < seconds:
            await trio.sleep(0.01)
            if (now := look()) != found:
                found, since = now, trio.current_time()
    return found


def filled(disk: Path) -> Path:
    """The file that takes all that is left on a small disk."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise an error as it is where it comes alone inside of exception groups."""
    try:
        yield
    except BaseExceptionGroup as group:
        found = leaves(group)
        if len(found) > 1:
            raise
        alone = found[0]
    else:
        return
    raise alone


# -- containers -----------------------------------------------------------------------------------


@asynccontextmanager
async def running(
    app: App,
    settings: Mapping[str, str] | None = None,
    *,
    partitions: int = 1,
    address: str = ANY_PORT,
    deadline: float = DEADLINE,
) -> AsyncIterator[Container]:
    values = {
        "s4.listener.address": address,
        "s4.cluster.partitions": str(partitions),
        "s4.watchdog.ms": "0",
        **(settings or {}),
    }
    container = Container(app, Config.from_values(values))
    with plain_errors(), trio.fail_after(deadline):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(container.run)
            await container.ready.wait()
            yield container
            container.stop()
    for port in container.ports.values():
        port.admission.validate()
    for task in container.tasks.values():
        task.gate.validate()


def metric(container: Container, name: str, **labels: str) -> float:
    """The sum of a container's samples of a name with these labels."""
    return sum(
        value
        for found, has, value in container.metrics()
        if found == name and labels.items() <= has.items() and not isinstance(value, str)
    )


# -- processes ------------------------------------------------------------------------------------


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that finds the package, whatever its folder, and gathers what it
    prints, as processes do for users."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "", **more}


def s4(*arguments: str | Path) -> list[str]:
    """The command line of ``s4`` with these arguments."""
    return [sys.executable, "-m", "s4node", *map(str, arguments)]


async def run_s4(
    *arguments: str | Path,
    cwd: Path,
    stdin: bytes = b"",
    deadline: float = DEADLINE,
    fault: str = "",
) -> subprocess.CompletedProcess[str]:
    return await run_module(
        "s4node", *arguments, cwd=cwd, stdin=stdin, deadline=deadline, fault=fault
    )


async def run_module(
    module: str,
    *arguments: str | Path,
    cwd: Path,
    stdin: bytes = b"",
    deadline: float = DEADLINE,
    fault: str = "",
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    read: list[list[bytes]] = [[], []]

    async def feed(pipe: SendStream) -> None:
        async with pipe:
            with suppress(trio.BrokenResourceError):
                await pipe.send_all(stdin)

    async def gather(pipe: ReceiveStream, into: list[bytes]) -> None:
        async with pipe:
            into += [chunk async for chunk in pipe]

    with trio.fail_after(deadline):
        process = await _started(command, cwd, environment(S4_FAULT=fault))
        async with trio.open_nursery() as nursery:
            try:
                nursery.start_soon(feed, process.stdin)
                nursery.start_soon(gather, process.stdout, read[0])
                nursery.start_soon(gather, process.stderr, read[1])
                status = await process.wait()
            finally:
                with trio.CancelScope(shield=True):
                    process.kill()
                    await process.wait()
    output, errors = (b"".join(chunks).decode() for chunks in read)
    return subprocess.CompletedProcess(command, status, output, errors)


async def _started(
    command: Sequence[str],
    cwd: Path,
    env: dict[str, str],
    limits: Callable[[], None] | None = None,
    *,
    own_session: bool = False,
) -> Any:
    """A process with pipes; a fork of the server's if that makes no difference."""
    from forkserver import Request, forks  # jobs of Spark import this module, and find no such one

    _, option, module, *arguments = command
    copies = ">" in env.get("S4_FAULT", "")  # of processes that begin with it in their environment
    if option == "-m" and limits is None and not copies:
        request = Request(module, arguments, str(cwd), env, own_session)
        if (fork := await forks.fork(request)) is not None:
            return fork
    return await trio.lowlevel.open_process(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=env,
        start_new_session=own_session,
        preexec_fn=limits,
    )


class NodeProcess:
    """A node in a process of its own; ``stdout`` and ``stderr`` are its lines so far."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.address = ""
        self.stdout: list[str] = []
        self.stderr: list[str] = []

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def kill(self) -> None:
        """kill -9, and wait until the process is gone."""
        self.process.kill()
        await self.process.wait()

    async def wait(self) -> int:
        """The exit status, once there is one and all output has been read."""
        status = await self.process.wait()
        await until(lambda: self._open == 0, "its output ends")
        return status

    @property
    def readiness(self) -> str:
        """The line that says that the node is ready; empty before."""
        return next((line for line in self.stderr if " runs at " in line), "")

    @property
    def url(self) -> str:
        """That of HTTP, which ``s4 run`` prints next; empty before."""
        found = (line for line in self.stderr if line.startswith("  watch it: "))
        return next(found, "").rpartition(" ")[2]

    @property
    def errors(self) -> str:
        return "\n".join(self.stderr)

    async def _read(self, pipe: Any, lines: list[str]) -> None:
        rest = b""
        async for chunk in pipe:
            *whole, rest = (rest + chunk).split(b"\n")
            lines += [line.decode() for line in whole]
        if rest:
            lines.append(rest.decode())
        self._open -= 1

    _open = 2


@asynccontextmanager
async def s4_process(
    *arguments: str | Path,
    cwd: Path,
    ready: bool = True,
    limits: Callable[[], None] | None = None,
    fault: str = "",
) -> AsyncIterator[NodeProcess]:
    """An ``s4`` command as a process, ready (unless told otherwise); killed at the end.

    ``fault`` is where it, or a process that it starts, is to die; see s4node/failpoints.py.
    """
    async with process_of(s4(*arguments), cwd, ready, limits, fault) as node:
        yield node


@asynccontextmanager
async def process_of(
    command: Sequence[str],
    cwd: Path,
    ready: bool = False,
    limits: Callable[[], None] | None = None,
    fault: str = "",
) -> AsyncIterator[NodeProcess]:
    """A command as a process, killed at the end."""
    process = await _started(command, cwd, environment(S4_FAULT=fault), limits, own_session=True)
    await process.stdin.aclose()
    node = NodeProcess(process)
    with plain_errors():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node._read, process.stdout, node.stdout)
            nursery.start_soon(node._read, process.stderr, node.stderr)
            try:
                if ready:
                    await until(
                        lambda: node.readiness or process.returncode is not None,
                        f"it is ready; it said: {node.stderr}",
                    )
                    assert node.readiness, f"it ended: {process.returncode}, {node.errors}"
                    node.address = node.readiness.split(" runs at ")[1].split()[0]
                yield node
            finally:
                with trio.CancelScope(shield=True):
                    if process.returncode is None:
                        process.kill()
                    await process.wait()
                nursery.cancel_scope.cancel()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            await pipe.aclose()


@asynccontextmanager
async def node_process(
    file: Path | str,
    *arguments: str,
    cwd: Path,
    listen: str = ANY_PORT,
    ready: bool = True,
    limits: Callable[[], None] | None = None,
) -> AsyncIterator[NodeProcess]:
    """``s4 run FILE`` as a process; see :func:`s4_process`."""
    command = ("run", file, "--listen", listen, *arguments)
    async with s4_process(*command, cwd=cwd, ready=ready, limits=limits) as node:
        yield node


def children(pid: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found += map(int, path.read_text().split())
    return found


def limit_peers(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    """Have the test's listeners limit peers so."""
    monkeypatch.setattr(peer_limits, "LIMITS", peer_limits.LIMITS._replace(**limits))


@contextmanager
def limited(kind: int, soft: int) -> Iterator[None]:
    """Hold this process to a limit of the system's; what it needs at the end is there again."""
    before = resource.getrlimit(kind)
    told = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)
        signal.signal(signal.SIGXFSZ, told)


@contextmanager
def nobody(folder: Path) -> Iterator[None]:
    """Without the rights of root, which may write everywhere; what is in ``folder`` is nobody's."""
    if os.geteuid():
        yield
        return
    for one in (folder, *folder.rglob("*")):
        os.chown(one, 65534, 65534)
    os.seteuid(65534)
    try:
        if not os.access(folder, os.W_OK, effective_ids=True):
            pytest.skip(f"{folder} is where only root may go, and this needs another user")
        yield
    finally:
        os.seteuid(0)


def free_port() -> int:
    """A port that is free now; for nodes that must come back at the same one.

    It is none of those that the system gives away, and no other process that runs tests has it.
    """
    for port in _ports:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            fcntl.lockf(_taken, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)  # until this process ends
            return port
    raise AssertionError("all ports have been used")


_PORTS = range(16_000, 32_000)
_ports = cycle(_PORTS[(os.getpid() * 97 + n) % len(_PORTS)] for n in range(len(_PORTS)))
_taken = (Path(tempfile.gettempdir()) / f"s4node-ports-{os.getuid()}").open("ab")


def colliding_pairs(count: int) -> list[tuple[int, int]]:
    """Different pairs of numbers that share one hash, which Python does not make random."""
    prime_1, prime_2, prime_5 = 11400714785074694791, 14029467366897019727, 2870177450012600261
    most = (1 << 64) - 1

    def after(first: int) -> int:
        mixed = (prime_5 + first * prime_2) & most
        return ((mixed << 31 | mixed >> 33) * prime_1) & most

    found: list[tuple[int, int]] = []
    first = 0
    while len(found) < count:
        second = (after(0) - after(first)) * pow(prime_2, -1, 1 << 64) & most
        if second < (1 << 61) - 1:  # else it is not its own hash
            found.append((first, second))
        first += 1
    return found


def colliding_map(count: int) -> bytes:
    """A map of msgpack whose keys share one hash; Python would take long to make it."""
    pairs = map(msgspec.msgpack.encode, colliding_pairs(count))
    return b"\xdf" + count.to_bytes(4) + b"".join(pair + b"\0" for pair in pairs)


def colliding_query(count: int) -> bytes:
    """A frame of a query with such a map among its arguments."""
    head = b"\x95\x07\x01\xa4list\x81\xa1x" + colliding_map(count) + b"\x80"
    return struct.pack(">II", len(head), 0) + head


# -- raw peers ------------------------------------------------------------------------------------


class RawPeer:
    """A bare nng Pair0 socket at a node: sends any bytes, reads what comes back."""

    def __init__(self, address: str, tls: pynng.TLSConfig | None = None) -> None:
        self._socket = pynng.Pair0(recv_max_size=0, tls_config=tls)
        self._socket.dial(address, block=True)

    async def send(self, data: bytes) -> None:
        await self._socket.asend(data)

    async def send_frames(self, *frames: wire.Header | tuple[wire.Header, bytes]) -> None:
        parts = [frame if isinstance(frame, tuple) else (frame, b"") for frame in frames]
        await self.send(wire.envelope([wire.encode_frame(*part) for part in parts]))

    async def receive(self) -> list[wire.Header]:
        with trio.fail_after(DEADLINE):
            data = await self._socket.arecv()
        return [
            frame.header
            for frame in wire.read_envelope(data, 1 << 30)
            if isinstance(frame, wire.Frame)
        ]

    async def receive_until(self, wanted: Callable[[wire.Header], object]) -> wire.Header:
        """The next frame that is wanted; others are dropped."""
        while True:
            for header in await self.receive():
                if wanted(header):
                    return header

    async def open(self, stream: str, producer: str, *types: type) -> wire.Hello:
        """Open a stream; the node's answer."""
        declared = tuple(EventType(cls).declaration for cls in types)
        await self.send_frames(wire.Hello(producer, "1", stream, declared))
        answer = await self.receive_until(lambda header: isinstance(header, wire.Hello))
        assert isinstance(answer, wire.Hello)
        return answer

    async def close(self) -> None:
        await trio.to_thread.run_sync(self._socket.close)


@asynccontextmanager
async def raw_peer(address: str, tls: pynng.TLSConfig | None = None) -> AsyncIterator[RawPeer]:
    peer = await trio.to_thread.run_sync(RawPeer, address, tls)
    try:
        yield peer
    finally:
        with trio.CancelScope(shield=True):
            await peer.close()


def data_frame(
    stream: str,
    producer: str,
    first: int,
    events: Sequence[Any],
    *,
    partition: int = 0,
    flags: int = wire.ANSWER_NOW,
    routing: str = "",
) -> tuple[wire.Header, bytes]:
    """A good data frame of events of one type."""
    kind = EventType(type(events[0]))
    body = kind.encode(events)
    header = wire.Data(
        stream,
        partition,
        producer,
        first,
        len(events),
        (wire.Section(kind.fingerprint, len(events), len(body)),),
        routing,
        flags=flags,
    )
    return header, body


def names(*texts: str) -> list[GenericEvent]:
    return [GenericEvent(name=text) for text in texts]


# -- a proxy that cuts and slows connections ------------------------------------------------------


class Proxy:
    """A TCP proxy in front of a node.

    ``budgets`` gives how many bytes each connection may carry (both ways together) before it is
    cut in the middle of whatever it carries. ``cuts`` counts those.
    """

    def __init__(self, target: str, budgets: Iterator[float]) -> None:
        self.host, self.port = target.removeprefix("tcp://").rsplit(":", 1)
        self.address = ""
        self.cuts = 0
        self.connections = 0
        self._may_go = {"events": trio.Event(), "verdicts": trio.Event()}
        self.go_on()
        self._budgets = budgets
        self._open: set[trio.CancelScope] = set()

    def redirect(self, target: str) -> None:
        self.host, self.port = target.removeprefix("tcp://").rsplit(":", 1)

    def cut(self) -> None:
        for scope in list(self._open):
            scope.cancel()

    def stall(self, side: str) -> None:
        """Carry no more "events" to the node, or no more "verdicts" back."""
        self._may_go[side] = trio.Event()

    def go_on(self) -> None:
        """Carry everything again."""
        for may_go in self._may_go.values():
            may_go.set()

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.address = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
        await trio.serve_listeners(self._carry, [listener], task_status=task_status)

    async def _carry(self, near: trio.SocketStream) -> None:
        self.connections += 1
        left = [next(self._budgets)]
        try:
            far = await trio.open_tcp_stream(self.host, int(self.port))
        except OSError:
            await trio.aclose_forcefully(near)
            return
        scope = trio.CancelScope()
        self._open.add(scope)
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._one_way, near, far, left, scope, "events")
                    nursery.start_soon(self._one_way, far, near, left, scope, "verdicts")
        finally:
            self._open.discard(scope)
            for stream in (near, far):
                if scope.cancelled_caught:  # a reset, as from a machine that is gone
                    linger = struct.pack("ii", 1, 0)
                    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                stream.socket.close()

    async def _one_way(
        self,
        a: trio.SocketStream,
        b: trio.SocketStream,
        left: list[float],
        scope: trio.CancelScope,
        side: str,
    ) -> None:
        try:
            while chunk := await a.receive_some(16_384):
                await self._may_go[side].wait()
                left[0] -= len(chunk)
                if left[0] < 0:
                    await b.send_all(chunk[: len(chunk) // 2])
                    self.cuts += not scope.cancel_called
                    scope.cancel()
                    return
                await b.send_all(chunk)
            await b.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            scope.cancel()


@asynccontextmanager
async def proxy(
    target: str, *, seed: int | None = None, least: int = 1_000, most: int = 40_000, cuts: int = 20
) -> AsyncIterator[Proxy]:
    """A proxy; with a seed it cuts the first ``cuts`` connections after random numbers of bytes."""

    def budgets() -> Iterator[float]:
        if seed is not None:
            chance = random.Random(seed)
            for _ in range(cuts):
                yield chance.randint(least, most)
        while True:
            yield math.inf

    between = Proxy(target, budgets())
    with plain_errors():
        async with trio.open_nursery() as nursery:
            await nursery.start(between.serve)
            yield between
            nursery.cancel_scope.cancel()


async def in_thread(function: Callable[[], None]) -> None:
    errors: list[BaseException] = []
    ended = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def run() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)
        with suppress(trio.RunFinishedError):  # a test that has failed does not wait for it
            token.run_sync_soon(ended.set)

    thread = threading.Thread(target=run, daemon=True)  # one that is stuck fails its test only
    thread.start()
    await ended.wait()
    thread.join()
    if errors:
        raise errors[0]


async def together(*functions: Callable[[], Awaitable[Any]]) -> None:
    """Run async functions at the same time; the first error is raised as it is."""
    with plain_errors():
        async with trio.open_nursery() as nursery:
            for function in functions:
                nursery.start_soon(function)


async def deliver(address: str, events: Iterable[Any], stream: str = "clicks") -> None:
    """Send events with a client of their own; return when all have been processed."""
    async with Client(address) as client:
        clicks = await client.stream(stream)
        await clicks.send_many(events)
        assert await clicks.flush() == []


async def run_until_it_fails(app: App, events: Iterable[Any]) -> None:
    """Send events as the producer "web"; raises what stops the app."""
    async with running(app) as node, Client(node.address, producer="web") as client:
        clicks = await client.stream("clicks")
        await clicks.send_many(events)
        await trio.sleep_forever()
