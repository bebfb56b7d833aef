"""What one task puts on one stream for others: frames that are part of its commits. Pure.

Rules
- Events gather in a lane for each partition. They become a frame when they are enough for one, or
  when a commit begins. Its bytes are a row of the task's database; so is the lane's next number.
- A commit holds what had been put when it began. What was not encoded by then is encoded before
  anything that came later.
- A frame may leave when a commit that holds it is written. It stays, and so does its row, until the
  owner of the partition has committed it; the row goes with the sender's next commit.
- An earlier life's frames are sent as they are, under their numbers, and told of by the types that
  they were written with.
- What the task has put for itself waits in its own stage. It is saved with each commit as it is
  then, and given back after a restart. What finds no room there is spilled into rows at once, and
  comes back in order.
- Of a stream that leads to another app nobody knows the partitions before that has answered. They
  are kept then; what was put before is saved as what the task has put for itself.
- A way that may be forgotten and made anew has a name of its life beside its rows. Rows of another
  life are never gone on with.
- An app that consumes the stream and has another number of partitions than before has begun without
  any state. What it has not committed is put anew, on a way of another life.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from s4node.errors import EventError, unspillable
from s4node.events.schema import EventType, TypeDecl, class_of
from s4node.net.egress.frame_builder import FrameBuilder
from s4node.net.egress.lane import Kept, Lane
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.outbox_rows import (
    RowKeys,
    Rows,
    fingerprints_in,
    forget,
    lanes_row,
    life_of,
    number_row,
    read_events,
    sort_rows,
    type_row,
)
from s4node.net.egress.refusal import Refusal
from s4node.net.egress.unsendable import Unsent
from s4node.net.wire import frame as wire
from s4node.state.rows import Changes

_SPILLED = 512
"""Events in a row of what was spilled, about."""


class TransactionalOutbox:
    """The lanes of ``outbox``, which sends what is committed only, with their rows in ``changes``.

    ``way`` names them in the database, of which ``read`` gives a row; ``clock`` gives Unix time in
    ms. ``life`` is that of a way which may be forgotten and made anew, ``app`` is named in errors.
    ``bytes`` is what all frames take that are not committed at their receivers.
    """

    def __init__(
        self,
        outbox: Outbox,
        changes: Changes,
        way: str,
        clock: Callable[[], int] = lambda: 0,
        read: Callable[[bytes], bytes | None] = lambda _: None,
        life: str = "",
        app: str = "",
    ) -> None:
        self.outbox = outbox
        self.bytes = 0
        self.settled = False  # a receiver has committed some of it since somebody has looked
        self._changes = changes
        self._way = way
        self._keys = RowKeys(way)
        self._clock = clock
        self._read_row = read
        self._life = life
        self._app = app
        self._versions: dict[int, TypeDecl] = {}
        self._spilled: deque[tuple[int, int]] = deque()  # rows, and how many events are in each
        self._tail: list[Any] = []
        self._rows: defaultdict[int, deque[tuple[int, int, int]]] = defaultdict(deque)
        self._waiting: set[int] = set()  # lanes with events that are in no frame
        self._taken: dict[int, int] = {}  # so many of these belong to the commit under way
        self._cut_since: set[int] = set()  # lanes with frames that no written commit holds
        self._leaving: dict[int, int] = {}  # where those of the commit under way end
        self._declared: set[int] = set()
        self._own: list[Any] = []
        self._own_at = 0
        self._own_rows = 0
        self._saved = 0  # of the events that wait for the partitions to be known
        self._learns = not outbox.lanes  # from the answer of who consumes the stream
        self._learned = False
        self.unsent = Unsent()
        self._refusals: list[Refusal] = []  # of those who were to get events
        self._cuts_commit = False  # frames are being made of what the commit under way holds
        outbox.refusals.on_refusal = self._refused
        outbox.on_settled = self._settled

    # -- putting -----------------------------------------------------------------------------

    def put(self, partition: int, events: Sequence[Any]) -> None:
        """Take events for a partition."""
        outbox = self.outbox
        outbox.extend_lane(partition, events)
        self._waiting.add(partition)
        lane, most = outbox.lanes[partition], outbox.builder.max_events
        if len(lane.pending) < most:
            return
        taken = self._taken.pop(partition, 0)
        if taken:
            self._cut(lane, taken, of_commit=True)
        while len(lane.pending) >= most:
            self._cut(lane, most)

    def send(self, events: Sequence[Any]) -> None:
        """Take events for whichever partitions they belong to."""
        for cls in set(map(type, events)):
            self.outbox.types.declare(cls)
        self.outbox.extend(events)
        self._route()

    def _route(self) -> None:
        outbox = self.outbox
        outbox.route()
        for lane in outbox.lanes:
            if lane.pending:
                self.put(lane.partition, ())

    @property
    def changed(self) -> bool:
        """Whether a commit would write more than the rows that are in the changes already."""
        return bool(self._unsaved or self._tail)

    @property
    def unreleased(self) -> bool:
        """Whether something of it can leave once a further commit is written. Before the partitions
        are known nothing can."""
        return bool(self._cut_since or (self.outbox.lanes and self.outbox.pending))

    @property
    def _unsaved(self) -> int:
        """Events that are in no frame; but for those that a commit has saved as they are, and that
        wait for the partitions to be known."""
        return self.outbox.pending - (0 if self.outbox.lanes else self._saved)

    @property
    def idle(self) -> bool:
        """Whether all that was put is committed at its receivers."""
        return not self.bytes and not self.outbox.pending

    @property
    def depth(self) -> int:
        """Events that are not committed at their receivers."""
        return self.outbox.unsettled

    @property
    def size(self) -> int:
        """Bytes of all that is not committed at its receivers, about."""
        return self.bytes + self.outbox.pending_bytes

    # -- commits -----------------------------------------------------------------------------

    def begin(self, own: Sequence[Any] = ()) -> None:
        """A commit begins: it holds what has been put until now, and what waits of the task's
        ``own``."""
        if self._learns:
            self._route()
            own = self.outbox.unrouted
            self._saved = len(own)
            if self.outbox.answer is not None and not self._learned:
                self._learned = True
                answer = self.outbox.answer
                self._changes.put(self._keys.lanes, lanes_row(answer.partitions, answer.routing))
        self._spill()
        self.unsent.begin()
        lanes = self.outbox.lanes
        self._leaving = {at: lanes[at].next_number for at in self._cut_since}
        self._cut_since.clear()
        self._taken = {at: len(lanes[at].pending) for at in self._waiting if lanes[at].pending}
        self._waiting.clear()
        self._own = list(own)
        self._own_at = 0

    def encode(self) -> bool:
        """Encode a part of what the commit under way holds; False if nothing of it is left."""
        if self._taken:
            at, count = self._taken.popitem()
            self._cut(self.outbox.lanes[at], count, of_commit=True)
            return True
        if self._own:
            self._save_own()
            return True
        for index in range(self._own_at, self._own_rows):
            self._changes.add(self._keys.own(index), None)
        self._own_rows = self._own_at
        return False

    @property
    def leaves(self) -> bool:
        """Whether frames may leave when the commit under way is written."""
        return bool(self._leaving)

    def end(self, *, written: bool) -> None:
        """The commit has been written, and its frames may leave; or it has failed."""
        self._own = []
        leaving, self._leaving = self._leaving, {}
        self.unsent.end(written=written)
        if not written:
            self._waiting |= self._taken.keys()
            self._cut_since |= leaving.keys()
            self._taken.clear()
            self._saved = 0
            return
        for at, end in leaving.items():
            self.outbox.lanes[at].released = end

    def take_refusals(self) -> list[Refusal]:
        """What others have refused since the last call, and what is to be told of what could not be
        sent to them."""
        refused, self._refusals = self._refusals, []
        return refused + self.unsent.taken()

    def _refused(self, refusal: Refusal) -> None:
        if refusal.unsent:
            self.unsent.add(refusal, of_commit=self._cuts_commit)
        else:
            self._refusals.append(refusal)

    def _cut(self, lane: Lane, count: int, *, of_commit: bool = False) -> None:
        """Make frames of the next ``count`` events that wait in a lane."""
        put = self._changes.add if of_commit else self._changes.put
        at = lane.partition
        self._cuts_commit = of_commit
        while count > 0:
            before = len(lane.pending)
            kept = self.outbox.cut(lane, min(count, self.outbox.builder.max_events), self._clock())
            count -= before - len(lane.pending)
            if kept is not None:
                put(self._keys.frame(at, kept.first, kept.end), kept.data)
                self._rows[at].append((kept.first, kept.end, len(kept.data)))
                self.bytes += len(kept.data)
        self._cuts_commit = False
        self._declare(put)
        put(self._keys.next_number(at), number_row(lane.next_number))
        if of_commit:
            self._leaving[at] = lane.next_number
        else:
            self._cut_since.add(at)
        if lane.pending:
            self._waiting.add(at)

    def _save_own(self) -> None:
        outbox = self.outbox
        share = self._own[: outbox.builder.max_events]
        del self._own[: outbox.builder.max_events]
        for events in _encoded(share, outbox.builder):
            if isinstance(events, EventError):
                self.unsent.add_own(Refusal(outbox.stream, -1, -1, str(events), unsent=True))
                continue
            self._changes.add(self._keys.own(self._own_at), events)
            self._own_at += 1
        self._declare(self._changes.add)
        self._own_rows = max(self._own_rows, self._own_at)

    def _declare(self, put: Callable[[bytes, bytes], None]) -> None:
        """Keep what the types of our frames are like."""
        if len(self._declared) == len(self.outbox.types.known):
            return
        for declared in self.outbox.types.declarations:
            if declared.fingerprint not in self._declared:
                self._declared.add(declared.fingerprint)
                put(self._keys.type(declared.fingerprint), type_row(declared))

    def _settled(self, lane: Lane, _: int) -> None:
        """The owner of a partition has committed everything below ``upto``."""
        self.settled = True
        rows = self._rows[lane.partition]
        while rows and rows[0][1] <= lane.upto:
            first, end, size = rows.popleft()
            self._changes.put(self._keys.frame(lane.partition, first, end), None)
            self.bytes -= size

    # -- what finds no room in memory --------------------------------------------------------

    def spill(self, events: Sequence[Any]) -> None:
        """Keep events that the task has put for itself, behind those that are kept already; raises
        SpillError if one cannot be encoded."""
        self._tail += events
        if len(self._tail) >= _SPILLED:
            self._spill()

    def _spill(self) -> None:
        if not self._tail:
            return
        index = self._spilled[-1][0] + 1 if self._spilled else 0
        try:
            data = self.outbox.builder.unnumbered(self._tail)
        except EventError as error:
            raise unspillable(self._app, self.outbox.stream, error) from error
        self._changes.put(self._keys.spilled(index), data)
        self._declare(self._changes.put)
        self._spilled.append((index, len(self._tail)))
        self._tail = []

    def unspill(self) -> list[Any]:
        """The oldest of them, some hundreds; empty if there are none."""
        if not self._spilled:
            tail, self._tail = self._tail, []
            return tail
        row = self._keys.spilled(self._spilled.popleft()[0])
        data = self._changes.find(row, None) or self._read_row(row)
        assert isinstance(data, bytes), "a row of what was spilled is gone"
        self._changes.put(row, None)
        return list(self._read([data], self._versions))

    @property
    def spilled(self) -> int:
        """How many of them there are."""
        return sum(count for _, count in self._spilled) + len(self._tail)

    def forget_spilled(self) -> None:
        """They come again."""
        self._spilled.clear()
        self._tail = []

    # -- after a restart ---------------------------------------------------------------------

    def restore(self, rows: Rows) -> list[Any]:
        """Go on with what an earlier life has committed; returns what it had put for itself.

        Raises StateError if that cannot be read any more.
        """
        rows = self._ours(rows)
        saved = sort_rows(self._way, rows)
        self._versions = saved.versions
        self._spilled += saved.spilled
        if saved.lanes is not None:
            self._open_lanes(*saved.lanes)
        for partition, number in saved.next_numbers.items():
            frames = saved.frames[partition]
            self.outbox.restore(partition, frames, number)
            self._know_rows(partition, frames)
        self._know_types(saved.versions)
        events = list(self._read(saved.own, saved.versions))
        self._keep_versions(saved.versions, [f.data for fs in saved.frames.values() for f in fs])
        return self._given_back(events, len(saved.own))

    def go_back(self, changes: Changes, rows: Rows) -> list[Any]:
        """Forget what no commit holds. Another set of changes begins, and ``rows`` are what is
        written; returns what the task has put for itself."""
        self._changes = changes
        rows = self._ours(rows)
        self.unsent.go_back()
        self.outbox.cut_back()
        for each in (self._waiting, self._taken, self._cut_since, self._leaving, self._rows):
            each.clear()
        self._own.clear()
        self._saved = 0
        self.forget_spilled()
        self.bytes = 0
        saved = sort_rows(self._way, rows)
        self._learned = saved.lanes is not None
        self._spilled += saved.spilled
        for partition, frames in saved.frames.items():
            self._know_rows(partition, frames)
            self._settled(self.outbox.lanes[partition], 0)
        self._declared &= saved.versions.keys()
        return self._given_back(list(self._read(saved.own, saved.versions)), len(saved.own))

    def _know_rows(self, partition: int, frames: Sequence[Kept]) -> None:
        for one in frames:
            self._rows[partition].append((one.first, one.end, len(one.data)))
            self.bytes += len(one.data)

    def _given_back(self, events: list[Any], rows: int) -> list[Any]:
        """What the task had put for itself, of so many rows; or nothing, where that waits for the
        partitions to be known."""
        self._own_rows = rows
        if self._learns:
            self.outbox.extend(events)
            self._saved = len(events)
            return []
        return events

    def _ours(self, rows: Rows) -> Rows:
        """The rows if they are of our life; what an earlier one has left goes."""
        rows = list(rows)
        if life_of(rows) == self._life:
            return rows
        forget(self._changes, rows)
        self._changes.put(self._keys.life, self._life.encode())
        return ()

    def _open_lanes(self, partitions: int, routing: str) -> None:
        """Have the lanes that were learned in an earlier life."""
        self._learned = True
        problem = self.outbox.take_answer(
            wire.Hello("", "", self.outbox.stream, partitions=partitions, routing=routing)
        )
        assert not problem, problem

    def _know_types(self, versions: dict[int, TypeDecl]) -> None:
        """Know the classes of events that are saved, also where the stream declares none and has
        learned them from what was put."""
        known = {EventType(cls).name for cls in self.outbox.types.known}
        for declared in versions.values():
            cls = None if declared.name in known else class_of(declared)
            if cls is not None:
                self.outbox.types.declare(cls)

    def _keep_versions(self, versions: dict[int, TypeDecl], frames: Sequence[bytes]) -> None:
        """Know the types of an earlier life for as long as there are frames of them."""
        ours = {declared.fingerprint for declared in self.outbox.types.declarations}
        self._declared = versions.keys() & ours
        others = versions.keys() - ours
        if not others:
            return
        used = fingerprints_in(frames)
        self.outbox.types.versions = {each: versions[each] for each in others & used}
        if self._spilled:  # which of them those are of is not known before they are read
            return
        for each in others - used:
            self._changes.put(self._keys.type(each), None)

    def _read(self, rows: Sequence[bytes], versions: dict[int, TypeDecl]) -> Iterator[Any]:
        return read_events(self.outbox.stream, rows, self.outbox.types.known, versions)

    def unsettled(self) -> list[Any]:
        """The events that are not committed at their receivers; those of one lane in their order.

        Raises StateError where those of an earlier life cannot be read any more.
        """
        events: list[Any] = []
        for lane in self.outbox.lanes:
            for kept in lane.kept:
                events += list(self._read([kept.data], self._versions))[
                    max(0, lane.upto - kept.first) :
                ]
            events += lane.pending
        return events + self.outbox.unrouted

    def rows(self) -> Iterator[bytes]:
        """All rows that there may be, to be forgotten."""
        for partition, rows in self._rows.items():
            for first, end, _ in rows:
                yield self._keys.frame(partition, first, end)
        for lane in self.outbox.lanes:
            yield self._keys.next_number(lane.partition)
        for index in range(self._own_rows):
            yield self._keys.own(index)
        for fingerprint in self._declared | self.outbox.types.versions.keys():
            yield self._keys.type(fingerprint)
        yield self._keys.lanes
        yield self._keys.life

    def validate(self) -> None:
        """Assert the rules; for tests."""
        self.outbox.validate()
        size = 0
        for lane in self.outbox.lanes:
            rows = self._rows[lane.partition]
            assert [row[:2] for row in rows] == [(kept.first, kept.end) for kept in lane.kept]
            assert lane.released <= lane.next_number
            assert self._taken.get(lane.partition, 0) <= len(lane.pending)
            size += sum(row[2] for row in rows)
        assert self.bytes == size


def _encoded(events: list[Any], builder: FrameBuilder) -> Iterator[bytes | EventError]:
    """Events as frames, and why one cannot be in any."""
    if not events:
        return
    try:
        yield builder.unnumbered(events)
    except EventError as error:
        if len(events) == 1:
            yield error
            return
        half = len(events) // 2
        yield from _encoded(events[:half], builder)
        yield from _encoded(events[half:], builder)
