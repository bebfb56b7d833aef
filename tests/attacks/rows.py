"""The attackers: each row writes to sockets as it likes, until it is cancelled."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import count, cycle

import trio
import trio.lowlevel
from harness import colliding_map, colliding_pairs, colliding_query

from s4node import Client, Event
from s4node.events.event import GenericEvent
from s4node.events.schema import EventType
from s4node.events.type_declaration import fingerprint_of
from s4node.net.transport.sp_messages import HANDSHAKE, framed
from s4node.net.wire import frame as wire

MB = 1 << 20


class Click(Event):
    user: str
    n: int = 0


class Pair(Event):
    a: int
    b: int


class Attack:
    """The connections of attackers to the node at ``address``, and what they have sent."""

    def __init__(self, address: str) -> None:
        host, port = address.removeprefix("tcp://").rsplit(":", 1)
        self.address = address
        self.frames = 0
        self.bytes = 0
        self._target = host, int(port)

    async def connected(self, hosts: int = 1, number: int = 0) -> trio.SocketStream | None:
        """A connection that has shaken hands, from one of many addresses; None if refused."""
        raw = trio.socket.socket()
        try:
            if hosts > 1:
                at = number % hosts
                await raw.bind((f"127.0.{1 + at // 250}.{1 + at % 250}", 0))
            await raw.connect(self._target)
            stream = trio.SocketStream(raw)
            await stream.send_all(HANDSHAKE)
        except OSError:
            raw.close()
            return None
        return stream

    async def sends(self, messages: Iterable[bytes], *, reads: bool = True) -> None:
        """Connect and send messages; connect again when the connection is ended."""
        waiting = iter(messages)
        while True:
            peer = await self.connected()
            if peer is None:
                await trio.sleep(0.1)
                continue
            async with peer, trio.open_nursery() as nursery:
                if reads:
                    nursery.start_soon(_read, peer)
                try:
                    for message in waiting:
                        await peer.send_all(framed(message))
                        self.frames += 1
                        self.bytes += len(message)
                    return
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    await trio.sleep(0.05)
                finally:
                    nursery.cancel_scope.cancel()

    async def all_send(
        self, peers: int, messages: Callable[[int], Iterable[bytes]], *, reads: bool = True
    ) -> None:
        """Have several peers send at once."""
        async with trio.open_nursery() as nursery:
            for number in range(peers):
                nursery.start_soon(lambda n=number: self.sends(messages(n), reads=reads))

    async def holds(self, connections: int, first: bytes = b"", hosts: int = 1) -> None:
        async def hold(number: int) -> None:
            while True:
                peer = await self.connected(hosts, number)
                if peer is None:
                    await trio.sleep(0.5)
                    continue
                async with peer:
                    try:
                        if first:
                            await peer.send_all(framed(first))
                        self.frames += 1
                        while await peer.receive_some(65_536):
                            pass
                    except (trio.BrokenResourceError, trio.ClosedResourceError):
                        pass
                await trio.sleep(0.5)

        async with trio.open_nursery() as nursery:
            for number in range(connections):
                nursery.start_soon(hold, number)
                await trio.lowlevel.checkpoint()


async def _read(peer: trio.SocketStream) -> None:
    try:
        while await peer.receive_some(MB):
            pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass


def hello(peer: str, stream: str, *types: wire.TypeDecl, **headers: object) -> bytes:
    """An encoded hello."""
    return wire.encode_frame(wire.Hello(peer, "1", stream, types, headers=headers))


def data(stream: str, producer: str, first: int, fingerprint: int, body: bytes, n: int) -> bytes:
    """An encoded data frame of one section."""
    section = wire.Section(fingerprint, n, len(body))
    header = wire.Data(stream, 0, producer, first, n, (section,), flags=wire.ANSWER_NOW)
    return wire.encode_frame(header, body)


# -- the rows -------------------------------------------------------------------------------------


async def unfinished_messages(attack: Attack) -> None:
    """64 connections, each with most of an announced message of 16 MB."""

    async def one() -> None:
        while True:
            peer = await attack.connected()
            if peer is None:
                await trio.sleep(0.2)
                continue
            async with peer:
                try:
                    await peer.send_all(struct.pack(">Q", 16 * MB))
                    for _ in range(15):
                        await peer.send_all(bytes(MB))
                        attack.bytes += MB
                    await peer.receive_some(100)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass
            attack.frames += 1
            await trio.sleep(0.2)

    async with trio.open_nursery() as nursery:
        for _ in range(64):
            nursery.start_soon(one)


async def unread_answers(attack: Attack) -> None:
    """40 peers that ask and never read."""
    ask = wire.envelope([hello("x", "unknown")] * 100)
    await attack.all_send(40, lambda _: cycle([ask]), reads=False)


async def many_lanes(attack: Attack) -> None:
    """20 peers that open the lanes of 1,024 producers each."""

    def hellos(number: int) -> Iterator[bytes]:
        for n in count():
            yield wire.envelope([hello(f"{number}-{n}", "clicks")])

    await attack.all_send(20, hellos)


async def only_handshakes(attack: Attack) -> None:
    """1,023 connections that only shake hands."""
    await attack.holds(1023)


async def one_hello_from_many_addresses(attack: Attack) -> None:
    """1,024 connections of many addresses that each say one good hello."""
    await attack.holds(1024, wire.envelope([hello("x", "clicks")]), hosts=500)


async def unknown_streams(attack: Attack) -> None:
    """As many hellos to unknown streams as are taken."""

    def hellos(number: int) -> Iterator[bytes]:
        for n in count():
            yield wire.envelope([hello("x", f"unknown-{number}-{n}")])

    await attack.all_send(4, hellos)


async def long_types(attack: Attack) -> None:
    """Hellos that declare types of 4,000 long fields."""

    def hellos(number: int) -> Iterator[bytes]:
        for n in count():
            fields = tuple((f"{'x' * 200}{number}_{n}_{i}", "str", True) for i in range(4000))
            name = f"Long{number}_{n}"
            declared = wire.TypeDecl(name, fingerprint_of(name, fields), fields)
            yield wire.envelope([hello(f"p{n}", "pages", declared)])

    await attack.all_send(2, hellos)


async def keys_of_one_hash(attack: Attack) -> None:
    """Events whose keys of two numbers share one hash."""
    async with Client(attack.address, producer="attacker") as client:
        pairs = await client.stream("pairs")
        for a, b in colliding_pairs(30_000):
            await pairs.send(Pair(a, b))
            attack.frames += 1


async def maps_of_one_hash(attack: Attack) -> None:
    """Headers and events with maps whose keys share one hash."""
    query = wire.envelope([colliding_query(20_000)])
    body = b"\x91\x82\xa4user\xa1x\xa4keys" + colliding_map(20_000)

    def frames(number: int) -> Iterator[bytes]:
        me = f"maps-{number}"
        yield wire.envelope([hello(me, "anything")])
        for n in count():
            yield query
            yield wire.envelope(
                [data("anything", me, n, EventType(GenericEvent).fingerprint, body, 1)]
            )

    await attack.all_send(2, frames)


async def streams_of_the_log(attack: Attack) -> None:
    """Queries that create streams of 256 partitions."""

    def queries(number: int) -> Iterator[bytes]:
        for n in count():
            arguments = {"stream": f"made-{number}-{n}", "partitions": 256}
            yield wire.envelope([wire.encode_frame(wire.Query(n, "create", arguments))])

    await attack.all_send(2, queries)


async def readers_of_the_log(attack: Attack) -> None:
    """Hellos of more and more readers."""

    def hellos(number: int) -> Iterator[bytes]:
        for n in count():
            yield wire.envelope([hello(f"{number}-{n}", "pages", subscribe=True)])

    await attack.all_send(4, hellos)


async def empty_envelopes(attack: Attack) -> None:
    """Envelopes without frames, as many as are taken."""
    one = framed(wire.envelope([]))
    many = one * 20_000

    async def flood() -> None:
        while True:
            peer = await attack.connected()
            if peer is None:
                await trio.sleep(0.1)
                continue
            async with peer:
                try:
                    await peer.send_all(framed(wire.envelope([hello("x", "clicks")])))
                    while True:
                        await peer.send_all(many)
                        attack.frames += 20_000
                        attack.bytes += len(many)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(flood)


async def _events(attack: Attack, stream: str, body: bytes, events: int, peers: int) -> None:
    """Data frames of one body, in order and whatever the credit."""
    mark = EventType(GenericEvent).fingerprint

    def frames(number: int) -> Iterator[bytes]:
        me = f"{stream}-{number}"
        yield wire.envelope([hello(me, stream)])
        for n in count():
            yield wire.envelope([data(stream, me, n * events, mark, body, events)])

    await attack.all_send(peers, frames)


async def events_without_a_key(attack: Attack) -> None:
    """Frames of as many events without a key as a frame may have."""
    await _events(attack, "anything", b"\xdc\x10\x00" + b"\x80" * 4096, 4096, 4)


async def events_that_do_not_decode(attack: Attack) -> None:
    """Frames for the log of events that do not decode and are routed by no key."""
    await _events(attack, "keyed", b"\xdc\x10\x00" + b"\x01" * 4096, 4096, 4)


ROWS: dict[str, Callable[[Attack], Awaitable[None]]] = {
    row.__name__: row
    for row in (
        unfinished_messages,
        unread_answers,
        many_lanes,
        only_handshakes,
        one_hello_from_many_addresses,
        unknown_streams,
        long_types,
        keys_of_one_hash,
        maps_of_one_hash,
        streams_of_the_log,
        readers_of_the_log,
        empty_envelopes,
        events_without_a_key,
        events_that_do_not_decode,
    )
}


async def honest_frames(attack: Attack, per_second: float) -> None:
    """As many frames of an honest peer, each of a few events."""
    async with Client(attack.address, producer="honest") as client:
        clicks = await client.stream("clicks")
        began = trio.current_time()
        while True:
            for n in range(8):
                await clicks.send(Click("somebody", n))
            attack.frames += 1
            ahead = attack.frames / per_second - (trio.current_time() - began)
            if ahead > 0:
                await trio.sleep(ahead)
