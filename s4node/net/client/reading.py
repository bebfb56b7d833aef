"""A reading: one reader of one stream on a connection to a node. Pure.

Rules
- ``hello`` goes first, after every connect. A live stream is read from the hello on, anew with each
  connection; ``interruptions`` counts lost ones. A stream of a log is read from a start, and
  resumed at its positions after a lost connection: each event comes once, in order.
- The reader gives credit: a window of events ahead of its position, fewer if they are large. A
  paused reader gives none.
- A partition whose next event is gone is lost: no more events come from it, and the error follows
  the events that came before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from s4node import errors
from s4node.errors import ConnectionRefused, InputLost, S4Error, StartpointError
from s4node.events.event import GenericEvent
from s4node.events.schema import EventType, TypeReader, reader_of
from s4node.net.wire import frame as wire
from s4node.net.wire.body import FrameDecoder
from s4node.net.wire.start import Positions, start_of, write_start
from s4node.offsets.startpoint import Specific, Startpoint, Upcoming

_UNKNOWN_WEIGHT = 256
"""The assumed bytes of an event before the first one has come."""


class Arrived(NamedTuple):
    """A frame that has come, not yet decoded; its events from ``first`` on are new."""

    reading: Reading
    place: Place
    first: int
    data: wire.Data
    body: memoryview

    @property
    def end(self) -> int:
        """The number after the last event."""
        return self.data.first + self.data.count


class Lost(NamedTuple):
    """A partition whose next events are gone."""

    place: Place
    error: InputLost


class Place:
    """One partition of a reading; numbers are offsets if the stream is in a log.

    The node sends ``position`` next, the reader reads ``passed`` next, and the node's next event
    will get the number ``upcoming``, as last reported.
    """

    __slots__ = ("epoch", "limit", "lost", "partition", "passed", "position", "upcoming")

    def __init__(self, partition: int, position: int) -> None:
        self.partition = partition
        self.position = self.passed = self.limit = position
        self.upcoming: int | None = None
        self.epoch = 0  # of the position, if the node has sent one
        self.lost = False


def fault_of(error: str, headers: wire.Headers) -> S4Error:
    """A node's error as the exception class that it names."""
    named = getattr(errors, str(headers.get(wire.FAULT)), None)
    if isinstance(named, type) and issubclass(named, S4Error):
        try:
            return named(error)
        except TypeError:  # the class needs more than a message
            pass
    return ConnectionRefused(error)


class Reading:
    """Reads ``stream`` as ``reader``, an id that is unique on its connection.

    Events of a class in ``types`` come as objects of it. If ``types`` is empty or has GenericEvent,
    or ``others`` is true, other events come as GenericEvents. ``start`` is a startpoint, or offsets
    by partition; other partitions are not read. ``window`` counts events, ``window_bytes`` their
    bytes. ``deliver`` takes what arrives; ``on_credit`` is called when there are frames to send.
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
        """True if the stream is known to be live, not in a log."""
        return self.opened and not self.log

    @property
    def missed(self) -> int:
        """Events not sent because the reader was slow or no frame can hold them; 0 for a log."""
        return self._missed_before + self._missed

    @property
    def window(self) -> int:
        """Events that the node may send ahead of the reader, at their recent size."""
        return max(1, min(self._window, int(self._window_bytes / self._weight)))

    # -- out ---------------------------------------------------------------------------------

    def hello_frame(self) -> bytes:
        """The frame that begins the reading on a new connection."""
        start = start_of(self._start)
        if self.log:
            start, places = Positions(), [p for p in self.places.values() if not p.lost]
        elif isinstance(self._start, Specific):
            places = [Place(0, self._start.offset)]
        elif isinstance(self._start, Mapping):
            places = [Place(partition, number) for partition, number in self._start.items()]
        else:
            places = [Place(0, 0)]
        for place in places:
            place.limit = place.passed + self.window if not self.paused else place.position
        headers = {wire.SUBSCRIBE: True, wire.START: write_start(start)}
        return wire.encode_frame(
            wire.Hello(
                self.reader,
                "",
                self.stream,
                positions=tuple(wire.Position(p.partition, p.position, p.limit) for p in places),
                headers=headers | self._known_epochs(places),
            )
        )

    def _known_epochs(self, places: Sequence[Place]) -> dict[str, Any]:
        known = [(p.partition, p.epoch or self._epochs.get(p.partition, 0)) for p in places]
        epochs = [each for each in known if each[1]]
        return {wire.EPOCHS: epochs} if epochs else {}

    def take_said(self) -> list[bytes]:
        said, self.said = self.said, []
        return said

    def acknowledge(self, place: Place, end: int) -> None:
        """Give credit, as everything of the partition below ``end`` was read."""
        if self.places.get(place.partition) is place:  # else of an earlier connection
            place.passed = max(place.passed, end)
            self._credit(place)

    def pause(self) -> None:
        """Give no credit until ``resume``; events within earlier credit may still come."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        for place in self.places.values():
            self._credit(place)

    def unsubscribe(self) -> None:
        self._say(wire.encode_frame(wire.EndOfStream(self.stream, self.reader)))

    def _credit(self, place: Place) -> None:
        """Give credit, at least a quarter of the window, as small credit makes small frames."""
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
        self.said.clear()
        if self.opened and not self.log:
            self.interruptions += 1
            self._missed_before, self._missed = self.missed, 0
            self.places.clear()  # the next connection counts from 0
        self.opened = False

    def on_hello(self, answer: wire.Hello) -> None:
        """Take the node's answer to a hello, or its report of new types or owners."""
        if answer.error:
            self.error = fault_of(answer.error, answer.headers)
            return
        alias = answer.headers.get(wire.ADDRESS)
        if isinstance(alias, str):
            self.alias = alias
        nodes = answer.headers.get(wire.NODES)
        if isinstance(nodes, (list, tuple)):
            self.nodes = tuple(node for node in nodes if isinstance(node, str))
        key = answer.routing.partition(":")[2].split("+")
        for declared in answer.types:
            if declared.fingerprint not in self._readers:
                kind = reader_of(declared, self._known, others=self._others, fixed=key)
                self._readers[declared.fingerprint] = kind
        if not answer.partitions:  # a redirector: ask the nodes that it names
            return
        self._producer = answer.peer
        log = bool(answer.headers.get(wire.LOG))
        if not log and not isinstance(self._start, Upcoming):
            self.error = StartpointError(
                f"stream {self.stream!r} is live: its events are not stored, so it can only be "
                f"read from now on; leave start out, or read a stream of a log"
            )
            return
        if isinstance(self._start, Specific) and answer.partitions > 1:
            self.error = StartpointError(
                f"stream {self.stream!r} has {answer.partitions} partitions, each with its own "
                f"offsets; give start as a dict: an offset for each partition to read"
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
        """Take a data frame; return what is wrong with it, or ""."""
        problem = wire.check_sections(data, body)
        place = self.places.get(data.partition)
        if problem or place is None or not self.opened:
            return problem or f"{data.stream}[{data.partition}] is not being read"
        end = data.first + data.count
        if data.first > place.position:
            return (
                f"{data.stream}[{data.partition}] continues at {data.first}, but {place.position} "
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
        """Take the node's report of missed or lost events."""
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
    """The error of a reader whose next event was deleted by retention."""
    return InputLost(
        f"{stream}[{partition}]: the next event to read was {number}, but the oldest event is "
        f"{oldest}: retention was faster than the reader. Read on from the oldest, or give the "
        f"stream a longer retention"
    )
