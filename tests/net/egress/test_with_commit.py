"""Events that a task puts for others: frames, rows and commits, with a crash at any moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node import Event
from s4node.errors import SpillError, StateError
from s4node.events.event import EventBatch
from s4node.events.schema import EventType
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.outbox_rows import Rows, SavedRows, begin_anew, channels_of, life_of
from s4node.net.egress.own_events import OwnEvents
from s4node.net.egress.routes import Routes
from s4node.net.egress.settlements import ReceiversCommits
from s4node.net.egress.with_commit import WithCommit
from s4node.net.wire import frame as wire
from s4node.net.wire.body import FrameDecoder
from s4node.state.rows import OUTBOX, Changes, task_row

PARTITIONS = 3
HOME = 2


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, PARTITIONS - 1), st.integers(1, 9)),
        st.sampled_from(
            [
                ("begin",),
                ("encode",),
                ("write",),
                ("fail",),
                ("receive",),
                ("acknowledge",),
                ("reconnect",),
                ("crash",),
                ("own",),
            ]
        ),
    ),
    max_size=60,
)


@given(MOVES, st.sampled_from([wire.WINDOW_BYTES, 200, 1]))
def test_committed_events_arrive_once_and_in_order_whatever_happens(
    moves: list[Any], bound: int
) -> None:
    """A crash takes the sender back to its last commit, the receiver to its own."""
    database, receiver = Database(), Receiver()
    life = Life(database, bound=bound)
    receiver.open(life)
    put: list[list[int]] = [[] for _ in range(PARTITIONS)]  # by this life and those before it
    begun = [0] * PARTITIONS
    safe = [0] * PARTITIONS
    count = 0
    own: list[int] = []
    begun_own: list[int] = []
    safe_own: list[int] = []

    def read(events: list[Any]) -> list[int]:
        return [event.number for event in events]

    for move, *arguments in [*moves, ("fail",), ("crash",), ("begin",), ("write",), ("receive",)]:
        if move == "put":
            partition, size = arguments
            put[partition] += range(count, count + size)
            life.release.put([Click(n) for n in range(count, count + size)], partition)
            count += size
        elif move == "own":
            own = [*own[1:], count, count + 1]
        elif move == "begin" and not life.committing:
            begun, begun_own = [len(each) for each in put], own
            life.begin([Click(n) for n in own])
        elif move == "encode" and life.committing:
            life.encode()
        elif move in ("write", "fail") and life.committing:
            life.end(written=move == "write")
            if move == "write":
                safe, safe_own = begun, begun_own
        elif move == "receive":
            receiver.receive(life)
        elif move == "acknowledge":
            receiver.commit(life)
        elif move == "reconnect":
            receiver.open(life)
        elif move == "crash":
            for partition, end in enumerate(safe):
                del put[partition][end:]
            life = Life(database, bound=bound)
            own = safe_own
            assert read(life.own) == own
            receiver.open(life)
        life.release.validate()
        if not life.committing:
            assert life.release.unreleased == (sum(map(len, put)) > sum(safe))
        elif sum(map(len, put)) > sum(begun):
            assert life.release.unreleased
        for partition, taken in enumerate(receiver.taken):
            assert taken == put[partition][: len(taken)]
            assert len(taken) <= safe[partition], "it left before its commit"
    assert receiver.taken == put
    receiver.commit(life)
    assert life.release.idle
    life.commit()
    assert not [key for key, _ in database.outbox if key[:1] in b"fo"]


def test_a_lane_goes_on_with_its_next_number_when_all_frames_are_gone() -> None:
    database, receiver = Database(), Receiver()
    life = Life(database)
    receiver.open(life)
    life.release.put([Click(n) for n in range(5)], 1)
    life.commit()
    receiver.receive(life)
    receiver.commit(life)
    life.commit()
    again = Life(database)
    assert again.outbox.lanes[1].next_number == 5
    receiver.open(again)
    again.release.put([Click(5)], 1)
    again.commit()
    receiver.receive(again)
    assert receiver.taken[1] == [0, 1, 2, 3, 4, 5]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("spill"), st.integers(1, 700)),
            st.sampled_from([("unspill",), ("commit",), ("fail",), ("crash",)]),
        ),
        max_size=30,
    )
)
def test_spilled_events_come_back_in_order_as_of_the_last_commit(moves: list[Any]) -> None:
    database = Database()
    life = Life(database)
    there: list[int] = []
    safe: list[int] = []
    count = 0
    for move, *arguments in [*moves, ("commit",), ("crash",)]:
        if move == "spill":
            there += range(count, count + arguments[0])
            life.spill([Click(n) for n in range(count, count + arguments[0])])
            count += arguments[0]
        elif move == "unspill":
            came = [event.number for event in life.unspilled()]
            assert came == there[: len(came)]
            assert bool(came) == bool(there)
            del there[: len(came)]
        elif move in ("commit", "fail"):
            life.begin()
            life.end(written=move == "commit")
            safe = list(there) if move == "commit" else safe
        else:
            life, there = Life(database), list(safe)
        assert life.own_events.spill.events == len(there)


def test_events_put_before_any_answer_are_saved_and_then_routed() -> None:
    database = Database()
    life = Life(database, partitions=0)
    life.release.put([Click(n) for n in range(3)])
    life.commit()
    life = Life(database, partitions=0)
    life.release.put([Click(3)])
    receiver = Receiver()
    receiver.open(life)
    life.commit()
    receiver.receive(life)
    assert sorted(n for taken in receiver.taken for n in taken) == [0, 1, 2, 3]
    receiver.commit(life)
    life.commit()
    again = Life(database, partitions=0)
    assert len(again.outbox.lanes) == PARTITIONS  # they are known now
    assert sum(lane.next_number for lane in again.outbox.lanes) == 4
    again.release.put([Click(4)])
    again.commit()
    for row in (*again.release.all_rows(), *again.own_events.rows()):
        database.rows.pop(row, None)
    assert not database.outbox


def test_events_before_an_answer_are_saved_by_any_commit_and_ask_for_one_after_it() -> None:
    life = Life(Database(), partitions=0)
    out = life.release
    asks: list[tuple[bool, bool]] = []
    for step in (
        lambda: out.put([Click(0)]),
        life.commit,
        lambda: out.put([Click(1)]),
        life.begin,
        lambda: life.end(written=False),
        life.commit,
        lambda: Receiver().open(life),
        life.commit,
    ):
        step()
        asks.append((out.changed, out.unreleased))
    saved, leaves, nothing = (True, False), (True, True), (False, False)
    assert asks == [saved, nothing, saved, nothing, saved, nothing, leaves, nothing]


def test_events_that_wait_for_an_answer_are_measured_in_every_life() -> None:
    database = Database()
    life = Life(database, partitions=0)
    life.release.put([Click(n) for n in range(100)])
    assert life.outbox.unsettled_bytes > 100
    assert life.outbox.unsettled == 100
    life.commit()
    size = life.outbox.unsettled_bytes
    again = Life(database, partitions=0).outbox
    assert (again.unsettled_bytes, again.unsettled) == (size, 100)


def test_frames_beyond_the_bound_are_only_in_their_rows_until_they_leave() -> None:
    database, receiver = Database(), Receiver()

    def in_memory(life: Life) -> int:
        return sum(len(frame.data) for lane in life.outbox.lanes for frame in lane.frames)

    life = Life(database, bound=500)
    for number in range(200):
        life.release.put([Click(number)], 0)
        life.commit()
    assert life.outbox.unsettled_bytes > 5000
    assert 0 < in_memory(life) < 600
    life = Life(database, bound=500)
    assert in_memory(life) == 0
    receiver.open(life)
    receiver.receive(life)
    assert receiver.taken[0] == [*range(200)]
    receiver.commit(life)
    assert life.outbox.unsettled_bytes == 0
    life.commit()
    assert not [key for key, _ in database.outbox if key[:1] == b"f"]


def test_a_rollback_forgets_uncommitted_events() -> None:
    life, receiver = Life(Database()), Receiver()
    receiver.open(life)
    life.release.put([Click(n) for n in range(6)], 0)
    life.commit([Click(100)])
    receiver.receive(life)
    receiver.commit(life)  # the rows are still there
    life.release.put([Click(n) for n in range(20, 27)], 0)
    life.release.put([Click(30)], 1)
    assert life.roll_back(channels_of(life.database.outbox)["digits"]) == [Click(100)]
    life.release.validate()
    life.release.put([Click(6)], 0)
    life.commit()
    receiver.receive(life)
    assert receiver.taken[0] == [0, 1, 2, 3, 4, 5, 6]
    receiver.commit(life)
    life.commit()
    assert not [key for key, _ in life.database.outbox if key[:1] in b"fo"]


def test_an_outbox_that_was_made_anew_has_nothing_of_the_former_one() -> None:
    """Whose rows a commit was to have removed, which was not written."""
    database = Database()
    before = Life(database, partitions=0, life="a")
    before.release.put([Click(n) for n in range(9)])
    Receiver().open(before)
    before.commit()
    assert life_of(database.outbox) == "a"
    rows = channels_of(database.outbox)["digits"]
    database.rows.clear()
    life = Life(database, partitions=0, life="b")
    life.release.put([Click(0)])
    assert life.roll_back(rows) == []
    assert life.release.idle
    life.release.put([Click(20), Click(21)])
    receiver = Receiver()
    receiver.open(life)
    database.rows.update((task_row(OUTBOX, key), value) for key, value in rows)
    life.commit()
    assert life_of(database.outbox) == "b"
    receiver.receive(life)
    assert sorted(n for taken in receiver.taken for n in taken) == [20, 21]
    again = Life(database, partitions=0, life="b")
    assert sum(lane.next_number for lane in again.outbox.lanes) == 2
    for row in (*again.release.all_rows(), *again.own_events.rows()):
        database.rows.pop(row, None)
    assert not database.outbox


def test_what_waited_is_put_again_by_the_first_commit_of_another_life() -> None:
    database, receiver = Database(), Receiver()
    before = Life(database, partitions=0, cls=Older, life="a")
    before.release.put([Older(n) for n in range(9)])
    receiver.open(before)
    before.commit()
    changes = Changes()
    begin_anew(changes, "digits", channels_of(database.outbox)["digits"], "b")
    changes.begin_commit()
    database.write(*changes.rows_to_write())
    for _ in range(2):  # of which the first dies before its commit
        life = Life(database, partitions=0, life="b")
        life.release.put([Click(9)])
    receiver.open(life)
    life.commit()
    receiver.receive(life)
    assert [sorted(taken) == taken for taken in receiver.taken] == [True] * PARTITIONS
    assert sorted(n for taken in receiver.taken for n in taken) == list(range(10))
    receiver.commit(life)
    life.commit()
    assert not [key for key, _ in database.outbox if key[:1] in b"fo"]


def test_an_owner_that_has_seen_more_than_was_sent_is_an_error() -> None:
    life = Life(Database())
    life.route.hello_frame()
    positions = tuple(wire.Position(p, 7, 99, 7) for p in range(PARTITIONS))
    life.route.on_hello(wire.Hello("there", "1", "digits", partitions=3, positions=positions))
    assert "its owner expects event 7" in life.outbox.error
    assert "has sent only 0: the state here is older" in life.outbox.error


def test_an_owner_that_has_forgotten_what_it_had_committed_is_an_error() -> None:
    life, receiver = Life(Database()), Receiver()
    receiver.open(life)
    life.release.put([Click(n) for n in range(4)], 0)
    life.commit()
    receiver.receive(life)
    receiver.commit(life)
    life.route.disconnected()
    life.route.hello_frame()
    positions = tuple(wire.Position(p, 2 if p == 0 else 0, 99, 0) for p in range(PARTITIONS))
    life.route.on_hello(wire.Hello("there", "2", "digits", partitions=3, positions=positions))
    assert "but has acknowledged 4: the state there is older" in life.outbox.error


def test_frames_of_an_earlier_version_are_announced_for_as_long_as_they_are_there() -> None:
    database, receiver = Database(), Receiver()
    before = Life(database, cls=Older)
    before.release.put([Older(n) for n in range(3)], 0)
    before.commit([Older(7)])
    life = Life(database)
    assert life.own == [Click(7)]
    older, newer = EventType(Older).declaration, EventType(Click).declaration
    assert set(life.outbox.types.declarations) == {older, newer}
    receiver.open(life)
    frames = life.route.frames(1_000_000)
    assert len(frames) == 1
    receiver.taken[0] = [0, 1, 2]
    receiver.commit(life)
    life.commit()
    assert Life(database).outbox.types.declarations == (newer,)


def test_frames_of_an_earlier_version_are_announced_where_something_is_spilled_too() -> None:
    database, receiver = Database(), Receiver()
    before = Life(database, cls=Older)
    before.release.put([Older(n) for n in range(3)], 0)
    before.spill([Older(7)])
    before.commit()
    older, newer = EventType(Older).declaration, EventType(Click).declaration
    life = Life(database)
    receiver.open(life)
    assert set(life.outbox.types.declarations) == {older, newer}
    receiver.taken[0] = [0, 1, 2]
    receiver.commit(life)
    life.commit()
    life = Life(database)
    assert life.outbox.types.declarations == (newer,)
    assert life.unspilled() == [Click(7)]  # its type was not forgotten
    life.commit()
    Life(database).commit()
    assert [key[:1] for key, _ in database.outbox if key[:1] == b"t"] == []


def test_saved_events_that_cannot_be_read_are_an_error_with_the_stream() -> None:
    database = Database()
    Life(database).commit([Click(7)])
    with pytest.raises(StateError, match=r"saved events of stream 'digits' cannot be read: no ev"):
        Life(database, cls=Other)


def test_an_event_that_cannot_be_encoded_is_refused_and_the_others_leave() -> None:
    life, receiver = Life(Database()), Receiver()
    receiver.open(life)
    life.release.put([Click(0), Click(1, object()), Click(2)], 0)
    life.commit([Click(3), Click(4, object())])
    receiver.receive(life)
    assert receiver.taken[0] == [0, 2]
    assert sum(each.count for each in life.release.take_refusals()) == 1
    assert Life(life.database).own == [Click(3)]


def test_an_unsendable_event_is_reported_once_by_the_commit_that_would_have_it() -> None:
    life = Life(Database())

    def put_again() -> None:
        life.release.put([Click(0), Click(1, object()), Click(2), Click(3), Click(4)], 0)
        assert life.release.take_refusals() == []  # it is known, for a frame was made

    put_again()
    life.roll_back(channels_of(life.database.outbox).get("digits", ()))
    put_again()
    life.begin()
    life.release.put([Click(5, object()), *(Click(number) for number in range(6, 12))], 0)
    life.end(written=False)
    assert life.release.take_refusals() == []
    life.begin()
    life.release.put([Click(12, object()), *(Click(number) for number in range(13, 20))], 0)
    life.end(written=True)
    (told,) = life.release.take_refusals()
    assert (told.count, told.unsent) == (2, True)
    life.commit()
    assert [each.count for each in life.release.take_refusals()] == [1]
    life.commit()
    assert life.release.take_refusals() == []


def test_a_tasks_own_event_that_no_commit_can_save_is_reported_when_lost() -> None:
    life = Life(Database())
    life.commit([Click(0), Click(1, object()), Click(2), Click(3, object())])
    life.commit([Click(1, object()), Click(2), Click(3, object())])  # the first was processed
    life.begin([Click(3, object())])
    life.end(written=False)
    assert life.release.take_refusals() == []  # they may come yet
    assert life.roll_back(channels_of(life.database.outbox)["digits"]) == [Click(2)]
    (told,) = life.release.take_refusals()
    assert (told.count, told.unsent) == (2, True)
    assert told.reason.startswith("a Click cannot be encoded: ")
    life.commit([Click(2), Click(4, object())])
    life.rows.unsent.report_lost()
    assert [each.count for each in life.release.take_refusals()] == [1]
    life.commit()
    life.rows.unsent.report_lost()
    assert life.release.take_refusals() == []


def test_the_wait_of_spilled_events_counts_from_their_arrival_or_the_start() -> None:
    database = Database()
    life = Life(database)
    life.spill([Click(n) for n in range(600)], offered_at=7.0)
    life.spill([Click(600)], offered_at=8.0)
    life.commit()
    found = [life.own_events.spill.pop(), life.own_events.spill.pop()]
    assert [batch and (batch.offered_at, batch.size) for batch in found] == [(7.0, 600), (8.0, 1)]
    life.roll_back(channels_of(database.outbox)["digits"], now=9.0)
    again = life.own_events.spill.pop()
    assert again is not None
    assert (again.offered_at, again.size) == (9.0, 600)


def test_an_event_that_cannot_be_spilled_is_named_with_its_stream_and_app() -> None:
    life = Life(Database())
    life.spill([Click(1), Click(2, object())])
    with pytest.raises(SpillError, match=r"stream 'digits' of app 'counts' .* a Click cannot"):
        life.begin()


# -- set-up ---------------------------------------------------------------------------------------


ADDRESS = "tcp://there:1"


class Click(Event):
    number: int
    what: Any = None


class Older(Event):
    number: int

    event_name = "Click"


class Other(Event):
    number: str

    event_name = "Click"


class Database:
    """The rows that were written."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    def write(self, rows: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        for row, value in zip(rows, values, strict=True):
            if value is None:
                self.rows.pop(row, None)
            else:
                self.rows[row] = value

    @property
    def outbox(self) -> list[tuple[bytes, bytes]]:
        start = len(task_row(OUTBOX, b""))
        return [(row[start:], value) for row, value in sorted(self.rows.items())]


