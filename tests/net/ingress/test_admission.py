"""The promises of the admission, the node's side of its producers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
from lanes import NODE
from msgspec.structs import replace

from s4node.events.event import EventBatch
from s4node.log.log_rows import LogRows
from s4node.net.ingress.admission import StreamAdmission
from s4node.net.ingress.commit_rows import CommitRows
from s4node.net.ingress.flow import ARRIVALS, NEXT, Flow, Move, On, Presence
from s4node.net.ingress.producer_lane import Effects, ProducerLane
from s4node.net.ingress.report import MAX_EXCEPTIONS
from s4node.net.ingress.roster import Roster
from s4node.net.ingress.settlement import Commits
from s4node.net.wire import frame as wire
from s4node.offsets.checkpoint import SavedProducer
from s4node.stages.stage import Stage


def test_a_new_producer_starts_where_it_says_and_gets_its_share(admission_of: Made) -> None:
    admission, _ = admission_of(100, 60)
    assert greet(admission) == (wire.Position(0, 0, 100, 0, 1), wire.Position(1, 0, 60, 0, 1))
    assert greet(admission, "q", positions=(wire.Position(1, 7),)) == (
        wire.Position(0, 0, 50, 0, 1),
        wire.Position(1, 7, 37, 7, 1),
    )


def test_positions_of_partitions_that_do_not_exist_do_no_harm(admission_of: Made) -> None:
    admission, _ = admission_of(100, 100)
    positions = (wire.Position(77, 5), wire.Position(-1, 5), wire.Position(1, 3))
    assert greet(admission, positions=positions) == (
        wire.Position(0, 0, 100, 0, 1),
        wire.Position(1, 3, 103, 3, 1),
    )
    admission.validate()


def test_only_the_next_expected_number_is_admitted(admission_of: Made) -> None:
    admission, _ = admission_of(100)
    greet(admission)
    assert admitted(admission, 0, 5) == (0, 5, 0)
    assert admitted(admission, 6, 2) is None  # a gap
    assert admitted(admission, 5, 3) == (5, 8, 0)
    assert admitted(admission, 2, 3) is None  # twice
    assert admitted(admission, 0, 8) is None  # twice, all of it
    assert admitted(admission, 6, 5) == (8, 11, 2)  # an overlap is trimmed
    assert admission.admitted == 11
    assert (admission.duplicates, admission.gaps) == (13, 1)


def test_frames_before_the_hello_or_on_another_connection_are_dropped_silently(
    admission_of: Made,
) -> None:
    admission, ears = admission_of(100)
    assert admitted(admission, 0, 5) is None
    greet(admission)
    ears.taken()
    assert admitted(admission, 0, 5, connection=object()) is None
    assert admitted(admission, 0, 5, peer="q") is None
    assert admitted(admission, 0, 5, partition=1) is None
    assert ears.taken() == []
    assert admission.admitted == 0


def test_a_gap_is_answered_once_with_the_number_to_go_back_to(admission_of: Made) -> None:
    admission, ears = admission_of(100)
    greet(admission)
    admitted(admission, 0, 5)
    for first in (6, 8, 10):
        assert admitted(admission, first, 2) is None
    lane = admission.lanes["p", 0]
    assert ears.taken() == [("p", 0)]
    assert lane.pressing
    assert lane.ruling() == wire.Ruling(0, wire.EXPECTED, 0, 100, 5)
    assert lane.ruling().outcome == wire.ADMITTED
    assert admitted(admission, 5, 2) == (5, 7, 0)
    assert admitted(admission, 9, 2) is None  # another gap is told again
    assert lane.ruling().outcome == wire.EXPECTED


def test_a_frame_that_begins_below_the_limit_owns_its_place_whole(admission_of: Made) -> None:
    admission, _ = admission_of(10)
    greet(admission)
    assert admitted(admission, 0, 25) == (0, 25, 0)
    assert admission.over_credit == 0


def test_a_frame_that_does_not_is_dropped_and_asked_for_again(admission_of: Made) -> None:
    admission, ears = admission_of(10)
    greet(admission)
    admitted(admission, 0, 10)
    ears.taken()
    assert admitted(admission, 10, 2) is None
    assert admission.over_credit == 1
    assert ears.taken() == [("p", 0)]
    lane = admission.lanes["p", 0]
    assert lane.ruling() == wire.Ruling(0, wire.EXPECTED, 0, 10, 10)
    lane.complete(0, 10)
    ears.settle()
    assert lane.ruling() == wire.Ruling(0, wire.ADMITTED, 10, 20, 10)
    assert admitted(admission, 10, 2) == (10, 12, 0)


def test_safe_moves_with_completion_and_never_past_a_hole(admission_of: Made) -> None:
    admission, ears = admission_of(100)
    greet(admission)
    receipts = [admission.admit(data(first, 5), NODE, 0.0) for first in (0, 5, 10)]
    lane = admission.lanes["p", 0]
    receipts[1].done()  # type: ignore[union-attr]
    receipts[2].done()  # type: ignore[union-attr]
    assert lane.safe == 0
    assert ears.taken() == []
    receipts[0].done()  # type: ignore[union-attr]
    ears.settle()
    assert (lane.safe, lane.settled) == (15, 15)
    assert ears.taken() == [("p", 0)]
    admission.validate()


def test_a_frame_is_done_when_all_of_its_parts_are(admission_of: Made) -> None:
    admission, _ = admission_of(100)
    greet(admission)
    receipt = admission.admit(data(0, 5), NODE, 0.0)
    assert receipt is not None
    receipt.parts = 3
    receipt.done()
    receipt.done()
    assert receipt.progress.safe == 0
    receipt.done()
    assert receipt.progress.safe == 5
    assert receipt.describe(4) == "p:4"


def test_refusals_are_told_once_they_hold_and_only_once(admission_of: Made) -> None:
    admission, ears = admission_of(100)
    greet(admission)
    receipt = admission.admit(data(0, 5), NODE, 0.0)
    assert receipt is not None
    receipt.refuse(3, "no key")
    lane = receipt.progress
    if lane.by_event:  # a rollback may undo it until a commit covers it
        assert ears.taken() == []
        receipt.complete(0, 4)
        ears.settle()
    assert ears.taken() == [("p", 0)]
    assert lane.pressing
    ruling = wire.Ruling(0, wire.REFUSED, lane.settled, 100, 5, ((3, 1, "no key"),))
    assert lane.ruling() == ruling
    receipt.done()
    ears.settle()
    assert lane.ruling() == wire.Ruling(0, wire.ADMITTED, 5, 100, 5)
    assert admission.refused == 1


def test_many_refusals_go_out_in_several_verdicts_and_none_is_missed(admission_of: Made) -> None:
    """``upto`` stops below what is yet to be told: a producer that is settled knows it all."""
    assert MAX_EXCEPTIONS == 256
    admission, ears = admission_of(2000)
    greet(admission)
    receipt = admission.admit(data(0, 700), NODE, 0.0)
    assert receipt is not None
    for number in range(600):
        receipt.refuse(number, f"no {number}")
    receipt.done()
    ears.settle()
    lane = receipt.progress
    rulings = []
    while lane.pressing:
        rulings.append(lane.ruling())
    assert [(r.outcome, r.upto, len(r.exceptions)) for r in rulings] == [
        (wire.REFUSED, 256, 256),
        (wire.REFUSED, 512, 256),
        (wire.REFUSED, 700, 88),
    ]
    assert [n for r in rulings for n, _, _ in r.exceptions] == list(range(600))


def test_refusals_do_not_hide_a_gap(admission_of: Made) -> None:
    admission, ears = admission_of(100)
    greet(admission)
    receipt = admission.admit(data(0, 5), NODE, 0.0)
    admitted(admission, 7, 2)
    assert receipt is not None
    receipt.refuse(1, "no")
    receipt.complete(0, 2)
    ears.settle()
    lane = receipt.progress
    assert lane.ruling().outcome == wire.REFUSED
    assert lane.pressing
    assert lane.ruling() == wire.Ruling(0, wire.EXPECTED, lane.settled, 100, 5)


def test_a_ruling_that_could_not_be_sent_is_said_again_whole(admission_of: Made) -> None:
    admission, ears = admission_of(100)
    greet(admission)
    receipt = admission.admit(data(0, 5), NODE, 0.0)
    admitted(admission, 7, 2)
    assert receipt is not None
    receipt.refuse(1, "no")
    receipt.complete(0, 2)
    ears.settle()
    lane = receipt.progress
    lane.ruling()
    lane.not_sent()
    assert lane.pressing
    receipt.refuse(2, "no 2")
    receipt.complete(2, 3)
    ears.settle()
    assert lane.ruling().exceptions == ((1, 1, "no"), (2, 1, "no 2"))
    lane.not_sent()
    assert lane.ruling().exceptions == ((1, 1, "no"), (2, 1, "no 2"))
    assert lane.ruling().outcome == wire.EXPECTED
    lane.not_sent()
    assert lane.ruling().outcome == wire.EXPECTED


def test_a_producer_that_waits_is_answered_once_what_it_sent_is_processed(
    admission_of: Made,
) -> None:
    admission, ears = admission_of(100)
    greet(admission)
    lane = admission.lanes["p", 0]
    assert not lane.pressing
    receipt = admission.admit(data(0, 1, flags=wire.ANSWER_NOW), NODE, 0.0)
    assert ears.taken() == [("p", 0)]
    assert not lane.pressing
    assert receipt is not None
    receipt.done()
    ears.settle()
    assert ears.taken() == [("p", 0)]
    assert lane.pressing
    lane.ruling()
    assert not lane.pressing
    admission.ask("p", NODE)
    assert ears.taken() == [("p", 0)]
    assert lane.pressing
    lane.ruling()
    admission.ask("p", object())
    admission.ask("q", NODE)
    assert ears.taken() == []


def test_a_producer_hears_when_a_quarter_of_its_window_is_used_up(admission_of: Made) -> None:
    admission, ears = admission_of(100)
    greet(admission)
    receipts = [admission.admit(data(first, 1), NODE, 0.0) for first in range(100)]
    lane = admission.lanes["p", 0]
    for done, receipt in enumerate(receipts):
        assert lane.pressing == (done >= 25)
        receipt.done()  # type: ignore[union-attr]
    ears.settle()
    assert lane.ruling() == wire.Ruling(0, wire.ADMITTED, 100, 200, 100)


def test_a_repeated_frame_is_answered_because_the_producer_may_not_know(admission_of: Made) -> None:
    admission, ears = admission_of(100)
    greet(admission)
    admitted(admission, 0, 5)
    ears.taken()
    assert admitted(admission, 0, 5) is None
    assert ears.taken() == [("p", 0)]
    assert admission.lanes["p", 0].pressing


def test_a_producer_s_id_belongs_to_its_latest_connection(admission_of: Made) -> None:
    admission, _ = admission_of(100)
    one, other = object(), object()
    greet(admission, connection=one)
    assert admitted(admission, 0, 5, connection=one) == (0, 5, 0)
    assert greet(admission, connection=other) == (wire.Position(0, 5, 100, 0, 1),)
    assert admitted(admission, 5, 5, connection=one) is None
    admission.gone(one, 1.0)
    assert admitted(admission, 5, 5, connection=other) == (5, 10, 0)


def test_many_lanes_of_a_connection_that_has_ended_are_detached_some_at_a_time(
    admission_of: Made,
) -> None:
    admission, _ = admission_of(100)
    for n in range(600):
        greet(admission, f"p{n}", connection="gone")
    greet(admission, "p3", connection="new")
    left = []
    while admission.gone("gone", 1.0):
        left.append(sum(lane.connection == "gone" for lane in admission.lanes.values()))
        assert len(left) < 4
    assert left[0] > 300
    assert [lane.producer for lane in admission.lanes.values() if lane.connection] == ["p3"]
    assert not admission.gone("gone", 1.0)
    admission.validate()


def test_a_lane_outlives_its_connection(admission_of: Made) -> None:
    admission, ears = admission_of(100)
    greet(admission)
    receipt = admission.admit(data(0, 5), NODE, 0.0)
    assert receipt is not None
    admission.gone(NODE, 1.0)
    receipt.done()
    ears.settle()
    assert ears.taken() == []  # there is nobody to tell
    assert greet(admission, connection=object()) == (wire.Position(0, 5, 100, 5, 1),)


def test_refusals_made_while_the_producer_was_away_are_told_when_it_is_back(
    admission_of: Made,
) -> None:
    admission, ears = admission_of(100)
    greet(admission)
    receipt = admission.admit(data(0, 5), NODE, 0.0)
    assert receipt is not None
    admission.gone(NODE, 1.0)
    receipt.refuse(3, "no key")
    receipt.done()
    ears.settle()
    assert ears.taken() == []
    (position,) = greet(admission, connection=object())
    assert (position.number, position.safe) == (5, 3)
    assert ears.taken() == [("p", 0)]
    assert receipt.progress.ruling() == wire.Ruling(
        0, wire.REFUSED, 5, position.limit, 5, ((3, 1, "no key"),)
    )


def test_refusals_lost_with_a_connection_are_told_again_on_the_next(admission_of: Made) -> None:
    admission, ears = admission_of(100)
    greet(admission)
    receipt = admission.admit(data(0, 9), NODE, 0.0)
    assert receipt is not None
    lane = receipt.progress
    receipt.refuse(3, "heard")
    receipt.complete(0, 5)
    ears.settle()
    lane.ruling()
    receipt.refuse(5, "lost")
    receipt.done()
    ears.settle()
    assert lane.ruling().upto == 9
    admission.gone(NODE, 1.0)
    ears.taken()
    # the producer knows everything below 5
    (position,) = greet(admission, connection=object(), positions=(wire.Position(0, 5),))
    assert position.safe == 5
    assert ears.taken() == [("p", 0)]
    assert lane.ruling().exceptions == ((5, 1, "lost"),)


def test_what_was_refused_long_ago_is_remembered_no_longer_than_it_may_be_unheard(
    admission_of: Made,
) -> None:
    admission, _ = admission_of(10)
    greet(admission)
    lane = admission.lanes["p", 0]
    for number in range(1000):
        receipt = admission.admit(data(number, 1), NODE, 0.0)
        assert receipt is not None
        receipt.refuse(number, "no")
        receipt.done()
        lane.ruling()
    (position,) = greet(admission, positions=(wire.Position(0, 0),))
    assert len(lane.ruling().exceptions) <= 20
    assert position.number == 1000


def test_the_end_of_a_stream_forgets_what_is_done_and_nothing_else(admission_of: Made) -> None:
    admission, ears = admission_of(100, 100)
    greet(admission)
    admitted(admission, 0, 5, partition=1)
    admission.forget("p", object())
    assert set(admission.lanes) == {("p", 0), ("p", 1)}
    admission.forget("p", NODE)
    assert set(admission.lanes) == {("p", 1)}
    admission.lanes["p", 1].complete(0, 5)
    ears.settle()
    admission.forget("p", NODE)
    assert admission.lanes == {}
    assert greeted_lane(admission).share == 100


def greeted_lane(admission: StreamAdmission) -> ProducerLane:
    greet(admission, "q")
    return admission.lanes["q", 0]


def test_a_lane_goes_on_where_the_node_stopped_that_had_the_partition_before(
    admission_of: Made,
) -> None:
    admission, _ = admission_of(100)
    (position,) = greet(admission)
    assert (position.number, position.safe) == (0, 0)
    (position,) = greet(admission, positions=(wire.Position(0, 5),))
    assert (position.number, position.safe) == (5, 5)
    assert admission.admit(data(5, 3), NODE, 0.0, 3) is not None
    (position,) = greet(admission, positions=(wire.Position(0, 20),))
    assert (position.number, position.safe) == (8, 5)  # what is in progress here is ours
    admission.validate()


def test_producers_that_stay_away_expire_unless_their_work_is_in_progress(
    admission_of: Made,
) -> None:
    admission, ears = admission_of(100)
    for peer in ("done", "busy", "here"):
        greet(admission, peer, connection=peer)
    admitted(admission, 0, 5, connection="busy", peer="busy")
    admission.gone("done", 10.0)
    admission.gone("busy", 10.0)
    assert admission.expire(before=10.0) == 0
    assert admission.expire(before=11.0) == 1
    assert {peer for peer, _ in admission.lanes} == {"busy", "here"}
    admission.lanes["busy", 0].complete(0, 5)
    ears.settle()
    assert admission.expire(before=11.0) == 1


def test_producers_held_back_by_a_full_stage_are_served_when_it_has_room(
    admission_of: Made,
) -> None:
    admission, ears = admission_of(4)
    stage = admission.stages[0]
    greet(admission)
    receipts = []
    for first in range(4):
        receipts.append(admission.admit(data(first, 1), NODE, 0.0))
        stage.offer(EventBatch("ticks", 0, ["tick"], receipts[-1], first))
    lane = admission.lanes["p", 0]
    receipts[0].done()  # type: ignore[union-attr]  # done, but still counted in the stage
    assert lane.ruling().limit == 4
    ears.taken()
    admission.released()
    assert ears.taken() == []
    stage.release(1)
    admission.released()
    assert ears.taken() == [("p", 0)]
    assert lane.ruling().limit == 5
    admission.released()
    assert ears.taken() == []


# -- producers that a roster remembers -------------------------------------------------------------


ROW = SavedProducer(7, 3, "i3", own_id=True)


def test_a_lane_begins_at_its_row_in_the_life_of_the_row(remembering: Remembering) -> None:
    admission = remembering({"p": ROW})
    greeting = admission.greet(hello("i3", 5, life=3), "line", 0.0)
    assert greeting is not None
    assert [(at.number, at.life) for at in greeting.positions] == [(7, 3)]
    admission.validate()


def test_a_new_life_follows_that_of_the_row_and_shuts_it_out(remembering: Remembering) -> None:
    admission = remembering({"p": ROW})
    new = replace(hello("i4", 0), positions=())
    greeting = admission.greet(new, "line", 0.0)
    assert greeting is not None
    assert [(at.number, at.life) for at in greeting.positions] == [(7, 4)]
    old = admission.greet(hello("i3", 7, life=3), "line", 0.0)
    assert old is not None
    assert "a program that was started later has used" in old.error


def test_a_producer_without_a_row_begins_where_it_says(admission_of: Made) -> None:
    greeting = admission_of(100)[0].greet(hello("i1", 5), "line", 0.0)
    assert greeting is not None
    assert [(at.number, at.safe, at.life) for at in greeting.positions] == [(5, 5, 1)]


# -- set-up ---------------------------------------------------------------------------------------


class Ears(Effects):
    """Remembers which lanes' producers should hear something; commits if that settles numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.roster = Roster()

    def taken(self) -> list[tuple[str, int]]:
        lanes, self.answers = self.answers, {}
        return [(one.producer, one.partition) for one in lanes if one.connection is not None]

    def settle(self) -> None:
        """Settle what is done: by a commit of each task on a durable stream, else it is."""
        if isinstance(self.roster, CommitRows):
            for partition in list(self.roster.commits.changed):
                self.roster.commit_written(partition, self.roster.snapshot(partition))


