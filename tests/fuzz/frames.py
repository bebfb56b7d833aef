"""Frames that are well formed and mean nothing, for a node with a log and a durable stream.

``python -m fuzz.frames --frames 1000000`` sends that many over real sockets, with ``--tls`` in TLS.
They know the fields: half of them have one number at or beside a bound. The node goes on, honest
senders beside them, to an app and to the log, lose nothing, and the node's log has no error of its
own.
"""

from __future__ import annotations

import argparse
import random
import ssl
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import trio
from certificates import TLS, Issuer
from harness import ANY_PORT, node_process

from s4node import Client, Credentials, Event
from s4node.events.event import GenericEvent
from s4node.events.schema import EventType
from s4node.net.transport.sp_messages import HANDSHAKE, framed
from s4node.net.wire import frame as wire
from s4node.offsets.startpoint import Oldest
from s4node.systems.embedded_log import EmbeddedLog

APP = """
from s4node import App, Event, GenericEvent, ProcessingElement, tumbling
from s4node.net.ingress import peer_limits

peer_limits.LIMITS = peer_limits.LIMITS._replace(
    hellos_per_second=100_000, all_hellos_per_second=800_000
)

class Click(Event):
    user: str
    n: int = 0

class Clicks(ProcessingElement):
    n: int = 0
    def on_event(self, event: Click):
        self.n += 1
        if event.user == "honest" and event.n < 0:
            print("counted", self.n)

class Anything(ProcessingElement):
    n: int = 0
    def on_event(self, event: GenericEvent):
        self.n += 1

class EachMinute(ProcessingElement):
    n: int = 0
    def on_event(self, event: GenericEvent):
        self.n += 1
    def on_window(self):
        pass

app = App("target")
app.create_input_stream("clicks", app.create_pe(Clicks), key="user")
app.create_input_stream("fast", app.create_pe(Anything), key="user")
minute = app.create_pe(EachMinute)
minute.set_window(tumbling(60))
app.create_input_stream("timed", minute, key="user")
"""


class Click(Event):
    user: str
    n: int = 0


CLICK, GENERIC = EventType(Click), EventType(GenericEvent)
STREAMS = ("clicks", "fast", "timed", "pages", "keyed", "_sink.a", "", "none")
PEERS = ("a", "b", "c", "~t#1", "~t#2", "~", "a\t1", "", "x" * 1100)
NUMBERS = (0, 0, 0, 0, 0, 1, 1, 2, 3, 4, 5, 63, 64, 4095, 4096)
POWERS = (0, *(1 << bits for bits in (31, 32, 53, 62, 63, 64)))
EDGES = [number + beside for number in POWERS for beside in (-1, 0, 1)] + [-(1 << 63)]
LENGTHS = (0, 63, 64, 65, 256, 257, 1024, 1025, 4096, 4097)
"""Of texts and lists: the bounds, and beside them."""

BODIES = (
    CLICK.encode([Click("ann", 1)]),
    CLICK.encode([Click("ann"), Click("joe", 2)]),
    GENERIC.encode([GenericEvent(user="ann")]),
    b'[{"user":"ann"}]',
    b"\x91\x05",
    b"\x90",
    b"",
)
QUESTIONS = ("list", "describe", "create", "drop", "trim", "forget", "offset", "append", "none")
SINK_QUESTIONS = tuple(f"sink.{word}" for word in ("stage", "publish", "carried", "abort", "list"))
HEADERS = (
    "subscribe", "start", "fence", "own_id", "new", "cluster", "epochs", "savepoint",
    "layout", "closed", "producer", "trace",
)  # fmt: skip