class Life:
    """A task's process, from a start to a crash."""

    def __init__(
        self,
        database: Database,
        frame: int = 4,
        cls: type = Click,
        partitions: int = PARTITIONS,
        life: str = "",
        bound: int = wire.WINDOW_BYTES,
    ) -> None:
        self.database = database
        self.partitions = partitions
        self.changes = Changes()
        rows = channels_of(database.outbox)
        assert rows.keys() <= {"digits"}
        outbox = self.outbox = Outbox(
            "digits", "~c/a/Partition 0#1", types=[cls], max_frame_events=frame, committed=True
        )
        self.rows = ReceiversCommits(outbox, "digits", self.changes, database.rows, life)
        self.release = WithCommit(self.rows, partitions=partitions, bound=bound)
        self.own_events = OwnEvents("counts", HOME, self.rows)
        saved = self.rows.restore(rows.get("digits", ()))
        self.release.restore(saved)
        self.own = self._give_back(saved)
        routes = Routes(outbox)
        self.route = routes.to(ADDRESS)
        routes.assign([ADDRESS] * PARTITIONS, 0)
        self.committing = False

    def _give_back(self, saved: SavedRows, now: float = 0.0) -> list[Any]:
        """The events that the task has put for itself; others wait for the partitions."""
        events = self.own_events.restore(saved, now)
        if self.partitions:
            return events
        self.release.wait_again(events)
        return []

    def roll_back(self, rows: Rows, now: float = 0.0) -> list[Any]:
        self.changes = Changes()
        saved = self.rows.roll_back(self.changes, rows)
        self.release.roll_back(saved)
        return self._give_back(saved, now)

    def encode(self) -> bool:
        return self.release.encode() or self.own_events.encode()

    def begin(self, own: Sequence[Any] = ()) -> None:
        self.release.begin_commit()
        self.own_events.begin_commit([*own, *self.outbox.unrouted])
        self.changes.begin_commit()
        self.committing = True

    def end(self, *, written: bool) -> None:
        while self.encode():
            self.release.validate()
        if written:
            self.database.write(*self.changes.rows_to_write())
            self.changes.written()
        else:
            self.changes.failed()
        self.release.end_commit(written=written)
        self.committing = False

    def spill(self, events: list[Any], offered_at: float = 0.0) -> None:
        batch = EventBatch("digits", HOME, events)
        batch.offered_at = offered_at
        self.own_events.spill.append(batch)

    def unspilled(self) -> list[Any]:
        batch = self.own_events.spill.pop()
        assert batch is None or (batch.stream, batch.partition) == ("digits", HOME)
        return [] if batch is None else batch.events

    def commit(self, own: Sequence[Any] = ()) -> None:
        self.begin(own)
        self.end(written=True)


