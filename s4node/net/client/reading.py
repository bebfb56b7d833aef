"""A reading: one reader's share of a connection to a node, for one stream. Pure.

Rules
- ``hello`` first, after every connect. What an app puts on a stream is read from the hello on, and
  begins anew with each connection; ``interruptions`` counts that. A log's stream is read from a
  start, and goes on at its positions whatever happens to connections: each event once, in order.
- The reader gives credit: a window of events ahead of what it has read, and fewer where they are
  large. While it is paused it gives none.
- A partition whose next event is gone is lost: nothing more comes of it, and that is told in its
  place, behind what came before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from s4node import errors
from s4node.errors import ConnectionRefused, InputLost, S4Error, StartpointError
from s4node.events.event import GenericEvent
from s4node.events.schema import EventType, TypeReader, reader_of
from s4node.net.wire import frame as wire
from s4node.net.wire.decoder import FrameDecoder
from s4node.offsets.startpoint import Oldest, Specific, Startpoint, Timestamp, Upcoming

_UNKNOWN_WEIGHT = 256
"""Bytes that an event is taken to weigh before any has come."""


class Arrived(NamedTuple):
    """Events that have come, not yet decoded: of the frame's, those from ``first`` on are new."""

    reading: Reading
    place: Place
    first: int
    data: wire.Data
    body: memoryview

    @property
    def end(self) -> int:
        """The number behind the last one."""
        return self.data.first + self.data.count


class Lost(NamedTuple):
    """The partition's next events are gone."""

    place: Place
    error: InputLost


class Place:
    """One partition of a reading: numbers are offsets where the stream is a log's.

    ``position`` is what the node sends next, ``passed`` what the reader reads next, ``upcoming``
    what the node's next event will get, as it was last heard.
    """

    __slots__ = ("epoch", "limit", "lost", "partition", "passed", "position", "upcoming")

    def __init__(self, partition: int, position: int) -> None:
        self.partition = partition
        self.position = self.passed = self.limit = position
        self.upcoming: int | None = None
        self.epoch = 0  # that of the position, where the node has told one
        self.lost = False


def start_header(start: Startpoint | Mapping[int, int]) -> Any:
    """How a hello says it."""
    match start:
        case Oldest():
            return wire.OLDEST
        case Upcoming():
            return wire.UPCOMING
        case Timestamp(millis):
            return millis
    return wire.POSITIONS


def fault_of(error: str, headers: wire.Headers) -> S4Error:
    """A node's error as the class of ours that it names."""
    named = getattr(errors, str(headers.get(wire.FAULT)), None)
    if isinstance(named, type) and issubclass(named, S4Error):
        try:
            return named(error)
        except TypeError:  # one that a message alone does not make
            pass
    return ConnectionRefused(error)