Made: TypeAlias = Callable[..., tuple[StreamAdmission, Ears]]
Remembering: TypeAlias = Callable[[dict[str, SavedProducer]], StreamAdmission]


def made(grade: str, capacities: Sequence[int], **rows: SavedProducer) -> tuple[Any, Ears]:
    """The admission of a stream of this grade that remembers these producers."""
    ears, stages = Ears(), dict(enumerate(map(Stage, capacities)))
    if grade == "durable":
        ears.roster = CommitRows(Commits(len(stages)))
    elif grade == "log":
        ears.roster = LogRows([file_of(number, rows) for number in stages])
    admission = StreamAdmission("ticks", stages, ears, roster=ears.roster)
    if isinstance(ears.roster, CommitRows):
        for number in stages:
            ears.roster.restore(number, rows, 0.0)
    return admission, ears


@pytest.fixture(params=["fast", "durable", "log"])
def admission_of(request: pytest.FixtureRequest) -> Made:
    """Makes the admission of a stream of each grade, with stages of these capacities."""
    return lambda *capacities: made(request.param, capacities)


@pytest.fixture(params=["durable", "log"])
def remembering(request: pytest.FixtureRequest) -> Remembering:
    """Makes an admission whose roster has these rows."""
    return lambda rows: made(request.param, [1000], **rows)[0]


