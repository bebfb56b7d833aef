"""The wire format: envelopes of frames, as bytes and back; see ``docs/wire-protocol.md``.

Rules
- An envelope is one nng message: ``b"S4"``, a version byte, a zero byte, then frames.
- A frame is header length (u32), body length (u32), header, body; numbers are big-endian. The
  header is a msgpack array whose first item is the frame's kind. Only data frames have a body.
- Fields are only ever appended to a header, and a reader ignores unknown ones. Every header ends
  with a map of free headers (creation time, trace context).
- A bad frame inside a good envelope is reported by itself; the other frames are read.
- The types of the fields bound all numbers, and the names and lists that a reader may keep; nothing
  behind this module looks again. What is only shown is bounded by the size of its frame.
- Nothing here knows sockets, clocks or streams.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, TypeAlias

import msgspec

from s4node.errors import LocalFrameError, RemoteFrameError
from s4node.events.plain_values import plain_of, value_of
from s4node.events.type_declaration import TypeDecl

VERSION = 1
MAGIC = b"S4" + bytes((VERSION, 0))
_LENGTHS = struct.Struct(">II")

MSGPACK, JSON = 0, 1
"""Encodings of a data frame's body."""

ANSWER_NOW = 1
"""Flag of a data or idle frame: the producer waits, so send the verdict without delay."""

ADMITTED, SHED, EXPECTED, NOT_OWNER, REFUSED = range(5)
"""Outcomes in a verdict."""

UNNAMED_KEY = "?"
"""The routing of a node whose stream has a key without a name."""

ROUTED = "="
"""The routing of frames between nodes of one cluster: each event is for the frame's partition."""

SENDERS = "senders"
"""Header of data frames between nodes of one cluster: the producers outside it that have sent the
events, as pairs of a producer and its next so many events; an empty name for the app's own."""

MAX_FRAME_BYTES = "max_frame_bytes"
"""Header of a node's hello: the longest frame that it takes, in bytes."""

MAX_ENVELOPE_BYTES = "max_envelope_bytes"
"""Header of a node's hello: the longest envelope that it reads, in bytes."""

NODES = "nodes"
"""Header of a node's hello: the addresses of all nodes that run the app, spares included."""

OWNERS = "owners"
"""Header of a node's hello: for each partition the index of its owner in ``nodes``, -1 for none."""

ADDRESS = "address"
"""Header of a node's hello: the node's own address, as in ``nodes``."""

EPOCH = "epoch"
"""Header of a node's hello: the number of its list of owners; the list with the highest is true."""

ORIGIN = "origin"
"""Header of a node's hello: the deployment in which ``EPOCH`` counts; an app that was removed and
deployed again begins another one, at a lower epoch."""

UNASKED = "unasked"
"""Header of a node's hello that is not an answer: owners have changed."""

TASK = "~"
"""The first character of the producer ids of tasks, and of no others."""

BATCH = "="
"""The first character of the ids of producers that send one batch of events, and maybe again. Their
incarnation is a hash of the batch, and a node refuses another one."""

BATCH_SECONDS = 86_400.0
"""Seconds for which a node remembers a batch at least."""

MAX_BATCHES = 1_000_000
"""The batches that a partition of a durable stream, or a stream of a log, remembers."""

MAX_PRODUCER_BYTES = 1024
"""The longest id of a producer, in bytes of UTF-8: it is in every frame and saved in commits."""

OWN_ID = "own_id"
"""Header of a producer's hello: later lives use the same id, so a node never forgets it by time."""

FENCE = "fence"
"""Header of a task's hello: a number that rises with each owner of the task."""

UNTIMED = "untimed"
"""Header of a task's hello: it reports no time for the stream, so its events have it."""

MAX_LIVES = 16
"""The lives of a task whose numbers its receivers remember, the latest ones."""

DURABLE = "durable"
"""Header of a node's hello: settled events of the stream are committed, and survive the node."""

WHY = "why"
"""Header of a node's hello that refuses a producer, and not for its types: ``NO_STREAM``,
``REPLACED``, ``OTHER_BATCH`` or ``LIMIT``."""

NO_STREAM, REPLACED = "stream", "replaced"
"""Nothing takes the stream at this node; the producer has a newer connection."""

