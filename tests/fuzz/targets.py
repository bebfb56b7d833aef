"""The targets of the fuzzer: each takes any bytes, and raises only if a promise does not hold.

Importing this module imports the decoders, which the fuzzer has instrumented then.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from s4node.cluster.node import package, supervisor_protocol
from s4node.config import properties
from s4node.errors import CheckpointError, PackageError, RemoteFrameError, S4Error, StateError
from s4node.events.event import Event, GenericEvent
from s4node.events.keys import Partitioner
from s4node.events.plain_values import array_keys
from s4node.events.routing import KeyRule, Router
from s4node.events.schema import UNREADABLE, EventType, NamedType, OpenType, TypeReader
from s4node.log.partition.ledger import Incoming
from s4node.log.partition.partition_database import NotTaken, create_database
from s4node.log.partition.partition_file import PartitionFile
from s4node.log.partition.partition_rows import OtherChecksum, _checksum, frame_of
from s4node.log.partition.partition_view import PartitionView
from s4node.log.sink.sink_file import SinkFile
from s4node.log.split import PIECE, Splitting
from s4node.net.ingress.admission import StreamAdmission
from s4node.net.ingress.producer_lane import Effects
from s4node.net.transport.sp_messages import HANDSHAKE, SpMessages
from s4node.net.wire import frame as wire
from s4node.net.wire.body import FrameDecoder
from s4node.savepoints import manifest
from s4node.stages.stage import Stage
from s4node.state import remote_log

MOST = 1 << 16
EVENTS = 2 * PIECE + 1
"""The events of an input that are decoded: an event that does not decode with others takes 20
microseconds, and more of them reach nothing new."""

ENTRY = b"S4l1"
"""How an object of shipped state begins, before its checksum."""


class Place(msgspec.Struct):
    x: int
    y: float = 0.0


class Click(Event):
    user: str
    n: int = 0


class Rich(Event):
    when: datetime
    day: date | None = None
    price: Decimal = Decimal(0)
    at: Place | None = None
    tags: dict[str, list[int]] = {}  # noqa: RUF012
    rest: Any = None


CLICK, RICH, GENERIC = EventType(Click), EventType(Rich), EventType(GenericEvent)
READERS: dict[int, TypeReader] = {
    CLICK.fingerprint: CLICK,
    RICH.fingerprint: RICH,
    GENERIC.fingerprint: GENERIC,
    1: OpenType(CLICK.declaration),
    2: NamedType(RICH),
}
MARKS = tuple(READERS)
ROUTER = Router(KeyRule("user", generic=True, checked=True), Partitioner(4))


def messages(data: bytes) -> None:
    """nng's framing: whatever comes in whatever pieces, memory follows what has come."""
    if not data:
        return
    splitting, step = SpMessages(MOST), 1 + data[0]
    if data[0] & 1:
        splitting.split(memoryview(HANDSHAKE))
    rest = data[1:]
    with suppress(RemoteFrameError):
        for at in range(0, len(rest), step):
            for message in splitting.split(memoryview(rest[at : at + step])):
                assert isinstance(message, RemoteFrameError) or len(message) <= MOST
            assert splitting.unfinished <= min(MOST, len(rest))


def envelopes(data: bytes) -> None:
    """Frames: what is read can be written, and data frames that add up decode or are refused."""
    left = EVENTS
    try:
        for frame in wire.read_envelope(data, MOST):
            if isinstance(frame, wire.Frame):
                written = wire.encode_frame(frame.header, bytes(frame.body))
                again = list(wire.read_envelope(wire.envelope([written]), 2 * MOST))
                assert repr(again[0].header) == repr(frame.header)
                if isinstance(frame.header, wire.Data):
                    check = wire.check_data(frame.header, frame.body, 4)
                    if not check and frame.header.count <= left:
                        left -= frame.header.count
                        decoded(frame.header, frame.body)
    except RemoteFrameError:
        pass


def bodies(data: bytes) -> None:
    """Bodies of one section: two bytes say its type, encoding and number of events."""
    if len(data) < 3:
        return
    body = memoryview(data)[2:]
    mark, encoding, count = MARKS[data[0] % len(MARKS)], data[0] >> 7, 1 + data[1]
    header = wire.Data(
        "s", 0, "p", 0, count, (wire.Section(mark, count, len(body)),), encoding=encoding
    )
    if not wire.check_sections(header, body):
        decoded(header, body)


def decoded(header: wire.Data, body: memoryview) -> None:
    """Every event of a frame is decoded or refused, and what is decoded can be saved."""
    events, refusals = FrameDecoder(READERS).decode(header, body)
    bad = {index for index, _ in refusals}
    assert len(events) == header.count
    assert all((event is None) == (index in bad) for index, event in enumerate(events))
    for event in events:
        if event is not None:
            kind = {Click: CLICK, Rich: RICH}.get(type(event), GENERIC)
            kind.encode([event])
    splitting = Splitting(header, body, READERS, ROUTER)
    while not splitting.next_piece():
        pass
    refused = {index for index, _ in splitting.refusals}
    passed = [number - header.first for part in splitting.parts() for number in part.numbers]
    assert bad <= refused
    assert sorted([*refused, *passed]) == list(range(header.count))


def values(data: bytes) -> None:
    """Counting the keys of maps agrees with the decoder about what a value is."""
    try:
        msgspec.msgpack.decode(data)
    except (*UNREADABLE, TypeError, OverflowError, ValueError):
        with suppress(S4Error):
            array_keys(data)
        return
    array_keys(data)