def file_of(number: int, rows: dict[str, SavedProducer]) -> Any:
    """A partition of a log that knows these producers."""
    return SimpleNamespace(
        number=number, producers=rows, parts=lambda _: {}, forget=lambda *_: False
    )


def hello(incarnation: str, number: int, life: int = 0) -> wire.Hello:
    headers = {wire.OWN_ID: True, wire.NEW: True}
    position = wire.Position(0, number, life=life)
    return wire.Hello("p", incarnation, "ticks", positions=(position,), headers=headers)


def greet(
    admission: StreamAdmission,
    peer: str = "p",
    connection: object = NODE,
    now: float = 0.0,
    positions: tuple[wire.Position, ...] = (),
) -> tuple[wire.Position, ...]:
    return admission.hello(wire.Hello(peer, "i1", "ticks", positions=positions), connection, now)


def data(first: int, count: int, partition: int = 0, flags: int = 0, peer: str = "p") -> wire.Data:
    return wire.Data(
        "ticks", partition, peer, first, count, (wire.Section(1, count, count),), flags=flags
    )


def admitted(
    admission: StreamAdmission, first: int, count: int, connection: object = NODE, **more: Any
) -> tuple[int, int, int] | None:
    """First, end and skip of what was admitted of a frame, or None."""
    receipt = admission.admit(data(first, count, **more), connection, 0.0)
    admission.validate()
    return receipt and (receipt.first, receipt.end, receipt.first - first)


