"""The rows of a task's outgoing events on one stream: their keys and contents. Pure.

Rules
- Rows belong to a channel: a key begins with the kind of row and the name of the channel.
- Each frame is a row, and so is the next number of each lane. Events that the task has put for
  itself are frames without numbers. Further rows have the types that the frames were written with.
- A channel that may be forgotten and made anew has a row with the name of its life.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from s4node.errors import StateError
from s4node.events.schema import EventType, class_of
from s4node.events.type_declaration import TypeDecl
from s4node.net.egress.lane import Forget, Lane, OutgoingFrame
from s4node.net.egress.refusal import Refusal, Unsent
from s4node.net.egress.stream_types import StreamTypes
from s4node.net.wire import frame as wire
from s4node.net.wire.body import FrameDecoder
from s4node.state.rows import OUTBOX, Changes, task_row

_FRAME, _LANES, _LIFE, _NEXT, _OWN, _SPILL, _TYPE = b"f", b"l", b"i", b"n", b"o", b"s", b"t"
_FRAME_AT = struct.Struct(">IQI")  # partition, first, count
_NEXT_AT = struct.Struct(">I")
_OWN_AT = struct.Struct(">I")
_SPILL_AT = struct.Struct(">Q")
_TYPE_AT = struct.Struct(">Q")

_encode = msgspec.msgpack.Encoder().encode
_number = msgspec.msgpack.Decoder(int).decode
_lanes = msgspec.msgpack.Decoder(tuple[int, str, int | None]).decode
_declaration = msgspec.msgpack.Decoder(TypeDecl).decode

Rows = Iterable[tuple[bytes, bytes]]
"""Rows of the table OUTBOX, without their prefix."""


def channels_of(rows: Rows) -> dict[str, list[tuple[bytes, bytes]]]:
    found: defaultdict[str, list[tuple[bytes, bytes]]] = defaultdict(list)
    for key, value in rows:
        found[key[1 : key.index(b"\0")].decode()].append((key, value))
    return found


def life_of(rows: Rows) -> str:
    """The life of a channel, from its rows; empty if it has only one."""
    return next((value.decode() for key, value in rows if key[:1] == _LIFE), "")


def begin_anew(changes: Changes, channel: str, rows: Rows, life: str) -> None:
    """Have a channel with these rows begin another life, which first puts what waits in them."""
    saved, keys = sort_rows(channel, rows), RowKeys(channel)
    frames = [frame.data for lane in saved.frames.values() for frame in lane]
    forget(changes, rows)
    changes.put(keys.life, life.encode())
    for declared in saved.versions.values():
        changes.put(keys.type(declared.fingerprint), type_row(declared))
    for index, data in enumerate([*frames, *saved.own]):
        changes.put(keys.own_row(index), data)


def forget(changes: Changes, rows: Rows) -> None:
    """Delete rows with the next commit."""
    for key, _ in rows:
        changes.put(task_row(OUTBOX, key), None)


def weight_of(rows: Rows) -> tuple[int, int]:
    """The numbers of events and bytes in the rows of a channel."""
    events = size = 0
    for key, value in rows:
        if key[:1] in (_FRAME, _OWN):
            events += data_of(value)[0].count
            size += len(value)
    return events, size


def numbered(channel: str, rows: Rows) -> int:
    """The number of events that have got numbers in a life of a channel, from its rows."""
    return sum(sort_rows(channel, rows).next_numbers.values())


class RowKeys:
    """The keys of a channel's rows, each with its prefix in the task's database."""

    def __init__(self, channel: str) -> None:
        self._channel = channel.encode() + b"\0"
        self.lanes = self._row(_LANES, b"")
        self.life = self._row(_LIFE, b"")

    def frame(self, partition: int, first: int, end: int) -> bytes:
        return self._row(_FRAME, _FRAME_AT.pack(partition, first, end - first))

    def next_number(self, partition: int) -> bytes:
        return self._row(_NEXT, _NEXT_AT.pack(partition))

    def own_row(self, index: int) -> bytes:
        """The key of waiting events that the task has put for itself."""
        return self._row(_OWN, _OWN_AT.pack(index))

    def spilled(self, index: int) -> bytes:
        """The key of spilled events that the task has put for itself."""
        return self._row(_SPILL, _SPILL_AT.pack(index))

    def type(self, fingerprint: int) -> bytes:
        return self._row(_TYPE, _TYPE_AT.pack(fingerprint))

    def _row(self, kind: bytes, at: bytes) -> bytes:
        return task_row(OUTBOX, kind + self._channel + at)


def number_row(number: int) -> bytes:
    return _encode(number)


def lanes_row(partitions: int, routing: str, layout: int | None) -> bytes:
    return _encode((partitions, routing, layout))


def type_row(declared: TypeDecl) -> bytes:
    return _encode(declared)


class SavedRows(NamedTuple):
    frames: defaultdict[int, list[OutgoingFrame]]  # by partition
    next_numbers: dict[int, int]
    versions: dict[int, TypeDecl]  # by fingerprint
    own: list[bytes]
    spilled: list[tuple[int, int]]  # index and number of events of each row
    lanes: tuple[int, str, int | None] | None  # partitions, routing and layout, if known


def sort_rows(channel: str, rows: Rows) -> SavedRows:
    start = 2 + len(channel.encode())
    saved = SavedRows(defaultdict(list), {}, {}, [], [], None)
    for key, value in rows:
        kind, at = key[:1], key[start:]
        if kind == _FRAME:
            partition, first, count = _FRAME_AT.unpack(at)
            saved.frames[partition].append(OutgoingFrame(first, first + count, value))
        elif kind == _NEXT:
            saved.next_numbers[_NEXT_AT.unpack(at)[0]] = _number(value)
        elif kind == _TYPE:
            saved.versions[_TYPE_AT.unpack(at)[0]] = _declaration(value)
        elif kind == _OWN:
            saved.own.append(value)
        elif kind == _SPILL:
            saved.spilled.append((_SPILL_AT.unpack(at)[0], data_of(value)[0].count))
        elif kind == _LANES:
            saved = saved._replace(lanes=_lanes(value))
    return saved


class Committed(Protocol):
    """The database with the rows of the last commit."""

    def get(self, row: bytes) -> bytes | None: ...


class ChannelRows(Forget):
    """The rows of ``channel`` in the ``changes`` of a task and its ``database``, for events of
    ``types``.

    They are part of the settlement of its outbox. ``life`` names a channel that may be forgotten
    and made anew. ``unsent`` events are reported with commits.
    """

    def __init__(
        self, channel: str, changes: Changes, database: Committed, types: StreamTypes, life: str
    ) -> None:
        self.keys = RowKeys(channel)
        self.changes = changes
        self.types = types
        self.life = life
        self.unsent = Unsent()
        self.of_commit = False  # rows are being made for the current commit
        self.shrank = False  # a receiver has committed events since this was reset
        self.versions: dict[int, TypeDecl] = {}  # with which rows were written, by fingerprint
        self._channel = channel
        self._declared: set[int] = set()
        self._database = database

    def stored(self, row: bytes) -> bytes:
        """The value of a row that exists, in the changes or committed."""
        data = self.changes.find(row, None) or self._database.get(row)
        assert isinstance(data, bytes), "a saved row is gone"
        return data

    def data_of(self, lane: Lane, frame: OutgoingFrame) -> bytes:
        row = self.keys.frame(lane.partition, frame.first, frame.end)
        return frame.data or self.stored(row)

    def restore(self, rows: Rows) -> SavedRows:
        """Sort the rows of an earlier life, and keep the types that are needed to read them."""
        saved = self._sorted(rows)
        versions, types = saved.versions, self.types
        known = {EventType(cls).name for cls in types.kinds}
        for declared in versions.values():  # also if the stream itself declares none
            cls = None if declared.name in known else class_of(declared)
            if cls is not None:
                types.declare(cls)
        ours = {declared.fingerprint for declared in types.declarations}
        self._declared = versions.keys() & ours
        others = versions.keys() - ours
        if others:
            kept = [frame.data for frames in saved.frames.values() for frame in frames]
            used = {each.fingerprint for data in kept for each in data_of(data)[0].sections}
            types.versions = {each: versions[each] for each in others & used}
            for each in () if saved.spilled else others - used:  # unknown until they are read
                self.changes.put(self.keys.type(each), None)
        return saved

    def roll_back(self, changes: Changes, rows: Rows) -> SavedRows:
        """Sort the committed rows, and use new ``changes``."""
        self.changes = changes
        saved = self._sorted(rows)
        self._declared &= saved.versions.keys()
        return saved

    def _sorted(self, rows: Rows) -> SavedRows:
        """Sort rows if they are of our life; rows of another life are deleted."""
        rows = list(rows)
        if life_of(rows) != self.life:
            forget(self.changes, rows)
            self.changes.put(self.keys.life, self.life.encode())
            rows = []
        saved = sort_rows(self._channel, rows)
        self.versions = saved.versions
        return saved

    def settled(self, lane: Lane, before: int, frames: Iterable[OutgoingFrame]) -> None:
        """Delete the rows of settled frames with the next commit."""
        self.shrank = self.shrank or lane.upto > before
        self.drop_frames(lane, frames)

    def drop_frames(self, lane: Lane, frames: Iterable[OutgoingFrame]) -> None:
        for frame in frames:
            self.changes.put(self.keys.frame(lane.partition, frame.first, frame.end), None)

    def takes(self, refusal: Refusal) -> bool:
        if refusal.unsent:
            self.unsent.add(refusal, of_commit=self.of_commit)
        return refusal.unsent

    def declare(self, put: Callable[[bytes, bytes], None]) -> None:
        """Save the declarations of the types in our rows."""
        if len(self._declared) == len(self.types.kinds):
            return
        for declared in self.types.declarations:
            if declared.fingerprint not in self._declared:
                self._declared.add(declared.fingerprint)
                put(self.keys.type(declared.fingerprint), type_row(declared))

    def shared(self) -> Iterator[bytes]:
        """All rows that may exist beside those of events and lanes, to delete them."""
        for fingerprint in self._declared | self.types.versions.keys():
            yield self.keys.type(fingerprint)
        yield self.keys.lanes
        yield self.keys.life


def decoder_of(types: StreamTypes, versions: Mapping[int, TypeDecl]) -> FrameDecoder:
    """A decoder of saved events into ``types``; ``versions`` are the written types."""
    kinds = [kind for kind in types.kinds.values() if isinstance(kind, EventType)]
    readers = {kind.fingerprint: kind for kind in kinds}
    by_name = {kind.name: kind for kind in kinds}
    for fingerprint, declared in versions.items():
        ours = by_name.get(declared.name)
        if ours is not None and ours.refusal_of(declared) is None:
            readers.setdefault(fingerprint, ours)
    return FrameDecoder(readers)


def read_events(stream: str, row: bytes, decoder: FrameDecoder) -> list[Any]:
    """Decode the events of a saved row; raises StateError if one cannot be read."""
    events, refusals = decoder.decode(*data_of(row))
    if refusals:
        raise StateError(
            f"saved events of stream {stream!r} cannot be read: "
            f"{refusals[0][1]}; run the program that wrote them until it stops in order"
        )
    return events


def data_of(data: bytes) -> tuple[wire.Data, memoryview]:
    """Header and body of a saved frame."""
    (frame,) = wire.read_envelope(wire.envelope([data]), len(data))
    if not isinstance(frame, wire.Frame):
        raise StateError(f"a saved frame cannot be read: {frame.reason}")
    assert isinstance(frame.header, wire.Data)
    return frame.header, frame.body