class Frames:
    """An endless supply of frames, the same for a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._seed = seed
        self._made = 0
        self._usual = "", ""  # the stream and the producer of most of the next frames
        self._first = 0

    def __iter__(self) -> Iterator[bytes]:
        while True:
            yield self.next()

    def next(self) -> bytes:
        """A frame; half of them have a number at a bound, some a text or a list, or a byte
        changed."""
        chance = self._random
        if self._made % 12 == 0:  # a new producer, whose first events a node takes
            self._usual = chance.choice(STREAMS[:5]), f"{self._seed}-{self._made}"
            self._first = 0
        self._made += 1
        header, body = self._header(chance.choice((0, 0, 1, 1, 1, 1, 2, 3, 4, 5, 6, 7, 7, 8)))
        head = msgspec.msgpack.encode(header)
        if (luck := chance.random()) < 0.55:
            fields = msgspec.msgpack.decode(head, strict=False)
            self._bend(fields, [int] if luck < 0.5 else [str, list])
            head = msgspec.msgpack.encode(fields)
        frame = struct.pack(">II", len(head), len(body)) + head + body
        if chance.random() < 0.02:
            spoilt = bytearray(frame)
            spoilt[chance.randrange(8, len(frame))] = chance.randrange(256)
            frame = bytes(spoilt)
        return frame

    def _bend(self, fields: list[Any], kinds: list[type]) -> None:
        """Have one field of these kinds at a bound, or beside it."""
        places = list(_places(fields, kinds))
        if not places:
            return
        holder, at = self._random.choice(places)
        value = holder[at]
        if type(value) is int:
            edge = self._random.choice(EDGES)  # msgpack has no whole number from 2**64 on
            holder[at] = edge if edge < 1 << 64 else float(edge)
        else:
            length = self._random.choice(LENGTHS)
            holder[at] = "x" * length if type(value) is str else (value[:1] or [0]) * length

    def number(self) -> int:
        return self._random.choice(NUMBERS)

    def small(self) -> int:
        return self._random.choice((0, 0, 1, 1, 2, 3, 5000))

    def value(self, depth: int = 2) -> Any:
        chance = self._random.random()
        if depth and chance < 0.2:
            return [self.value(depth - 1) for _ in range(self._random.randrange(3))]
        if depth and chance < 0.3:
            return {str(n): self.value(depth - 1) for n in range(self._random.randrange(3))}
        return self._random.choice((None, True, 2.5, "oldest", "", "clicks", self.number()))

    def headers(self) -> dict[str, Any]:
        names = self._random.sample(HEADERS, self._random.choice((0, 0, 0, 1, 2, 4)))
        return {name: self.value() for name in names}

    def positions(self) -> tuple[wire.Position, ...]:
        count = self._random.choice((0, 0, 1, 2, 5))
        return tuple(
            wire.Position(self.small(), self.number(), self.number(), self.number(), self.small())
            for _ in range(count)
        )

    def _header(self, kind: int) -> tuple[Any, bytes]:
        pick = self._random.choice
        stream, peer = self._usual if self._random.random() < 0.7 else (pick(STREAMS), pick(PEERS))
        headers = self.headers()
        if kind == 0:
            positions = pick((self.positions(), (wire.Position(0, 0),)))
            types = pick(((), (), (CLICK.declaration,), (CLICK.declaration, GENERIC.declaration)))
            hello = wire.Hello(peer, pick("123"), stream, types, "", 0, positions, "", headers)
            return hello, b""
        if kind == 1:
            first, mark, count, body = self._first, CLICK.fingerprint, 1, BODIES[0]
            self._first += 1
            if self._random.random() < 0.5:
                body, first = pick(BODIES), self.number()
                count = pick((1, 1, 1, 2, 3, 0, self.number()))
                mark = pick((CLICK.fingerprint, GENERIC.fingerprint, 7))
            sections: tuple[wire.Section, ...] = (wire.Section(mark, count, len(body)),)
            order = b""
            if self._random.random() < 0.1:
                sections += (wire.Section(GENERIC.fingerprint, 1, self.small()),)
                order = pick((b"", b"\x00\x01", b"\x01"))
            data = wire.Data(
                stream, self.small(), peer, first, count, sections,
                pick(("", "", "crc32m:user", "=")), pick((0, 0, 0, 1, 2)), pick((0, 1, 255)), order,
                self.number(), headers,
            )  # fmt: skip
            return data, body
        if kind == 2:
            ruling = wire.Ruling(self.small(), pick((0, 1, 2, 9)), *(self.number() for _ in "abc"))
            return wire.Verdict(stream, peer, (ruling,), headers=headers), b""
        if kind == 3:
            lanes = tuple((self.small(), self.number()) for _ in range(pick((0, 1, 2))))
            return wire.Watermark(stream, peer, self.number(), lanes, headers), b""
        if kind == 4:
            return wire.Idle(stream, peer, pick((0, 1, 7)), headers), b""
        if kind == 5:
            return wire.EndOfStream(stream, peer, headers), b""
        if kind == 6:
            return wire.Drain("enough", headers), b""
        if kind == 7:
            return wire.Query(self.small(), *self._question(), headers), b""
        return wire.Answer(self.small(), {"a": self.value()}, "", headers), b""

    def _question(self) -> tuple[str, dict[str, Any]]:
        pick = self._random.choice
        body = pick(BODIES)
        arguments: dict[str, Any] = {
            "stream": pick(STREAMS), "partition": self.small(), "partitions": self.small(),
            "key": pick(("", "user")), "offset": self.number(), "before_ms": self.number(),
            "millis": self.number(), "producer": pick(PEERS), "first": self.number(),
            "count": pick((1, 2, self.number())), "body": pick((body, 5)),
            "sections": pick(([[CLICK.fingerprint, 1, len(body)]], [], 5)), "types": [],
            "order": b"", "sink": pick(PEERS), "batch": self.number(),
            "attempts": pick(([], [["a", {0: 1}]], self.value())), "last": pick((True, False)),
        }  # fmt: skip
        names = [name for name in arguments if self._random.random() < 0.9]
        return pick(QUESTIONS + SINK_QUESTIONS), {name: arguments[name] for name in names}


def _places(holder: Any, kinds: list[type]) -> Iterator[tuple[Any, Any]]:
    """The holders and places of all values of these kinds, but for the kind of the frame."""
    for at, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
        if type(value) in kinds and not (at == 0 and kinds == [int] and len(holder) > 3):
            yield holder, at
        if isinstance(value, (list, dict)):
            yield from _places(value, kinds)


class Survived(NamedTuple):
    """The result: how many events of honest senders the app has counted, and the log has."""

    sent: int
    honest: int
    counted: int
    logged: int
    errors: list[str]


async def survived(
    folder: Path, frames: int, seed: int, peers: int = 8, *, tls: bool = False
) -> Survived:
    """Send that many frames to a node in ``folder``, beside honest senders."""
    (folder / "app.py").write_text(APP)
    context: ssl.SSLContext | None = None
    credentials: Credentials | None = None
    options = [f"s4.log.folder={folder / 'log'}", f"s4.state.folder={folder / 'state'}"]
    options += ["s4.stream.clicks.grade=durable", "s4.stream.fast.grade=fast"]
    options += ["s4.cluster.partitions=2"]
    if tls:
        issuer = Issuer(folder / "certs")
        options += [f"{key}={value}" for key, value in issuer.node().items()][:-1]
        certificate, key, authority = issuer.files("s4://default/node/fuzz").values()
        context = ssl.create_default_context(cafile=authority)
        context.load_cert_chain(certificate, key)
        credentials = issuer.credentials("s4://default/node/honest")
    settings = [word for option in options for word in ("-p", option)]
    sent = honest = 0
    over = trio.Event()

    async def peer(number: int, address: str) -> None:
        nonlocal sent
        supply = iter(Frames(seed * 100 + number))
        left = frames // peers
        host, port = address.rpartition("://")[2].rsplit(":", 1)
        while left > 0:
            stream: trio.abc.Stream = await trio.open_tcp_stream(host, int(port))
            if context is not None:
                stream = trio.SSLStream(
                    stream, context, server_hostname="node", https_compatible=True
                )
            async with stream:
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(_read, stream, nursery.cancel_scope)
                        await stream.send_all(HANDSHAKE)
                        for _ in range(50):
                            some = [next(supply) for _ in range(min(left, 40))]
                            await stream.send_all(framed(wire.envelope(some)))
                            left -= len(some)
                            sent += len(some)
                        await stream.send_all(framed(wire.envelope([_LAST])))
                except* trio.BrokenResourceError:
                    pass

    listen = TLS if tls else ANY_PORT
    async with node_process("app.py", *settings, cwd=folder, listen=listen) as node:
        log = EmbeddedLog("log", node.address, credentials=credentials)
        async with trio.open_nursery() as asking:
            await asking.start(lambda task_status: log.run(task_status=task_status))
            for name in ("kept", "pages", "keyed"):
                await log.create(name, 1)
            asking.cancel_scope.cancel()
        async with (
            Client(node.address, credentials=credentials) as client,
            trio.open_nursery() as beside,
        ):
            clicks, kept = await client.stream("clicks"), await client.stream("kept")

            async def send() -> None:
                nonlocal honest
                while not over.is_set():
                    await clicks.send(Click("honest", honest))
                    await kept.send(Click("honest", honest))
                    honest += 1
                    if honest % 50 == 0:
                        assert await client.flush() == []
                    await trio.sleep(0.002)

            beside.start_soon(send)
            async with trio.open_nursery() as nursery:
                for number in range(peers):
                    nursery.start_soon(peer, number, node.address)
            over.set()
        async with Client(node.address, credentials=credentials) as client:
            clicks, kept = await client.stream("clicks"), await client.stream("kept")
            await clicks.send(Click("honest", -1))
            await kept.send(Click("honest", honest))
            assert await client.flush() == []
            logged = 0
            async with client.subscribe("kept", types=Click, start=Oldest()) as events:
                with trio.fail_after(60):
                    while logged <= honest:
                        assert (await anext(events)).n == logged
                        logged += 1
        while not node.stdout:
            await trio.sleep(0.01)
        counted = int(node.stdout[0].split()[1])
        errors = [line for line in node.stderr if "Traceback" in line or "a query failed" in line]
    return Survived(sent, honest + 1, counted, logged, errors)


_LAST = wire.encode_frame(wire.Hello("last", "1", "the last one"))
"""Its answer says that the node has handled all frames of the connection: closed before, it would
drop them."""


async def _read(stream: trio.abc.Stream, scope: trio.CancelScope) -> None:
    """Read until the last answer, or the end of the connection."""
    before = b""
    with suppress(trio.BrokenResourceError):
        while some := await stream.receive_some(1 << 20):
            if b"the last one" in before + some:
                break
            before = some[-16:]
    scope.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tls", action="store_true")
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="s4-frames-") as place:
        sending = partial(survived, Path(place), given.frames, given.seed, tls=given.tls)
        print(trio.run(sending), f"{time.monotonic() - began:.0f} s")
