"""An outbox that a task releases by its commits: its events on one stream for others. Pure.

Rules
- Events gather in the lane of their partition. They become a frame when there are enough of them,
  or when a commit begins. The frame is a row of the task's database; so is the lane's next number.
- A commit holds the events put before it began. Those not yet encoded are encoded before later
  ones.
- A frame may leave when a commit that holds it is written. The frame and its row stay until the
  owner of the partition has committed it; the row is deleted with the sender's next commit.
- Frames of an earlier life are sent unchanged, with their numbers and the types that they were
  written with. If an owner expects other numbers, that is an error: no number is used for two
  events.
- The partitions of another app's stream are unknown until it has answered, and saved then. Events
  put before are saved without numbers (:mod:`s4node.net.egress.own_events`).
- An outbox that may be forgotten and made anew has a row with the name of its life; rows of another
  life are never used.
- Frames bear the cut of the task. Events that an owner has committed after a later cut than the
  task's are settled once the task's own cut has begun: see :mod:`s4node.offsets.cuts`. Cuts are not
  sent to other apps, which have other savepoints.
- A consuming app with a new number of partitions tells the final numbers of the former ones, or has
  begun without state. Events that do not count are put again, in an outbox of another life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from s4node.net.egress.closed_layouts import last_ruling, told_closings
from s4node.net.egress.lane import Lane
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.outbox_rows import (
    ChannelRows,
    SavedRows,
    decoder_of,
    lanes_row,
    number_row,
    read_events,
)
from s4node.net.egress.refusal import Refusal
from s4node.net.wire import frame as wire
from s4node.offsets.cuts import NO_CUTS, Cuts
from s4node.offsets.producer_offsets import Closing
from s4node.state.rows import Changes


class TransactionalOutbox(Outbox):
    """An outbox with its rows, of channel ``name``, in ``changes``; ``options`` are of any outbox.

    ``partitions`` is the stream's number of partitions, 0 if the consumer will tell it. ``clock``
    gives Unix time in ms. ``life`` names an outbox that may be forgotten and made anew. Tasks that
    put on the stream are held from ``bound`` unacknowledged bytes on. ``cuts`` are those of the
    tasks, ours is that of partition ``home``.
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
        bound: int = wire.WINDOW_BYTES,
        clock: Callable[[], int] = lambda: 0,
        life: str = "",
        home: int = 0,
        cuts: Cuts = NO_CUTS,
        **options: Any,
    ) -> None:
        super().__init__(stream, producer, **options)
        self.settlement = self.rows = ChannelRows(name, changes, self.types, life)
        self._keys = self.rows.keys
        self._bound = bound
        self._clock = clock
        self._taken: dict[int, int] = {}  # by lane: pending events of the current commit
        self._cut_since: set[int] = set()  # lanes with frames that are in no commit yet
        self.leaving: dict[int, int] = {}  # by lane: the end of the current commit's frames
        self._saved = 0  # of the events that wait for the partitions
        self._learns = not partitions  # from the consumer's answer
        self._learned: tuple[int, str, int | None] | None = None
        self._ended = Closing(())  # of the layout of our lanes
        self._savepoint = 0
        self._cuts = cuts
        self._home = home
        self._ahead: dict[int, int] = {}  # lanes whose owners are ahead of our cut, by number
        self._settles: dict[int, int] = {}  # where those are settled after our cut
        self._bear_cut()
        if partitions:
            self.open_lanes(partitions, wire.ROUTED)

    # -- putting -----------------------------------------------------------------------------

    def extend(self, events: Iterable[Any]) -> None:
        for cls in set(map(type, events)):
            self.types.declare(cls)
        super().extend(events)
        self._gather()

    def extend_lane(self, partition: int, events: Sequence[Any], sender: str = "") -> None:
        super().extend_lane(partition, events, sender)
        self._cut_whole(self.lanes[partition])

    def open_lanes(self, partitions: int, routing: str) -> None:
        """Open lanes whose frames leave only when released."""
        super().open_lanes(partitions, routing)
        for lane in self.lanes:
            lane.released = 0

    def _gather(self) -> None:
        """Sort incoming events into the lanes, and make full frames."""
        self.route()
        for lane in self.lanes:
            self._cut_whole(lane)

    def _cut_whole(self, lane: Lane) -> None:
        """Make full frames of a lane's events."""
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
        """False: frames are made only for commits."""
        return False

    @property
    def holds(self) -> bool:
        """True if more bytes than the bound are not committed by the receivers."""
        return self.unsettled_bytes >= self._bound

    @property
    def changed(self) -> bool:
        """True if a commit would write more rows than are in the changes."""
        return self.pending > (0 if self.lanes else self._saved)

    @property
    def unreleased(self) -> bool:
        """True if events can leave once a further commit is written, as partitions are known."""
        return bool(self._cut_since or (self.lanes and self.pending))

    @property
    def idle(self) -> bool:
        """True if the receivers have committed all events."""
        return not self.frame_bytes and not self.pending

    # -- commits -----------------------------------------------------------------------------

    def begin_commit(self) -> None:
        """Begin a commit of the events put until now; ``unrouted`` ones are saved beside it."""
        if self._learns:
            self._gather()
            self._saved = 0 if self.lanes else self.pending
            if self.answer is not None:
                learned = self.answer.partitions, self.answer.routing, self.layout
                if learned != self._learned:
                    self._learned = learned
                    self.rows.changes.put(self._keys.lanes, lanes_row(*learned))
        self._bear_cut()
        self.rows.unsent.begin_commit()
        self.latest.begin_commit(self._clock() / 1000)
        self.leaving = {at: self.lanes[at].next_number for at in self._cut_since}
        self._cut_since.clear()
        self._taken = {lane.partition: len(lane.pending) for lane in self.lanes if lane.pending}

    def encode(self) -> bool:
        """Encode a part of the current commit; return False if nothing is left."""
        if self._taken:
            at, count = self._taken.popitem()
            self._cut(self.lanes[at], count, of_commit=True)
            return True
        return False

    def _bear_cut(self) -> None:
        """Have new frames bear the number of the task's last cut, if there is one."""
        number = self._cuts.made(self._home)
        if number != self._savepoint:
            self._savepoint = number
            self.builder.headers = {wire.SAVEPOINT: number}

    def end_commit(self, *, written: bool) -> None:
        """End a commit: release its frames if it was written."""
        self._settle_after_cut()
        leaving, self.leaving = self.leaving, {}
        self.rows.unsent.end_commit(written=written)
        if not written:
            self._cut_since |= leaving.keys()
            self._taken.clear()
            self._saved = 0
            return
        for at, end in leaving.items():
            self.lanes[at].released = end
        self.latest.commit_written()

    def take_refusals(self) -> list[Refusal]:
        """The events that receivers refused since the last call, and unsendable ones to report."""
        refused = self.refusals.drain() if self.refusals.waiting else []
        return refused + self.rows.unsent.drain()

    def _cut(self, lane: Lane, count: int, *, of_commit: bool = False) -> None:
        """Make frames of the next ``count`` waiting events of a lane."""
        put = self.rows.changes.add if of_commit else self.rows.changes.put
        at = lane.partition
        self.rows.of_commit = of_commit
        while count > 0:
            before = len(lane.pending)
            data = self._encode(lane, min(count, self.builder.max_events), self._clock(), 0, 0)
            count -= before - len(lane.pending)
            if data is not None:
                lane.cursor -= 1  # it has not left
                frame = lane.frames[-1]
                put(self._keys.frame(at, frame.first, frame.end), data)
        self.rows.of_commit = False
        self.rows.declare(put)
        put(self._keys.next_number(at), number_row(lane.next_number))
        if of_commit:
            self.leaving[at] = lane.next_number
        else:
            self._cut_since.add(at)

    # -- answers of owners -------------------------------------------------------------------

    def _begin_layout(self, answer: wire.Hello, layout: int, *, again: bool) -> str:  # noqa: ARG002
        """Leave the new layout to another outbox, which the next commit has in place of this."""
        closings = told_closings(answer.headers)
        if closings:
            self._ended = closings[0]
            for lane, final in zip(self.lanes, self._ended.numbers, strict=False):
                if problem := self._contradicts(lane, wire.Position(lane.partition, final)):
                    return problem
        self.repartitioned = True
        return f"{self.stream!r} has {answer.partitions} partitions now"

    def uncounted_events(self) -> list[Any]:
        """The events that do not count yet, in order for each lane; for an outbox in place of this.

        Raises StateError if events of an earlier life cannot be read.
        """
        for lane in self.lanes:
            self.take_ruling(lane, last_ruling(self._ended, lane.partition))
        return self.unsettled_events()

    def take_cuts(self, cuts: Mapping[int, int]) -> None:
        """Take the cuts of owners, by partition; if ours is older, request one."""
        for partition, number in cuts.items():
            if 0 <= partition < len(self.lanes) and self._cuts.request(self._home, number):
                self._ahead[partition] = number

    def take_ruling(self, lane: Lane, ruling: wire.Ruling) -> None:
        if lane.partition in self._ahead:
            ruling = replace(ruling, upto=self._settled_now(lane, ruling.upto))
        super().take_ruling(lane, ruling)

    def _settled_now(self, lane: Lane, upto: int) -> int:
        """Settle a lane only as far as before; the rest follows after our cut."""
        at = lane.partition
        self._settles[at] = max(upto, self._settles.get(at, 0))
        return min(upto, lane.upto)

    def _settle_after_cut(self) -> None:
        """Settle the events that waited for our cut, if it has begun."""
        request = self._cuts.request
        for at in [at for at, number in self._ahead.items() if not request(self._home, number)]:
            del self._ahead[at]
            lane, before = self.lanes[at], self.lanes[at].upto
            upto = min(self._settles.pop(at, before), lane.next_number, lane.released)
            self._settled(lane, before, lane.acknowledge(max(before, upto)))

    def reopen(self, lane: Lane, position: wire.Position, *, again: bool) -> bool:
        """Resume a lane at its owner's position, unless the position contradicts ours."""
        self.error = self.error or self._contradicts(lane, position)
        if lane.partition in self._ahead:
            position = replace(position, safe=self._settled_now(lane, position.safe))
        return super().reopen(lane, position, again=again)

    def _contradicts(self, lane: Lane, position: wire.Position) -> str:
        """Why a lane cannot resume at its owner's position; empty if it can."""
        if lane.upto <= position.number <= lane.released:
            return ""
        where = f"stream {self.stream!r}, partition {lane.partition}: its owner expects event"
        if position.number > lane.released:
            return (
                f"{where} {position.number} of producer {self.producer!r}, which has sent only "
                f"{lane.released}: the state here is older than the events sent from it; restore "
                f"the newer state, or begin anew without state"
            )
        return (
            f"{where} {position.number} of producer {self.producer!r}, but has acknowledged "
            f"{lane.upto}: the state there is older than the events taken into it; restore the "
            f"newer state, or begin anew without state"
        )

    # -- after a restart ---------------------------------------------------------------------

    def restore(self, saved: SavedRows) -> None:
        """Resume from the rows of an earlier life."""
        if saved.lanes is not None:
            self._learn(*saved.lanes)
        for partition, number in saved.next_numbers.items():
            frames = saved.frames[partition]
            self.lanes[partition].restore(frames, number)
            self.frame_bytes += sum(len(frame.data) for frame in frames)

    def roll_back(self, saved: SavedRows) -> None:
        """Roll back to the committed rows."""
        self.rows.unsent.roll_back()
        self.drop_pending()
        for lane in self.lanes:
            for frame in lane.cut_back():
                self.frame_bytes -= len(frame.data)
            written = saved.frames[lane.partition]
            self.rows.drop_frames(lane, [frame for frame in written if frame.end <= lane.upto])
        for each in (self._taken, self._cut_since, self.leaving):
            each.clear()
        self._saved = 0
        self._learned = saved.lanes

    def wait_again(self, events: Sequence[Any]) -> None:
        """Take events again that wait for the partitions, and are saved."""
        super().extend(events)
        self._saved = len(events)

    def _learn(self, partitions: int, routing: str, layout: int | None) -> None:
        """Open the lanes that an earlier life had learned."""
        self._learned = partitions, routing, layout
        problem = self.take_answer(
            wire.Hello("", "", self.stream, partitions=partitions, routing=routing)
        )
        assert not problem, problem
        self.layout = layout

    def unsettled_events(self) -> list[Any]:
        """The events that receivers have not committed, in order for each lane.

        Raises StateError if events of an earlier life cannot be read.
        """
        decoder = decoder_of(self.types, self.rows.versions)
        events: list[Any] = []
        for lane in self.lanes:
            for frame in lane.frames:
                found = read_events(self.stream, frame.data, decoder)
                events += found[max(0, lane.upto - frame.first) :]
            events += lane.pending
        return events + self.unrouted

    def all_rows(self) -> Iterator[bytes]:
        """All rows that may exist, to delete them."""
        for lane in self.lanes:
            for frame in lane.frames:
                yield self._keys.frame(lane.partition, frame.first, frame.end)
            yield self._keys.next_number(lane.partition)
        yield from self.rows.shared()

    def validate(self) -> None:
        super().validate()
        for lane in self.lanes:
            assert lane.released <= lane.next_number
            assert self._taken.get(lane.partition, 0) <= len(lane.pending)