OTHER_BATCH, LIMIT = FINAL = "batch", "limit"
"""The producer's id has sent another batch; the node can take no more producers for now. Both hold
whatever other nodes answer."""

NEW = "new"
"""Header of a producer's hello: its id may have had earlier lives, whose events it has not."""

UNKNOWN = "unknown"
"""Header of a node's hello: partitions of a durable stream in which the node does not know this
producer, although the producer has settled numbers there."""

CLUSTER = "cluster"
"""Header of a producer's hello: the cluster to which it belongs, for the app's own streams."""

APP = "app"
"""Header of a producer's hello: it sends what an app puts, which may lead back to the app."""

LEADS = "leads"
"""Header of a node's hello: the inputs to which events of the stream may lead, over any apps, each
as ``cluster/app/stream``; the stream itself is one of them."""

PRODUCER = "producer"
"""Header of a node's hello: the producer that it answers; a connection may carry several."""

SUBSCRIBE = "subscribe"
"""Header of a hello of a reader of the stream."""

MISSED = "missed"
"""Header of an idle frame to a subscriber: the number of events that it was too slow for."""

START = "start"
"""Header of a reader's hello, where to begin: ``OLDEST``; ``UPCOMING``, the default; a number, for
the first event appended at or after that Unix time in milliseconds; or ``POSITIONS``, for the
numbers of the hello's positions."""

OLDEST, UPCOMING, POSITIONS = "oldest", "upcoming", "positions"
"""Values of the header ``start``. ``upcoming`` is also a header of a log's data frames: the number
of the next event of the partition."""

EPOCHS = "epochs"
"""Header of a hello from or to a reader of a log: the epoch of each partition's position, as pairs
of partition and epoch. A log refuses a position beyond the end of its epoch."""

READER = "reader"
"""Header of a node's hello to a reader: the reader that it answers, of several on a connection."""

LOG = "log"
"""Header of a node's hello: the stream is in a log, so its events are stored and have offsets."""

LOST = "lost"
"""Header of an idle frame to a reader of a log: ``[partition, number, oldest]``. The next events,
from ``number`` on, are gone; nothing more of the partition is sent.

Also a header of a log's hello to a producer: pairs of a partition and a number; the log has lost
acknowledged events from that number up to the producer's position."""

SAVEPOINT = "savepoint"
"""The last cut of a task, by its savepoint's number: a header of the task's data frames. In a
verdict or a node's hello to a task: pairs of partition and number."""

LAYOUT = "layout"
"""Header of a hello for a durable stream: the number of the layout in which partitions and numbers
are counted. A node without a partition of the stream does not know it."""

CLOSED = "closed"
"""Header of a node's hello to a producer of an earlier layout, or of none: its final numbers in the
layouts that have ended, from the producer's one on."""

TIME = "time"
"""Header of a node's hello: the field with the time of an event, if events have one; empty if it is
the ``created_ms`` of their frame."""

IDLE = "idle"
"""Header of a task's watermark: nothing is waited for where the task has its events from."""

FAULT = "fault"
"""Header of a node's hello or answer with an error: the name of the error's class."""

OUTCOMES = ("admitted", "shed", "expected", "not owner", "refused")

MAX_QUESTIONS = 64
"""Questions of one connection that may wait for an answer; a node refuses more."""

MAX_NUMBER = (1 << 62) - 1
"""The highest number of an event: the sum of two numbers still fits into a header."""

MAX_PARTITIONS = 4096
"""The most partitions of a stream."""

WINDOW_BYTES = 64 << 20
"""The bytes without a verdict that a producer may have to keep for a stream. On durable streams,
where verdicts come with commits, commits are made often enough."""

MAX_SECTIONS = 256
"""The most sections of a frame: ``order`` has a byte for each event."""

MAX_TYPES = 4096
"""The most versions of event types that a stream may have."""

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
Sum: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]  # of two numbers
Small: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
Millis: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]  # exact as seconds
Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=4096)]
Incarnation: TypeAlias = Annotated[str, msgspec.Meta(max_length=256)]  # saved for each lane

if TYPE_CHECKING:
    Headers: TypeAlias = dict[str, Any]
else:
    # each level doubles the time for which a program that loads this module waits
    Headers = dict[str, plain_of(Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)], 4)]


