"""An outbox that a task releases by its commits: what it puts on one stream for others. Pure.

Rules
- Events gather in the lane of their partition. They become a frame when they are enough for one, or
  when a commit begins. Its bytes are a row of the task's database; so is the lane's next number.
- A commit holds what had been put when it began. What was not encoded by then is encoded before
  anything that came later.
- A frame may leave when a commit that holds it is written. It stays, and so does its row, until the
  owner of the partition has committed it; the row goes with the sender's next commit.
- An earlier life's frames are sent as they are, under their numbers, and told of by the types that
  they were written with. An owner that has seen other numbers is an error: nothing is sent under a
  number that meant another event.
- What the task has put for itself waits in its own stage. It is saved with each commit as it is
  then, and given back after a restart. What finds no room there is spilled into rows at once, and
  comes back in order.
- Of a stream that leads to another app nobody knows the partitions before that has answered. They
  are kept then; what was put before is saved as what the task has put for itself.
- An outbox that may be forgotten and made anew has a name of its life beside its rows. Rows of
  another life are never gone on with.
- Frames bear the cut of the task. What an owner has committed after a later cut than the task's is
  settled after the task's own cut has begun: see :mod:`s4node.offsets.cuts`. Other apps have other
  savepoints; nothing of cuts goes to them.
- An app that consumes the stream and has another number of partitions than before has begun without
  any state. What it has not committed is put anew, in an outbox of another life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from s4node.errors import EventError
from s4node.events.schema import EventType, TypeDecl, class_of
from s4node.net.egress.frame_builder import unnumbered
from s4node.net.egress.lane import Kept, Lane
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.outbox_rows import (
    RowKeys,
    Rows,
    SavedRows,
    SpillRows,
    decoder_of,
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
from s4node.net.egress.spill import Spill
from s4node.net.egress.stream_types import StreamTypes
from s4node.net.egress.unsendable import Unsent
from s4node.net.wire import frame as wire
from s4node.state.rows import Changes


class TransactionalOutbox(Outbox):
    """An outbox with its rows in ``changes``, made with the ``options`` of any outbox. ``name`` is
    that of the rows in the database, of which ``read`` gives one.

    ``partitions`` are those of the stream, 0 if its consumer will tell them; ``home`` is the task's
    own. ``clock`` gives Unix time in ms. ``life`` is that of an outbox which may be forgotten and
    made anew, ``app`` is named in errors. Who puts on the stream is held from ``bound`` bytes
    without a verdict on. ``ask_for_cut`` returns False if the task has made the cut of a number.
    """

    committed = True

    def __init__(
        self,
        stream: str,
        producer: str,
        changes: Changes,
        name: str,
        *,
        partitions: int,
        home: int = 0,
        bound: int = wire.WINDOW_BYTES,
        clock: Callable[[], int] = lambda: 0,
        read: Callable[[bytes], bytes | None] = lambda _: None,
        life: str = "",
        app: str = "",
        ask_for_cut: Callable[[int], bool] = lambda _: False,
        **options: Any,
    ) -> None:
        super().__init__(stream, producer, **options)
        self.settled = False  # a receiver has committed some of it since somebody has looked
        self.unsent = Unsent()
        self._changes = changes
        self._name = name
        self._keys = RowKeys(name)
        self._home = home
        self._bound = bound
        self._clock = clock
        self._life = life
        self._spilled = SpillRows(self._keys, changes, read)
        self.spill = Spill(app, self.types, self._spilled)
        self._versions: dict[int, TypeDecl] = {}
        self._taken: dict[int, int] = {}  # by lane: so many belong to the commit under way
        self._cut_since: set[int] = set()  # lanes with frames that no written commit holds
        self.leaving: dict[int, int] = {}  # by lane: where frames end that leave when it is written
        self._declared: set[int] = set()
        self._own: list[Any] = []
        self._own_at = 0
        self._own_rows = 0
        self._saved = 0  # of the events that wait for the partitions to be known
        self._learns = not partitions  # from the answer of who consumes the stream
        self._learned = False
        self._savepoint = 0
        self._ask_for_cut = ask_for_cut
        self._ahead: dict[int, int] = {}  # lanes whose owners are ahead of our cut, by number
        self._settles: dict[int, int] = {}  # up to where those are settled after our cut
        self._cuts_commit = False  # frames are being made of what the commit under way holds
        if partitions:
            self.open_lanes(partitions, wire.ROUTED)

    @property
    def cut(self) -> int:
        """The number of the task's cut, which frames bear from here on; 0 before the first."""
        return self._savepoint

    @cut.setter
    def cut(self, number: int) -> None:
        if number != self._savepoint:
            self._savepoint = number
            self.builder.headers = {wire.SAVEPOINT: number} if number else {}

    # -- putting -----------------------------------------------------------------------------

    def extend(self, events: Iterable[Any]) -> None:
        """Take events for whichever partitions they belong to."""
        for cls in set(map(type, events)):
            self.types.declare(cls)
        super().extend(events)
        self._gather()

    def extend_lane(self, partition: int, events: Sequence[Any]) -> None:
        """Take events for a partition."""
        super().extend_lane(partition, events)
        self._cut_whole(self.lanes[partition])

    def open_lanes(self, partitions: int, routing: str) -> None:
        """Have lanes of which nothing leaves before it is released."""
        super().open_lanes(partitions, routing)
        for lane in self.lanes:
            lane.released = 0

    def _gather(self) -> None:
        """Sort what has come in into the lanes, and make the frames that are whole."""
        self.route()
        for lane in self.lanes:
            self._cut_whole(lane)

    def _cut_whole(self, lane: Lane) -> None:
        """Make frames of a lane while there is enough for one."""
        most = self.builder.max_events
        if len(lane.pending) < most:
            return
        taken = self._taken.pop(lane.partition, 0)
        if taken:
            self._cut(lane, taken, of_commit=True)
        while len(lane.pending) >= most:
            self._cut(lane, most)

    @property
    def feeds(self) -> bool:
        """Never: frames are made for commits."""
        return False

    @property
    def holds(self) -> bool:
        """Whether more is not committed at its receivers than there should be."""
        return self.unsettled_bytes >= self._bound

    @property
    def changed(self) -> bool:
        """Whether a commit would write more than the rows that are in the changes already."""
        return bool(self._unsaved or self.spill.tails)

    @property
    def unreleased(self) -> bool:
        """Whether something of it can leave once a further commit is written. Before the partitions
        are known nothing can."""
        return bool(self._cut_since or (self.lanes and self.pending))

    @property
    def _unsaved(self) -> int:
        """Events that are in no frame; but for those that a commit has saved as they are, and that
        wait for the partitions to be known."""
        return self.pending - (0 if self.lanes else self._saved)

    @property
    def idle(self) -> bool:
        """Whether all that was put is committed at its receivers."""
        return not self.kept_bytes and not self.pending

    # -- commits -----------------------------------------------------------------------------

    def begin(self, own: Sequence[Any] = ()) -> None:
        """A commit begins: it holds what has been put until now, and what waits of the task's
        ``own``."""
        if self._learns:
            self._gather()
            own = self.unrouted
            self._saved = len(own)
            if self.answer is not None and not self._learned:
                self._learned = True
                learned = lanes_row(self.answer.partitions, self.answer.routing)
                self._changes.put(self._keys.lanes, learned)
        if self.spill.tails:
            self.spill.flush()
        if self._spilled.grew:
            self._spilled.grew = False
            self._declare(self._changes.put)
        self.unsent.begin()
        self.leaving = {at: self.lanes[at].next_number for at in self._cut_since}
        self._cut_since.clear()
        self._taken = {lane.partition: len(lane.pending) for lane in self.lanes if lane.pending}
        self._own = list(own)
        self._own_at = 0

    def encode(self) -> bool:
        """Encode a part of what the commit under way holds; False if nothing of it is left."""
        if self._taken:
            at, count = self._taken.popitem()
            self._cut(self.lanes[at], count, of_commit=True)
            return True
        if self._own:
            self._save_own()
            return True
        for index in range(self._own_at, self._own_rows):
            self._changes.add(self._keys.own(index), None)
        self._own_rows = self._own_at
        return False

    def end(self, *, written: bool) -> None:
        """The commit has been written, and its frames may leave; or it has failed."""
        self._own = []
        self._settle_after_cut()
        leaving, self.leaving = self.leaving, {}
        self.unsent.end(written=written)
        if not written:
            self._cut_since |= leaving.keys()
            self._taken.clear()
            self._saved = 0
            return
        for at, end in leaving.items():
            self.lanes[at].released = end

    def take_refusals(self) -> list[Refusal]:
        """What others have refused since the last call, and what is to be told of what could not be
        sent to them."""
        refused = self.refusals.take() if self.refusals.waiting else []
        return refused + self.unsent.taken()

    def _refused(self, refusal: Refusal) -> None:
        if refusal.unsent:
            self.refusals.count(refusal)
            self.unsent.add(refusal, of_commit=self._cuts_commit)
        else:
            super()._refused(refusal)

    def _cut(self, lane: Lane, count: int, *, of_commit: bool = False) -> None:
        """Make frames of the next ``count`` events that wait in a lane."""
        put = self._changes.add if of_commit else self._changes.put
        at = lane.partition
        self._cuts_commit = of_commit
        while count > 0:
            before = len(lane.pending)
            data = self._encode(lane, min(count, self.builder.max_events), self._clock(), 0, 0)
            count -= before - len(lane.pending)
            if data is not None:
                lane.cursor -= 1  # it has not left
                kept = lane.kept[-1]
                put(self._keys.frame(at, kept.first, kept.end), data)
        self._cuts_commit = False
        self._declare(put)
        put(self._keys.next_number(at), number_row(lane.next_number))
        if of_commit:
            self.leaving[at] = lane.next_number
        else:
            self._cut_since.add(at)

    def _save_own(self) -> None:
        share = self._own[: self.builder.max_events]
        del self._own[: self.builder.max_events]
        for events in _encoded(share, self.types):
            if isinstance(events, EventError):
                self.unsent.add_own(Refusal(self.stream, -1, -1, str(events), unsent=True))
                continue
            self._changes.add(self._keys.own(self._own_at), events)
            self._own_at += 1
        self._declare(self._changes.add)
        self._own_rows = max(self._own_rows, self._own_at)

    def _declare(self, put: Callable[[bytes, bytes], None]) -> None:
        """Keep what the types of our frames are like."""
        if len(self._declared) == len(self.types.known):
            return
        for declared in self.types.declarations:
            if declared.fingerprint not in self._declared:
                self._declared.add(declared.fingerprint)
                put(self._keys.type(declared.fingerprint), type_row(declared))

    # -- what owners say ---------------------------------------------------------------------

    def take_cuts(self, cuts: Mapping[int, int]) -> None:
        """Owners have made these cuts, by partition: if ours is behind it is asked for."""
        for partition, number in cuts.items():
            if 0 <= partition < len(self.lanes) and self._ask_for_cut(number):
                self._ahead[partition] = number

    def take_ruling(self, lane: Lane, ruling: wire.Ruling) -> None:
        """Take what the lane's owner says."""
        if lane.partition in self._ahead:
            ruling = replace(ruling, upto=self._settled_now(lane, ruling.upto))
        super().take_ruling(lane, ruling)

    def _settled_now(self, lane: Lane, upto: int) -> int:
        """Up to where a lane is settled before our cut, of what is after."""
        at = lane.partition
        self._settles[at] = max(upto, self._settles.get(at, 0))
        return min(upto, lane.upto)

    def _settle_after_cut(self) -> None:
        """Settle what had to wait for our cut, if that has begun."""
        for at in [at for at, number in self._ahead.items() if not self._ask_for_cut(number)]:
            del self._ahead[at]
            lane, before = self.lanes[at], self.lanes[at].upto
            upto = min(self._settles.pop(at, before), lane.next_number, lane.released)
            self._settled(lane, before, lane.settle(max(before, upto)))

    def reopen(self, lane: Lane, position: wire.Position, *, again: bool) -> bool:
        """Have a lane go on where its owner says, if that is where it may."""
        self.error = self.error or self._contradicts(lane, position)
        if lane.partition in self._ahead:
            position = replace(position, safe=self._settled_now(lane, position.safe))
        return super().reopen(lane, position, again=again)

    def _contradicts(self, lane: Lane, position: wire.Position) -> str:
        """Why a lane cannot go on where its owner says; empty if it can."""
        if lane.upto <= position.number <= lane.released:
            return ""
        where = f"stream {self.stream!r}, partition {lane.partition}: its owner goes on with event"
        if position.number > lane.released:
            return (
                f"{where} {position.number} of producer {self.producer!r}, which has sent "
                f"{lane.released} so far: the state here is older than what was sent from it; put "
                f"the newer state back, or begin anew without any"
            )
        return (
            f"{where} {position.number} of producer {self.producer!r}, which it had up to "
            f"{lane.upto} before: the state there is older than what was taken into it; put the "
            f"newer state back, or begin anew without any"
        )

    def _settled(self, lane: Lane, before: int, frames: Sequence[Kept]) -> None:
        super()._settled(lane, before, frames)
        self.settled = self.settled or lane.upto > before
        self._forget(lane, frames)

    def _forget(self, lane: Lane, frames: Sequence[Kept]) -> None:
        """The rows of frames that are settled go with the next commit."""
        for kept in frames:
            self._changes.put(self._keys.frame(lane.partition, kept.first, kept.end), None)

    # -- after a restart ---------------------------------------------------------------------

    def restore(self, rows: Rows, now: float = 0.0) -> list[Any]:
        """Go on with what an earlier life has committed; returns what it had put for itself.

        Raises StateError if that cannot be read any more.
        """
        saved = sort_rows(self._name, self._ours(rows))
        self._versions = saved.versions
        self._restore_spill(saved, now)
        if saved.lanes is not None:
            self._learn(*saved.lanes)
        for partition, number in saved.next_numbers.items():
            frames = saved.frames[partition]
            self.lanes[partition].restore(frames, number)
            self.kept_bytes += sum(len(kept.data) for kept in frames)
        self._know_types(saved.versions)
        events = self._read_own(saved)
        self._keep_versions(saved.versions, [f.data for fs in saved.frames.values() for f in fs])
        return self._given_back(events, len(saved.own))

    def go_back(self, changes: Changes, rows: Rows, now: float = 0.0) -> list[Any]:
        """Forget what no commit holds. Another set of changes begins, and ``rows`` are what is
        written; returns what the task has put for itself."""
        self._changes = changes
        saved = sort_rows(self._name, self._ours(rows))
        self.unsent.go_back()
        self.drop_pending()
        for lane in self.lanes:
            for kept in lane.cut_back():
                self.kept_bytes -= len(kept.data)
            written = saved.frames[lane.partition]
            self._forget(lane, [kept for kept in written if kept.end <= lane.upto])
        for each in (self._taken, self._cut_since, self.leaving, self._own):
            each.clear()
        self._saved = 0
        self.spill.clear()
        self._restore_spill(saved, now)
        self._learned = saved.lanes is not None
        self._declared &= saved.versions.keys()
        return self._given_back(self._read_own(saved), len(saved.own))

    def _restore_spill(self, saved: SavedRows, now: float) -> None:
        self._spilled.restore(self._changes, [index for index, _ in saved.spilled])
        counts = [count for _, count in saved.spilled]
        self.spill.restore(self._home, now, counts, saved.versions)

    def _given_back(self, events: list[Any], rows: int) -> list[Any]:
        """What the task had put for itself, of so many rows; or nothing, where that waits for the
        partitions to be known."""
        self._own_rows = rows
        if self._learns:
            super().extend(events)
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

    def _learn(self, partitions: int, routing: str) -> None:
        """Have the lanes that were learned in an earlier life."""
        self._learned = True
        problem = self.take_answer(
            wire.Hello("", "", self.stream, partitions=partitions, routing=routing)
        )
        assert not problem, problem

    def _know_types(self, versions: dict[int, TypeDecl]) -> None:
        """Know the classes of events that are saved, also where the stream declares none and has
        learned them from what was put."""
        known = {EventType(cls).name for cls in self.types.known}
        for declared in versions.values():
            cls = None if declared.name in known else class_of(declared)
            if cls is not None:
                self.types.declare(cls)

    def _keep_versions(self, versions: dict[int, TypeDecl], frames: Sequence[bytes]) -> None:
        """Know the types of an earlier life for as long as there are frames of them."""
        ours = {declared.fingerprint for declared in self.types.declarations}
        self._declared = versions.keys() & ours
        others = versions.keys() - ours
        if not others:
            return
        used = fingerprints_in(frames)
        self.types.versions = {each: versions[each] for each in others & used}
        if self.spill.events:  # which of them those are of is not known before they are read
            return
        for each in others - used:
            self._changes.put(self._keys.type(each), None)

    def _read_own(self, saved: SavedRows) -> list[Any]:
        decoder = decoder_of(self.types, saved.versions)
        return [event for row in saved.own for event in read_events(self.stream, row, decoder)]

    def unsettled_events(self) -> list[Any]:
        """The events that are not committed at their receivers; those of one lane in their order.

        Raises StateError where those of an earlier life cannot be read any more.
        """
        decoder = decoder_of(self.types, self._versions)
        events: list[Any] = []
        for lane in self.lanes:
            for kept in lane.kept:
                found = read_events(self.stream, kept.data, decoder)
                events += found[max(0, lane.upto - kept.first) :]
            events += lane.pending
        return events + self.unrouted

    def rows(self) -> Iterator[bytes]:
        """All rows that there may be, to be forgotten."""
        for lane in self.lanes:
            for kept in lane.kept:
                yield self._keys.frame(lane.partition, kept.first, kept.end)
            yield self._keys.next_number(lane.partition)
        for index in range(self._own_rows):
            yield self._keys.own(index)
        for fingerprint in self._declared | self.types.versions.keys():
            yield self._keys.type(fingerprint)
        yield self._keys.lanes
        yield self._keys.life

    def validate(self) -> None:
        """Assert the rules; for tests."""
        super().validate()
        for lane in self.lanes:
            assert lane.released <= lane.next_number
            assert self._taken.get(lane.partition, 0) <= len(lane.pending)


def _encoded(events: list[Any], types: StreamTypes) -> Iterator[bytes | EventError]:
    """Events as frames, and why one cannot be in any."""
    if not events:
        return
    try:
        yield unnumbered(types, events)
    except EventError as error:
        if len(events) == 1:
            yield error
            return
        half = len(events) // 2
        yield from _encoded(events[:half], types)
        yield from _encoded(events[half:], types)