class Receiver:
    """Takes frames as an owner of all partitions does, and commits now and then."""

    def __init__(self) -> None:
        self.taken: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.committed = [0] * PARTITIONS

    def open(self, life: Life) -> None:
        life.route.disconnected()
        life.route.hello_frame()
        for partition, committed in enumerate(self.committed):
            del self.taken[partition][committed:]
        positions = tuple(
            wire.Position(partition, number, number + 1000, number)
            for partition, number in enumerate(self.committed)
        )
        life.route.on_hello(
            wire.Hello("there", "1", "digits", partitions=PARTITIONS, positions=positions)
        )
        assert not life.outbox.error

    def receive(self, life: Life) -> None:
        decoder = FrameDecoder({kind.fingerprint: kind for kind in (EventType(Click),)})
        for data in life.route.frames(1_000_000):
            for frame in wire.read_envelope(wire.envelope([data]), 1_000_000):
                assert isinstance(frame, wire.Frame)
                if not isinstance(frame.header, wire.Data):
                    continue
                events, refusals = decoder.decode(frame.header, frame.body)
                assert not refusals
                taken = self.taken[frame.header.partition]
                assert frame.header.first <= len(taken), "a hole"
                taken += [event.number for event in events[len(taken) - frame.header.first :]]

    def commit(self, life: Life) -> None:
        self.committed = [len(taken) for taken in self.taken]
        rulings = tuple(
            wire.Ruling(partition, wire.ADMITTED, number, number + 1000, number)
            for partition, number in enumerate(self.committed)
        )
        life.route.on_verdict(wire.Verdict("digits", life.outbox.producer, rulings))