class _Header(msgspec.Struct, array_like=True, frozen=True, gc=False):
    kind: ClassVar[str] = ""


class Position(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The position of a lane.

    From a producer, ``number`` is its first event without a verdict. From a node, ``number`` is
    expected next, ``limit`` is the first number without credit, and everything below ``safe`` is
    done. ``life`` numbers the lives of the producer: the node assigns it, and the producer repeats
    it when it reconnects.
    """

    partition: Small
    number: Number
    limit: Sum = 0
    safe: Sum = 0
    life: Number = 0


Positions: TypeAlias = Annotated[tuple[Position, ...], msgspec.Meta(max_length=MAX_PARTITIONS)]


class Hello(_Header, tag=0, frozen=True):
    """Opens a stream on a connection; the node answers with a hello.

    ``peer`` is the producer's id or the node's name; ``incarnation`` changes with every start of
    the peer's process. ``types`` are the event types that a producer sends, or that a node's stream
    accepts. ``routing`` names hasher and key finder, as in ``crc32m:user``; it is empty if the
    sender does not route by key. A node's routing ends in ``:`` if the stream has no key and in
    ``:?`` if the key has no name; a KeyFinder's name begins with ``@``. ``error`` says why a node
    refuses the stream.
    """

    kind: ClassVar[str] = "hello"
    peer: str  # if it is too long, the answer says so: see too_long
    incarnation: Incarnation
    stream: Name
    types: Annotated[tuple[TypeDecl, ...], msgspec.Meta(max_length=MAX_TYPES)] = ()
    routing: Name = ""
    partitions: Small = 0
    positions: Positions = ()
    error: str = ""
    headers: Headers = {}


class Section(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The part of a body with one event type: fingerprint, events, bytes."""

    fingerprint: Annotated[int, msgspec.Meta(ge=0)]
    count: Small
    size: Small


class Data(_Header, tag=1, frozen=True):
    """Events of one producer for one partition of a stream, numbered from ``first``.

    The body is one section after another, each a msgpack (or JSON) array of events of one type.
    If there are several sections, ``order`` has a byte for each event: its section.
    """

    kind: ClassVar[str] = "data"
    stream: Name
    partition: Small
    producer: Name
    first: Number
    count: Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)]
    sections: Annotated[tuple[Section, ...], msgspec.Meta(min_length=1, max_length=MAX_SECTIONS)]
    routing: Name = ""
    encoding: Small = MSGPACK
    flags: Small = 0
    order: bytes = b""
    created_ms: Millis = 0
    headers: Headers = {}