def admissions(data: bytes) -> None:
    """The frames of peers one after the other: the admission keeps its rules."""
    stages = {number: Stage(40, number) for number in range(2)}
    admission = StreamAdmission("s", stages, Effects())
    now = 0.0
    with suppress(RemoteFrameError):
        for frame in wire.read_envelope(wire.MAGIC + data, MOST):
            now += 0.25
            header = frame.header
            if isinstance(header, wire.Hello):
                if not admission.refusal(header) and admission.beside(header.peer, 1) < 1024:
                    admission.hello(header, 1, now)
            elif isinstance(header, wire.Data) and isinstance(frame, wire.Frame):
                if not wire.check_data(header, frame.body, 2):
                    receipt = admission.admit(header, 1, now, len(frame.body))
                    if receipt is not None and header.first % 3:
                        receipt.done()
            elif isinstance(header, wire.EndOfStream):
                admission.forget(header.producer, 1)
            elif isinstance(header, wire.Idle):
                admission.ask(header.producer, 1)
            elif isinstance(header, wire.Drain):
                admission.gone(1, now)
            admission.tick(now, 2.0)
            for lane in list(admission.lanes.values()):
                wire.encode_frame(wire.Verdict("s", lane.producer, (lane.ruling(),)))
        admission.validate()


def rows(data: bytes) -> None:
    """A row of a log's file, with the checksum that it would have."""
    if len(data) < 4:
        return
    head, body = data[4 : 4 + data[0]], data[4 + data[0] :]
    start, first, count, number = data[0], data[1], data[2], data[3]
    checksum = _checksum((start, first, count, 0, number), head, body)
    try:
        frame_of((start, first, count, 0, "p", number, checksum, head, body))
    except (*UNREADABLE, TypeError, OtherChecksum):  # which a file's errors are made of
        pass


def manifests(data: bytes) -> None:
    """The manifests of savepoints, of shipped state, and of packages."""
    with suppress(CheckpointError):
        found = manifest.parse(data, "a place")
        assert list(found.files()) is not None
    with suppress(StateError):
        remote_log.decoded(data, "a place")
        remote_log.decoded(ENTRY + zlib.crc32(data).to_bytes(4) + data, "a place")
    with suppress(PackageError):
        package.decode(data)


def lines(data: bytes) -> None:
    """A container's lines to its supervisor, and files of settings."""
    with suppress(ValueError, *UNREADABLE):
        for line in supervisor_protocol.Lines().feed(data):
            supervisor_protocol.from_container(line)
    with suppress(UnicodeDecodeError):
        list(properties.parse("a file", data.decode()))


def log_files(data: bytes) -> None:
    """A partition's file with damage: it is read, or the error says that it is damaged."""
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        path = Path(folder) / "0000.sqlite"
        path.write_bytes(damaged(_partition(), data))
        try:
            file = PartitionFile(path, "s", 0)
        except (S4Error, NotTaken):
            return
        view = PartitionView(path)
        try:
            view.read(0, MOST)
            view.rows()
            view.offset_at(1)
            _append(file)
        except (S4Error, NotTaken):
            pass
        finally:
            view.close()
            file.close()


def sink_files(data: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        path = Path(folder) / "sinks.sqlite"
        path.write_bytes(damaged(_sinks(), data))
        with suppress(S4Error):
            file = SinkFile(Path(folder))
            try:
                file.sinks()
            finally:
                file.close()


def damaged(file: bytes, data: bytes) -> bytes:
    """A file with bytes changed: three say where, one what is there then."""
    spoilt = bytearray(file)
    for at in range(0, len(data) - 3, 4):
        spoilt[int.from_bytes(data[at : at + 3]) % len(spoilt)] = data[at + 3]
    return bytes(spoilt)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        messages,
        envelopes,
        bodies,
        values,
        admissions,
        rows,
        manifests,
        lines,
        log_files,
        sink_files,
    )
}

SLOW = ("log_files", "sink_files")
"""Those that write a file for each input."""


# -- what they need -------------------------------------------------------------------------------


def _memory() -> str | None:
    """A folder in memory, if the system has one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _append(file: PartitionFile) -> None:
    body = CLICK.encode([Click("ann"), Click("joe", 1)])
    section = wire.Section(CLICK.fingerprint, 2, len(body))
    frame = Incoming(
        "p", 0, 2, body, (section,), types={CLICK.fingerprint: CLICK.declaration}, life=1
    )
    file.write_plan(file.ledger.plan([frame], 5))


@cache
def _partition() -> bytes:
    """A partition's file with a frame, closed in order."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "0000.sqlite"
        create_database(path, "s", 0)
        file = PartitionFile(path, "s", 0)
        _append(file)
        file.cut_wal()
        file.close()
        return path.read_bytes()


@cache
def _sinks() -> bytes:
    """A file of sinks, closed in order."""
    from s4node.log.sink.decision import Attempt, Decision, Sink

    with tempfile.TemporaryDirectory() as folder:
        file = SinkFile(Path(folder))
        file.put(Sink("job", "s", 3, 2, 2, 1, Decision((Attempt("a", {0: 2}),), {0: 0})))
        file.close()
        (path,) = Path(folder).glob("*.sqlite")
        return path.read_bytes()