class Reading:
    """Reads ``stream`` as ``reader``, an id that is unique on its connection.

    Events of a class in ``types`` come as objects of it, others, where ``types`` is empty or names
    GenericEvent or ``others`` is true, as GenericEvents with the fields' names. ``start`` is a
    startpoint, or offsets by partition; those it does not name are not read. ``window`` counts
    events, ``window_bytes`` their bytes. ``deliver`` takes what comes, ``on_credit`` is told that
    there is something to ``say``.
    """

    def __init__(
        self,
        stream: str,
        reader: str,
        types: Sequence[type],
        start: Startpoint | Mapping[int, int],
        *,
        window: int,
        window_bytes: int,
        others: bool,
        deliver: Callable[[Arrived | Lost], None],
        epochs: Mapping[int, int] = {},
        on_credit: Callable[[], None] = lambda: None,
    ) -> None:
        self.stream = stream
        self.reader = reader
        self.error: S4Error | None = None
        self.opened = False
        self.log = False
        self.paused = False
        self.interruptions = 0
        self.nodes: tuple[str, ...] = ()
        self.alias = ""
        self.places: dict[int, Place] = {}
        self.said: list[bytes] = []
        self._missed = self._missed_before = 0
        self._start = start
        self._epochs = dict(epochs)
        self._window = window
        self._window_bytes = window_bytes
        self._deliver = deliver
        self._on_credit = on_credit
        self._producer = ""
        self._weight: float = _UNKNOWN_WEIGHT
        self._known = {kind.name: kind for kind in map(EventType, types)}
        self._others = others or not types or GenericEvent in types
        self._readers: dict[int, TypeReader] = {}
        self.decoder = FrameDecoder(self._readers)

    @property
    def live(self) -> bool:
        """Whether it is known to read what an app puts on a stream, which no log keeps."""
        return self.opened and not self.log

    @property
    def missed(self) -> int:
        """Events that were not sent, for reading too slowly or since no frame can hold them; none,
        where the stream is a log's."""
        return self._missed_before + self._missed

    @property
    def window(self) -> int:
        """Events that the node may send ahead of the reader, as large as they have been lately."""
        return max(1, min(self._window, int(self._window_bytes / self._weight)))

    # -- out ---------------------------------------------------------------------------------

    def hello(self) -> bytes:
        """The frame that begins the reading on a new connection."""
        start = start_header(self._start)
        if self.log:
            start, places = wire.POSITIONS, [p for p in self.places.values() if not p.lost]
        elif isinstance(self._start, Specific):
            places = [Place(0, self._start.offset)]
        elif isinstance(self._start, Mapping):
            places = [Place(partition, number) for partition, number in self._start.items()]
        else:
            places = [Place(0, 0)]
        for place in places:
            place.limit = place.passed + self.window if not self.paused else place.position
        return wire.encode_frame(
            wire.Hello(
                self.reader,
                "",
                self.stream,
                positions=tuple(wire.Position(p.partition, p.position, p.limit) for p in places),
                headers={wire.SUBSCRIBE: True, wire.START: start, **self._known_epochs(places)},
            )
        )

    def _known_epochs(self, places: Sequence[Place]) -> dict[str, Any]:
        known = [(p.partition, p.epoch or self._epochs.get(p.partition, 0)) for p in places]
        epochs = [each for each in known if each[1]]
        return {wire.EPOCHS: epochs} if epochs else {}

    def take_said(self) -> list[bytes]:
        """What is to be sent."""
        said, self.said = self.said, []
        return said

    def passed(self, place: Place, end: int) -> None:
        """Everything of the partition below ``end`` has been read: give the credit back."""
        if self.places.get(place.partition) is place:  # not of an earlier connection
            place.passed = max(place.passed, end)
            self._credit(place)

    def pause(self) -> None:
        """Give no credit until ``resume``; what was given before may still come."""
        self.paused = True

    def resume(self) -> None:
        """Give credit again."""
        self.paused = False
        for place in self.places.values():
            self._credit(place)

    def end(self) -> None:
        """Read no more."""
        self._say(wire.encode_frame(wire.EndOfStream(self.stream, self.reader)))

    def _credit(self, place: Place) -> None:
        """A quarter of the window at a time, for small grants would make small frames."""
        window = self.window
        if self.opened and not self.paused and place.limit - place.passed < window * 3 // 4 + 1:
            place.limit = max(place.limit, place.passed + window)
            ruling = wire.Ruling(
                place.partition, wire.ADMITTED, place.passed, place.limit, place.passed
            )
            whose = self.reader if self.log else self._producer
            self._say(wire.encode_frame(wire.Verdict(self.stream, whose, (ruling,))))

    def _say(self, frame: bytes) -> None:
        self.said.append(frame)
        self._on_credit()

    # -- in ----------------------------------------------------------------------------------

    def disconnected(self) -> None:
        """The connection is gone."""
        self.said.clear()
        if self.opened and not self.log:
            self.interruptions += 1
            self._missed_before, self._missed = self.missed, 0
            self.places.clear()  # the next connection counts from 0
        self.opened = False

    def on_hello(self, answer: wire.Hello) -> None:
        """The node's answer, or its word that types or owners are others now."""
        if answer.error:
            self.error = fault_of(answer.error, answer.headers)
            return
        alias = answer.headers.get(wire.ADDRESS)
        if isinstance(alias, str):
            self.alias = alias
        nodes = answer.headers.get(wire.NODES)
        if isinstance(nodes, (list, tuple)):
            self.nodes = tuple(node for node in nodes if isinstance(node, str))
        for declared in answer.types:
            if declared.fingerprint not in self._readers:
                kind = reader_of(declared, self._known, others=self._others)
                self._readers[declared.fingerprint] = kind
        if not answer.partitions:  # a redirector: the nodes that it names are to be asked
            return
        self._producer = answer.peer
        log = bool(answer.headers.get(wire.LOG))
        if not log and not isinstance(self._start, Upcoming):
            self.error = StartpointError(
                f"stream {self.stream!r} is a live one: nothing of it is kept, so it can only be "
                f"read from now on; leave start out, or read a stream of a log"
            )
            return
        if isinstance(self._start, Specific) and answer.partitions > 1:
            self.error = StartpointError(
                f"stream {self.stream!r} has {answer.partitions} partitions, each with offsets of "
                f"its own; give start as a dict: an offset for each partition to read"
            )
            return
        self.error = None
        if self.opened:
            return
        self.opened, self.log = True, log
        if not log:
            place = self.places[0] = Place(0, 0)
            place.limit = self.window
            return
        epochs = wire.pairs(answer.headers, wire.EPOCHS)
        for position in answer.positions:
            if position.partition not in self.places:
                self.places[position.partition] = Place(position.partition, position.number)
            place = self.places[position.partition]
            place.epoch = epochs.get(position.partition, 0)
            place.upcoming = position.safe
            place.limit = max(place.position, position.limit)
            self._credit(place)

    def on_data(self, data: wire.Data, body: memoryview) -> str:
        """Take events; returns why they are no good, or an empty text."""
        problem = wire.check_sections(data, body)
        place = self.places.get(data.partition)
        if problem or place is None or not self.opened:
            return problem or f"{data.stream}[{data.partition}] is not being read"
        end = data.first + data.count
        if data.first > place.position:
            return (
                f"{data.stream}[{data.partition}] goes on at {data.first}, and {place.position} "
                f"is missing"
            )
        upcoming = data.headers.get(wire.UPCOMING, end)
        place.upcoming = upcoming if isinstance(upcoming, int) else end
        if end > place.position:
            first, place.position = place.position, end
            self._weight = self._weight * 0.75 + (len(body) / data.count) * 0.25
            self._deliver(Arrived(self, place, first, data, body))
        return ""

    def on_idle(self, idle: wire.Idle) -> None:
        """The node tells what was missed, or lost."""
        missed = idle.headers.get(wire.MISSED)
        if isinstance(missed, int):
            self._missed = missed
        lost = idle.headers.get(wire.LOST)
        if isinstance(lost, (list, tuple)) and len(lost) == 3:
            partition, number, oldest = lost
            place = self.places.get(partition)
            if place is not None and number == place.position and not place.lost:
                place.lost = True
                self._deliver(Lost(place, lost_error(self.stream, partition, number, oldest)))


def lost_error(stream: str, partition: int, number: int, oldest: int) -> InputLost:
    """What a reader is told whose next event has been removed."""
    return InputLost(
        f"{stream}[{partition}]: the next event to read was {number}, and the oldest that is still "
        f"there is {oldest}: retention was faster than the reader. Read on from the oldest, or "
        f"give the stream a longer retention"
    )