class Ruling(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The acknowledgement of one producer's events in one partition.

    Everything below ``upto`` is done (processed, shed or refused). ``limit`` is the first number
    without credit. ``expected`` is the number to send next; the outcome EXPECTED asks the producer
    to go back to it. ``exceptions`` has ``(number, count, reason)`` of refused events, ``shed`` of
    events dropped for overload. With NOT_OWNER, ``owner`` is the address of the partition's owner.
    """

    partition: Small
    outcome: Small
    upto: Sum
    limit: Sum
    expected: Sum
    exceptions: tuple[tuple[Sum, Sum, str], ...] = ()
    owner: Name = ""
    shed: tuple[tuple[Sum, Sum, str], ...] = ()


class Verdict(_Header, tag=2, frozen=True):
    """A node's rulings for one producer of a stream; ``error`` answers a bad frame."""

    kind: ClassVar[str] = "verdict"
    stream: Name
    producer: Name
    rulings: Annotated[tuple[Ruling, ...], msgspec.Meta(max_length=MAX_PARTITIONS)] = ()
    error: str = ""
    headers: Headers = {}


class Watermark(_Header, tag=3, frozen=True):
    """Event time: the producer is at ``millis`` (Unix time) on the stream.

    It holds for each lane of ``positions``, pairs of a partition and the number of its next event:
    once all events before that number are processed.
    """

    kind: ClassVar[str] = "watermark"
    stream: Name
    producer: Name
    millis: Millis
    positions: Annotated[
        tuple[tuple[Small, Number], ...], msgspec.Meta(max_length=MAX_PARTITIONS)
    ] = ()
    headers: Headers = {}


class Idle(_Header, tag=4, frozen=True):
    """Says that the producer has nothing to send now; with ANSWER_NOW, it asks for a verdict."""

    kind: ClassVar[str] = "idle"
    stream: Name
    producer: Name
    flags: Small = 0
    headers: Headers = {}


class EndOfStream(_Header, tag=5, frozen=True):
    """Says that the producer sends no more on this stream; the node may forget it."""

    kind: ClassVar[str] = "end of stream"
    stream: Name
    producer: Name
    headers: Headers = {}


class Drain(_Header, tag=6, frozen=True):
    """Says that the node is stopping: keep events without a verdict, and connect again later.

    A producer answers with its own Drain, its last frame before it connects again.
    """

    kind: ClassVar[str] = "drain"
    reason: str = ""
    headers: Headers = {}


class Query(_Header, tag=7, frozen=True):
    """A question to a node's log; the answer has the same ``id``."""

    kind: ClassVar[str] = "query"
    id: Sum
    question: Name
    arguments: dict[str, Any] = {}
    headers: Headers = {}


NOTICE = 0
"""The id of an answer to no query: a node says why it reads a connection more slowly."""


class Answer(_Header, tag=8, frozen=True):
    """A node's answer to the query with this ``id``: values by name, or an error."""

    kind: ClassVar[str] = "answer"
    id: Sum
    values: dict[str, Any] = {}
    error: str = ""
    headers: Headers = {}


Header: TypeAlias = Hello | Data | Verdict | Watermark | Idle | EndOfStream | Drain | Query | Answer


class Frame(NamedTuple):
    """A frame that was read: its header of ``size`` bytes, and the bytes of a data frame's body."""

    header: Header
    body: memoryview
    size: int = 0


class BadFrame(NamedTuple):
    """A frame that could not be read, the reason, and its header if that could be read; else the
    ``size`` of what was tried to read."""

    reason: str
    header: Header | None = None
    size: int = 0


class _RawQuery(_Header, tag=7, frozen=True):
    id: Sum
    question: Name
    arguments: dict[str, msgspec.Raw] = {}
    headers: Headers = {}

    def plain(self) -> Query:
        values = {name: value_of(raw) for name, raw in self.arguments.items()}
        return Query(self.id, self.question, values, self.headers)


class _RawAnswer(_Header, tag=8, frozen=True):
    id: Sum
    values: dict[str, msgspec.Raw] = {}
    error: str = ""
    headers: Headers = {}

    def plain(self) -> Answer:
        values = {name: value_of(raw) for name, raw in self.values.items()}
        return Answer(self.id, values, self.error, self.headers)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(
    Hello | Data | Verdict | Watermark | Idle | EndOfStream | Drain | _RawQuery | _RawAnswer
)
_UNDECODABLE = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)


def pairs(headers: Headers, name: str) -> dict[int, int]:
    """The pairs of partitions and numbers in a header; empty if a peer sent anything else."""
    found = headers.get(name)
    if not isinstance(found, (list, tuple)):
        return {}
    listed = [each for each in found if isinstance(each, (list, tuple)) and len(each) == 2]
    return {a: b for a, b in listed if isinstance(a, int) and isinstance(b, int)}


def senders_of(data: Data) -> list[tuple[str, int]]:
    """The senders in a data frame's header; empty unless they add up to its events."""
    found = data.headers.get(SENDERS)
    if not isinstance(found, (list, tuple)):
        return []
    listed = [tuple(each) for each in found if isinstance(each, (list, tuple)) and len(each) == 2]
    good = [(a, b) for a, b in listed if isinstance(a, str) and isinstance(b, int) and b > 0]
    return good if sum(count for _, count in good) == data.count else []


def too_long(producer: str) -> str:
    """The reason to refuse a producer id as too long; empty if it is not."""
    size = len(producer.encode(errors="surrogatepass"))
    if size <= MAX_PRODUCER_BYTES:
        return ""
    return (
        f"the producer id {producer[:40]!r}... has {size} bytes, more than {MAX_PRODUCER_BYTES}; "
        f"give the producer a shorter one"
    )


def encode_frame(header: Header, body: bytes = b"") -> bytes:
    """One frame as bytes; raises LocalFrameError if the header cannot be encoded."""
    try:
        head = _encoder.encode(header)
        return b"".join((_LENGTHS.pack(len(head), len(body)), head, body))
    except (TypeError, ValueError, OverflowError, RecursionError, struct.error) as error:
        raise LocalFrameError(f"{header.kind} frame cannot be encoded: {error}") from error


