"""The release of a task's events by its commits: its events on one stream for others. Pure.

Rules
- Events gather in the lane of their partition. They become a frame when there are enough of them,
  or when a commit begins. The frame is a row of the task's database; so is the lane's next number.
- A commit holds the events put before it began. Those not yet encoded are encoded before later
  ones.
- A frame may leave when a commit that holds it is written. The frame and its row stay until the
  owner of the partition has committed it (:mod:`s4node.net.egress.settlements`). While more bytes
  than the bound wait, further frames are only in their rows, and are read when they leave.
- Frames of an earlier life are sent unchanged, with their numbers and the types that they were
  written with.
- The partitions of another app's stream are unknown until it has answered, and saved then. Events
  put before are saved without numbers (:mod:`s4node.net.egress.own_events`).
- An outbox that may be forgotten and made anew has a row with the name of its life; rows of another
  life are never used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from s4node.net.egress.lane import Lane
from s4node.net.egress.outbox_rows import SavedRows, lanes_row, number_row
from s4node.net.egress.refusal import Refusal
from s4node.net.egress.release import AtOnce
from s4node.net.egress.settlements import ReceiversCommits
from s4node.net.wire import frame as wire


class WithCommit(AtOnce):
    """The release of an outbox whose frames leave with commits, and whose settlement is ``rows``.

    ``partitions`` is the stream's number of partitions, 0 if the consumer announces it. ``clock``
    gives Unix time in ms. Tasks that put on the stream are held from ``bound`` unacknowledged bytes
    on.
    """

    def __init__(
        self,
        rows: ReceiversCommits,
        *,
        partitions: int,
        bound: int = wire.WINDOW_BYTES,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(rows.box)
        self.rows = rows
        self._keys = rows.keys
        self._bound = bound
        self._clock = clock
        self._taken: dict[int, int] = {}  # by lane: pending events of the current commit
        self._cut_since: set[int] = set()  # lanes with frames that are in no commit yet
        self.leaving: dict[int, int] = {}  # by lane: the end of the current commit's frames
        self._saved = 0  # of the events that wait for the partitions
        self._learns = not partitions  # from the consumer's answer
        self._learned: tuple[int, str, int | None] | None = None
        rows.bear_cut()
        if partitions:
            self.box.open_lanes(partitions, wire.ROUTED)

    # -- putting -----------------------------------------------------------------------------

    def put(
        self,
        events: Sequence[Any],
        partition: int = -1,
        now: float = 0.0,  # noqa: ARG002
        sender: str = "",
    ) -> int:
        if partition >= 0:
            self.box.extend_lane(partition, events, sender)
            self._cut_whole(self.box.lanes[partition])
        else:
            super().put(events)
            self._gather()
        return 0

    def _gather(self) -> None:
        """Sort incoming events into the lanes, and make full frames."""
        self.box.route()
        for lane in self.box.lanes:
            self._cut_whole(lane)

    def _cut_whole(self, lane: Lane) -> None:
        """Make full frames of a lane's events."""
        most = self.box.builder.max_events
        if len(lane.pending) < most:
            return
        taken = self._taken.pop(lane.partition, 0)
        if taken:
            self._cut(lane, taken, of_commit=True)
        while len(lane.pending) >= most:
            self._cut(lane, most)

    @property
    def holds(self) -> bool:
        """True if more bytes than the bound are not committed by the receivers."""
        return self.box.unsettled_bytes >= self._bound

    @property
    def changed(self) -> bool:
        """True if a commit would write more rows than are in the changes."""
        return self.box.pending > (0 if self.box.lanes else self._saved)

    @property
    def unreleased(self) -> bool:
        """True if events can leave once a further commit is written, as partitions are known."""
        return bool(self._cut_since or (self.box.lanes and self.box.pending))

    @property
    def idle(self) -> bool:
        """True if the receivers have committed all events."""
        return not self.box.frame_bytes and not self.box.pending

    # -- commits -----------------------------------------------------------------------------

    def begin_commit(self) -> None:
        """Begin a commit of the events put until now; ``unrouted`` ones are saved beside it."""
        box, rows = self.box, self.rows
        if self._learns:
            self._gather()
            self._saved = 0 if box.lanes else box.pending
            if box.answer is not None:
                learned = box.answer.partitions, box.answer.routing, box.layout
                if learned != self._learned:
                    self._learned = learned
                    rows.changes.put(self._keys.lanes, lanes_row(*learned))
        rows.bear_cut()
        rows.unsent.begin_commit()
        box.latest.begin_commit(self._clock() / 1000)
        self.leaving = {at: box.lanes[at].next_number for at in self._cut_since}
        self._cut_since.clear()
        self._taken = {lane.partition: len(lane.pending) for lane in box.lanes if lane.pending}

    def encode(self) -> bool:
        """Encode a part of the current commit; return False if nothing is left."""
        if self._taken:
            at, count = self._taken.popitem()
            self._cut(self.box.lanes[at], count, of_commit=True)
            return True
        return False

    def end_commit(self, *, written: bool) -> None:
        self.rows.settle_after_cut()
        leaving, self.leaving = self.leaving, {}
        self.rows.unsent.end_commit(written=written)
        if not written:
            self._cut_since |= leaving.keys()
            self._taken.clear()
            self._saved = 0
            return
        for at, end in leaving.items():
            lane = self.box.lanes[at]
            if self.holds:
                _store(lane, lane.released, end)
            lane.released = end
        self.box.latest.commit_written()

    def take_refusals(self) -> list[Refusal]:
        return super().take_refusals() + self.rows.unsent.drain()

    def _cut(self, lane: Lane, count: int, *, of_commit: bool = False) -> None:
        """Make frames of the next ``count`` waiting events of a lane."""
        put = self.rows.changes.add if of_commit else self.rows.changes.put
        at, most = lane.partition, self.box.builder.max_events
        self.rows.of_commit = of_commit
        while count > 0:
            before = len(lane.pending)
            data = self.box.encode(lane, min(count, most), self._clock(), 0, 0)
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

    # -- after a restart ---------------------------------------------------------------------

    def restore(self, saved: SavedRows) -> None:
        box = self.box
        if saved.lanes is not None:
            self._learn(*saved.lanes)
        for partition, number in saved.next_numbers.items():
            frames = saved.frames[partition]
            lane = box.lanes[partition]
            lane.restore(frames, number)
            box.frame_bytes += sum(frame.size for frame in frames)
            if self.holds:
                _store(lane, 0, number)

    def roll_back(self, saved: SavedRows) -> None:
        box = self.box
        self.rows.unsent.roll_back()
        box.drop_pending()
        for lane in box.lanes:
            for frame in lane.cut_back():
                box.frame_bytes -= frame.size
            written = saved.frames[lane.partition]
            self.rows.drop_frames(lane, [frame for frame in written if frame.end <= lane.upto])
        for each in (self._taken, self._cut_since, self.leaving):
            each.clear()
        self._saved = 0
        self._learned = saved.lanes

    def wait_again(self, events: Sequence[Any]) -> None:
        super().put(events)
        self._saved = len(events)

    def _learn(self, partitions: int, routing: str, layout: int | None) -> None:
        """Open the lanes that an earlier life had learned."""
        self._learned = partitions, routing, layout
        problem = self.box.take_answer(
            wire.Hello("", "", self.box.stream, partitions=partitions, routing=routing)
        )
        assert not problem, problem
        self.box.layout = layout

    def all_rows(self) -> Iterator[bytes]:
        for lane in self.box.lanes:
            for frame in lane.frames:
                yield self._keys.frame(lane.partition, frame.first, frame.end)
            yield self._keys.next_number(lane.partition)
        yield from self.rows.shared()

    def validate(self) -> None:
        self.box.validate()
        for lane in self.box.lanes:
            assert lane.released <= lane.next_number
            assert self._taken.get(lane.partition, 0) <= len(lane.pending)


def _store(lane: Lane, first: int, end: int) -> None:
    """Leave the data of the frames from ``first`` to ``end`` to their committed rows."""
    frames = lane.frames
    for at in range(len(frames) - 1, -1, -1):
        frame = frames[at]
        if frame.first < first:
            break
        if frame.end <= end:
            frames[at] = frame._replace(data=b"", stored=frame.size)