OPEN, GAP, TOLD, HELD = Flow
HERE, AWAY, ENDED = Presence
EVER = (OPEN, GAP, TOLD, HELD)

RULES = [
    # the next frame opens the lane, whatever was before, and so does a hello
    (EVER, (On.TAKEN, On.REOPENED), OPEN),
    # the producer goes back after a frame without credit, and after a rollback
    (EVER, (On.OVER, On.ROLLED_BACK), GAP),
    # for lack of room nothing is told before there is some
    (EVER, (On.NO_ROOM,), HELD),
    ((HELD,), (On.BEYOND, On.BACK, On.ANSWERED, On.LOST, On.ASKED), HELD),
    ((GAP, TOLD, HELD), (On.ROOM,), GAP),
    # a gap is told once, until the producer has gone back or may not know
    ((OPEN,), (On.BEYOND, On.BACK), GAP),
    ((GAP,), (On.BEYOND, On.BACK, On.LOST, On.ASKED), GAP),
    ((GAP,), (On.ANSWERED,), TOLD),
    ((TOLD,), (On.BEYOND, On.ANSWERED), TOLD),
    ((TOLD,), (On.BACK, On.LOST, On.ASKED), GAP),
    # a lane without a gap has nothing to repeat
    ((OPEN,), (On.ROOM, On.ANSWERED, On.LOST, On.ASKED), OPEN),
]

ARRIVING = [
    ((HERE, AWAY, ENDED), Move.HELLO, HERE),
    ((HERE, AWAY, ENDED), Move.END, ENDED),
    ((HERE, AWAY), Move.GONE, AWAY),
    ((ENDED,), Move.GONE, ENDED),
]


def test_whatever_happens_to_a_lane_has_one_rule_and_the_table_follows_it() -> None:
    for flow, event in product(Flow, On):
        (after,) = [after for flows, events, after in RULES if flow in flows and event in events]
        assert NEXT.get((flow, event), flow) is after, (flow, event)


def test_a_producer_that_has_ended_is_not_away_before_it_comes_again() -> None:
    for presence, move in product(Presence, Move):
        (after,) = [after for before, how, after in ARRIVING if presence in before and move is how]
        assert ARRIVALS.get((presence, move), presence) is after, (presence, move)