def envelope(frames: Iterable[bytes]) -> bytes:
    return b"".join((MAGIC, *frames))


def read_envelope(data: bytes, max_frame_bytes: int) -> Iterator[Frame | BadFrame]:
    """The frames of an envelope, one by one.

    A frame whose header does not decode, or that is larger than ``max_frame_bytes``, is yielded as
    BadFrame, and reading goes on after it. Raises RemoteFrameError if nothing more can be read: not
    an envelope, another version, or lengths that point outside.
    """
    if data[:2] != MAGIC[:2]:
        raise RemoteFrameError(
            f"an envelope starts with b'S4', not {bytes(data[:4])!r}; is this an s4node peer?"
        )
    if len(data) < len(MAGIC):
        raise RemoteFrameError(f"truncated: {len(data)} bytes are not an envelope")
    if data[2] != VERSION:
        raise RemoteFrameError(
            f"protocol version {data[2]} is unknown; this side speaks version {VERSION}"
        )
    view = memoryview(data)
    at, end = len(MAGIC), len(data)
    while at < end:
        if end - at < 8:
            raise RemoteFrameError(f"truncated: {end - at} bytes at offset {at} are not a frame")
        head_size, body_size = _LENGTHS.unpack_from(data, at)
        size = 8 + head_size + body_size
        if size > end - at:
            raise RemoteFrameError(
                f"truncated: a frame of {size} bytes at offset {at} has only {end - at}"
            )
        body_at = at + 8 + head_size
        if head_size > max_frame_bytes:
            yield BadFrame(_over(size, max_frame_bytes))
        else:
            try:
                read = _decoder.decode(view[at + 8 : body_at])
                raw = isinstance(read, (_RawQuery, _RawAnswer))
                header: Header = read.plain() if raw else read
            except _UNDECODABLE as error:  # bad UTF-8 is a plain ValueError
                yield BadFrame(
                    f"the header at offset {at + 8} does not decode: {error}", None, head_size
                )
            else:
                if size > max_frame_bytes:
                    yield BadFrame(_over(size, max_frame_bytes), header)
                else:
                    yield Frame(header, view[body_at : at + size], head_size)
        at += size


def _over(size: int, limit: int) -> str:
    return f"a frame of {size} bytes is over the limit of {limit}"


def check_data(data: Data, body: memoryview, partitions: int) -> str:
    """The reason why a node with these ``partitions`` refuses a data frame; or empty."""
    if not 0 <= data.partition < partitions:
        return f"stream {data.stream!r} has no partition {data.partition}"
    sections, count = data.sections, data.count
    if len(sections) == 1 and data.encoding <= JSON and data.first + count <= MAX_NUMBER:
        section = sections[0]  # as most frames are: nothing is wrong
        if section.count == count <= section.size == len(body):
            return ""
    problem = check_sections(data, body)
    where = f"{data.stream}[{data.partition}]@{data.producer}:{data.first}"
    return f"{where}: {problem}" if problem else ""


def check_sections(header: Data, body: memoryview) -> str:
    """The reason why the sections of a data frame do not add up; empty if they do."""
    sections = header.sections
    if header.encoding not in (MSGPACK, JSON):
        return f"unknown encoding {header.encoding}; 0 is msgpack, 1 is JSON"
    if header.first + header.count > MAX_NUMBER:
        return f"it has {header.count} events from {header.first} on, numbers end at {MAX_NUMBER}"
    for section in sections:
        if section.count > section.size:  # an event takes at least a byte
            return f"a section of {section.size} bytes announces {section.count} events"
    if sum(section.size for section in header.sections) != len(body):
        return f"the sections do not add up to the body's {len(body)} bytes"
    if sum(section.count for section in header.sections) != header.count:
        return f"the sections do not add up to {header.count} events"
    if len(header.sections) > 1:
        if len(header.order) != header.count:
            return f"order has {len(header.order)} bytes for {header.count} events"
        counts = Counter(header.order)
        for index, section in enumerate(header.sections):
            if counts[index] != section.count:
                return f"order and section {index} disagree on its number of events"
    return ""
