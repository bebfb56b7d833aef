"""The promises of durable streams: what producers and a node do when the node dies."""

from __future__ import annotations

import math
from collections.abc import Container
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from lanes import NODE, Tick, route_of
from msgspec.structs import replace
from net_simulation import World, happen, stages_of
from seeds_of_the_day import every_fourth

from s4node.errors import LimitReached
from s4node.events.event import EventBatch
from s4node.net.egress.outbox import Outbox
from s4node.net.ingress.admission import StreamAdmission
from s4node.net.ingress.commit_rows import CommitRows, TakenLanes
from s4node.net.ingress.producer_lane import Effects, FrameReceipt
from s4node.net.ingress.roster import MAX_KEPT
from s4node.net.ingress.settlement import UNKNOWN_BYTES, Commits, Saved
from s4node.net.wire import frame as wire
from s4node.net.wire.frame import WINDOW_BYTES, Frame
from s4node.offsets.checkpoint import SavedProducer
from s4node.offsets.cuts import AT_ONCE
from s4node.offsets.receipts import BatchReceipt, PartReceipt
from s4node.stages.stage import Room, Stage


@pytest.mark.parametrize("seed", every_fourth(150))
def test_every_event_counts_once_in_order_however_often_the_node_and_its_producers_die(
    seed: int,
) -> None:
    random = Random(seed)
    world = DurableWorld(
        random.choice([1, 2, 7, 1 << 20]),
        producers=random.randint(1, 3),
        partitions=random.randint(1, 3),
        capacity=random.choice([1, 2, 3, 8, 30]),
        frame_events=random.randint(1, 6),
        routing=random.choice(["crc32m:", "crc32m:user", "crc32m:?"]),
        max_bytes=random.choice([40, 150, 1 << 20]),
    )
    for name in world.names:
        world.connect(name)
    for _ in range(600):
        happens(world, random)
        world.check()
    world.settle()
    world.crash(written=False)
    world.put(world.names[0], 5, "good")
    world.settle()
    for serials in world.processed.values():
        assert all(one < other for one, other in pairwise(serials))


# -- one by one -----------------------------------------------------------------------------------


def kept(number: int, **more: Any) -> SavedProducer:
    """The row of a producer in its first life."""
    return SavedProducer(number, 1, "i1", **more)


class Node(Room):
    """A durable stream of two partitions, its commits, and who asks for them."""

    def __init__(
        self,
        rows: dict[int, dict[str, SavedProducer]] | None = None,
        *,
        timed: bool = False,
        most: int = MAX_KEPT,
        full: Container[tuple[str, int]] = (),
        **commits: Any,
    ) -> None:
        self.full = full
        self.rows = rows or {0: {}, 1: {}}
        self.effects = Effects()
        self.roster = CommitRows(Commits(2, **commits), timed=timed, most=most)
        self.admission = StreamAdmission(
            "ticks",
            {0: Stage(1000), 1: Stage(1000)},
            self.effects,
            room=self,
            roster=self.roster,
        )
        for partition, kept in self.rows.items():
            self.roster.restore(partition, kept, 0.0)

    def stops(self, stream: str, partition: int) -> bool:
        return (stream, partition) in self.full

    @property
    def saved(self) -> Saved:
        saved = self.admission.lanes["p", 0].settlement
        assert isinstance(saved, Saved)
        return saved

    def hello(
        self, *numbers: tuple[int, int], peer: str = "p", incarnation: str = "i1", **headers: Any
    ) -> wire.Hello:
        positions = tuple(wire.Position(*number) for number in numbers)
        return wire.Hello(peer, incarnation, "ticks", positions=positions, headers=headers)

    def greet(
        self, *numbers: tuple[int, int], connection: object = NODE, **more: Any
    ) -> list[tuple[int, int]]:
        """Number and what is settled, of each partition."""
        hello = self.hello(*numbers, **more)
        assert self.admission.refusal(hello) == ""
        assert not self.roster.unsettled(hello, 0.0)
        return [(at.number, at.safe) for at in self.admission.hello(hello, connection, 0.0)]

    def take(self, first: int, count: int, partition: int = 0, peer: str = "p") -> FrameReceipt:
        sections = (wire.Section(1, count, count),)
        data = wire.Data("ticks", partition, peer, first, count, sections)
        receipt = self.admission.admit(data, NODE, 0.0, 10 * count)
        assert receipt is not None
        return receipt

    def commit(self, partition: int = 0) -> dict[str, SavedProducer | None]:
        taken = self.roster.snapshot(partition)
        self.roster.commit_written(partition, taken)
        rows: dict[str, SavedProducer | None] = dict.fromkeys(taken.forgotten)
        return rows | {saved.lane.producer: row for saved, row in taken.lanes.items()}

    def ruling(self, peer: str = "p") -> wire.Ruling:
        return self.admission.lanes[peer, 0].ruling()


def test_a_new_program_with_an_id_is_answered_once_the_next_owner_would_know_it() -> None:
    node = Node(timed=True)
    node.greet(peer="without an id")
    assert not node.roster.must_save("without an id")
    node.greet(own_id=True)
    assert node.roster.must_save("p")
    assert node.effects.commits == {0: 0.0, 1: 0.0}
    assert node.commit(0) == {"p": kept(0, own_id=True)}
    assert node.roster.saves("p")
    node.commit(1)
    assert not node.roster.saves("p")
    again = Node({0: {"p": kept(0, own_id=True)}, 1: {"p": kept(0, own_id=True)}}, timed=True)
    again.greet(own_id=True)
    assert not again.roster.must_save("p")
    assert again.effects.commits == {}


def test_what_is_settled_is_what_was_committed_to_the_event() -> None:
    node = Node()
    node.greet()
    frame = node.take(0, 10)
    frame.complete(0, 4)
    assert node.ruling().upto == 0
    assert node.commit() == {"p": kept(4)}
    frame.done()
    assert node.ruling().upto == 4
    assert node.commit() == {"p": kept(10)}
    assert (node.ruling().upto, node.commit()) == (10, {})


def test_half_a_window_asks_for_a_commit_and_a_whole_one_is_the_limit() -> None:
    node = Node(window_events=20)
    node.greet()
    node.take(0, 9).done()
    assert node.effects.commits.get(0) != AT_ONCE
    node.take(9, 3).done()
    node.take(12, 5).done()
    assert node.effects.commits == {0: AT_ONCE}  # once
    assert node.ruling().limit == 20
    node.commit()
    assert node.ruling().limit == 37


def test_a_producer_hears_nothing_before_a_commit_unless_there_is_more_credit_for_it() -> None:
    node = Node()
    node.greet()
    lane = node.admission.lanes["p", 0]
    node.take(0, 400).done()  # so that its events are weighed
    node.commit()
    limit = node.ruling().limit
    node.effects.answers.clear()
    node.take(400, 100).done()
    node.admission.ask("p", NODE)
    assert lane not in node.effects.answers  # nothing new could be said
    node.effects.answers.clear()
    node.commit()
    assert list(node.effects.answers) == [lane]
    assert node.ruling().upto == 500
    node.effects.answers.clear()
    node.take(500, 200).done()
    assert list(node.effects.answers) == [lane]
    assert node.ruling().limit > limit


def test_a_producer_may_have_so_many_bytes_beyond_what_is_committed() -> None:
    node = Node()
    node.greet()
    heavy = wire.Data("ticks", 0, "p", 0, 1, (wire.Section(1, 1, 1),))
    receipt = node.admission.admit(heavy, NODE, 0.0, 1 << 23)
    assert receipt is not None
    assert node.saved.window == WINDOW_BYTES // 2 // (1 << 23)


def test_a_producer_gets_no_more_credit_than_its_window_before_its_events_are_weighed() -> None:
    node = Node()
    node.greet()
    lane = node.admission.lanes["p", 0]
    assert lane.limit == WINDOW_BYTES // 2 // UNKNOWN_BYTES == 512  # its stage has room for 1,000
    heavy = wire.Data("ticks", 0, "p", 0, 1, (wire.Section(1, 1, 1),))
    receipt = node.admission.admit(heavy, NODE, 0.0, UNKNOWN_BYTES)
    assert receipt is not None
    receipt.done()
    assert node.ruling().limit == 512
    node.take(1, 1).done()
    for _ in range(20):  # they have become light
        node.take(lane.expected, 1).done()
    assert node.ruling().limit == lane.expected + 1000


def test_a_producer_that_has_heard_more_than_the_row_says_is_told_of_the_loss() -> None:
    node = Node({0: {"p": SavedProducer(7)}, 1: {}})
    assert "below 8 is committed in partition 0" in node.admission.refusal(node.hello((0, 8)))
    node = Node()
    hello = node.hello((0, 8), (1, 0), (9, 1))
    assert node.admission.refusal(hello) == ""
    assert node.roster.unknown(hello) == [0]  # nothing is known, so it is believed, and told
    assert node.greet((0, 8), (1, 0)) == [(8, 8), (0, 0)]
    assert node.roster.unknown(hello) == []


def test_a_producer_without_numbers_waits_until_its_earlier_events_are_committed() -> None:
    node = Node()
    node.greet()
    frame = node.take(0, 10)
    hello = node.hello()
    assert node.roster.unsettled(hello, 0.0)
    assert node.effects.commits.get(0) != AT_ONCE  # there is nothing to commit yet
    frame.done()
    assert node.effects.commits == {0: AT_ONCE}
    assert node.roster.unsettled(hello, 0.0)
    node.commit()
    assert node.greet() == [(10, 10), (0, 0)]
    node.admission.validate()


def test_a_refusal_is_reported_once_a_commit_has_settled_it() -> None:
    node = Node()
    node.greet()
    frame = node.take(0, 10)
    frame.refuse(3, "bad")
    frame.refuse(7, "bad too")
    frame.complete(0, 5)
    assert node.ruling().exceptions == ()
    rows = node.commit()
    assert rows == {"p": kept(5, unreported=((3, 1, "bad", False),))}
    frame.done()
    ruling = node.ruling()
    assert (ruling.exceptions, ruling.upto) == (((3, 1, "bad"),), 5)
    node.roster.roll_back(0)
    node.take(5, 5).done()  # this time 7 is processed
    node.commit()
    ruling = node.ruling()
    assert (ruling.exceptions, ruling.upto) == ((), 10)
    node.admission.validate()


def test_more_refusals_than_a_verdict_reports_request_a_commit_before_more_credit() -> None:
    node = Node()
    node.greet()
    limit = node.admission.lanes["p", 0].limit
    frame = node.take(0, 300)
    for number in range(300):
        frame.refuse(number, f"bad {number}")
    frame.complete(0, 299)
    assert node.effects.commits == {0: AT_ONCE}
    assert node.ruling().limit == limit
    node.commit()
    assert [len(node.ruling().exceptions) for _ in range(3)] == [256, 43, 0]
    assert node.ruling().limit > limit
    node.admission.validate()


def test_refusals_that_were_perhaps_not_heard_are_told_by_the_next_life() -> None:
    node = Node()
    node.greet()
    frame = node.take(0, 10)
    frame.refuse(3, "bad")
    frame.done()
    rows = node.commit()
    assert rows == {"p": kept(10, unreported=((3, 1, "bad", False),))}
    later = Node({0: rows, 1: {}})  # type: ignore[dict-item]
    assert later.greet((0, 2), (1, 0))[0] == (10, 3)
    ruling = later.ruling()
    assert (ruling.exceptions, ruling.upto) == (((3, 1, "bad"),), 10)
    heard = Node({0: rows, 1: {}})  # type: ignore[dict-item]
    assert heard.greet((0, 4), (1, 0))[0] == (10, 10)


def test_a_producer_is_forgotten_when_it_says_so_or_was_not_seen_for_long() -> None:
    node = Node()
    for peer in ("p", "q", "~t"):
        node.greet(peer=peer, fence=1)
        node.take(0, 10, peer=peer).done()
    assert set(node.commit()) == {"p", "q", "~t"}
    node.admission.forget("p", NODE)
    assert node.commit() == {"p": None}
    node.admission.gone(NODE, 10.0)
    node.admission.tick(100.0, 100.0)
    assert node.commit() == {}
    node.admission.tick(111.0, 100.0)
    assert node.commit() == {"q": None}  # a task may be away for ever
    assert node.greet(peer="q") == [(0, 0), (0, 0)]
    assert node.greet(peer="~t", fence=1) == [(10, 10), (0, 0)]


def test_a_program_with_an_id_of_its_own_may_be_away_for_ever_and_can_say_that_it_is_done() -> None:
    node = Node()
    node.greet(own_id=True)
    node.take(0, 10).done()
    assert node.commit() == {"p": kept(10, own_id=True)}
    node.admission.gone(NODE, 10.0)
    node.admission.tick(100_000.0, 100.0)
    assert node.commit() == {}
    later = Node({0: {"p": kept(10, own_id=True)}, 1: {}})
    later.admission.tick(100_000.0, 100.0)
    assert later.commit() == {}
    assert later.greet(own_id=True) == [(10, 10), (0, 0)]
    later.admission.forget("p", NODE)
    assert later.commit() == {"p": None}


def test_who_is_connected_is_seen_although_it_sends_nothing() -> None:
    node = Node()
    node.greet()
    node.take(0, 10).done()
    node.commit()
    node.admission.tick(100_000.0, 100.0)
    assert node.commit() == {}


def test_rows_without_a_lane_are_forgotten_by_the_time_that_somebody_could_have_heard() -> None:
    node = Node()
    node.roster.restore(0, {"p": kept(5)}, 1000.0)
    node.admission.tick(1100.0, 100.0)
    assert node.commit() == {}
    node.admission.tick(1107.0, 100.0)
    assert node.commit() == {"p": None}


def test_an_earlier_life_of_a_task_is_refused_once_events_of_a_later_one_are_committed() -> None:
    rows = {"~c/a/t#1": kept(5, own_id=True), "~c/a/u#1": kept(6, own_id=True)}
    node = Node({0: rows, 1: {}})
    node.greet(peer="~c/a/t#2", fence=1)
    assert node.admission.refusal(node.hello(peer="~c/a/t#1", fence=9)) == ""  # not kept yet
    node.take(0, 1, peer="~c/a/t#2").done()
    rows |= node.commit()  # type: ignore[arg-type]
    for later in (node, Node({0: rows, 1: {}})):
        refusal = later.admission.refusal(later.hello(peer="~c/a/t#1", fence=9))
        assert "has begun anew since, as ~c/a/t#2" in refusal
        assert later.admission.refusal(later.hello(peer="~c/a/u#1", fence=9)) == ""


def test_the_latest_lives_of_a_task_are_remembered_and_older_ones_are_forgotten() -> None:
    lives = [f"~c/a/t#{life:02}" for life in range(wire.MAX_LIVES + 1)]
    node = Node({0: dict.fromkeys(lives[:-1], kept(5, own_id=True)), 1: {}})
    node.greet(peer=lives[-1], fence=1)
    node.take(0, 1, peer=lives[-1]).done()
    assert lives[-1] in node.commit()
    node.admission.tick(2.0, 100.0)
    assert node.commit() == {lives[0]: None}


def test_a_life_of_a_program_that_is_older_than_the_latest_is_refused() -> None:
    node = Node()
    node.greet(own_id=True, new=True)
    node.take(0, 10).done()
    node.commit()
    old = node.hello((0, 10), (1, 0), own_id=True, new=True)
    old = replace(old, positions=tuple(replace(at, life=1) for at in old.positions))
    assert node.admission.refusal(old) == ""
    node.greet(incarnation="i2", own_id=True, new=True)
    node.take(10, 60).done()
    rows = node.commit()
    assert rows == {"p": SavedProducer(70, 2, "i2", own_id=True)}
    for later in (node, Node({0: rows, 1: {}})):  # type: ignore[dict-item]
        assert "a program that was started later has used" in later.admission.refusal(old)


def test_an_unknown_life_goes_on_unless_an_older_one_went_on_meanwhile() -> None:
    row = {"p": SavedProducer(10, 1, "i1", own_id=True)}
    node = Node({0: row, 1: {}})
    new = node.hello((0, 10), incarnation="i2", own_id=True, new=True)
    new = replace(new, positions=tuple(replace(at, life=2) for at in new.positions))
    assert node.admission.refusal(new) == ""
    node.greet((0, 10), (1, 0), own_id=True, new=True)
    node.take(10, 5).done()
    node.commit()
    assert "a program that was started later has used" in node.admission.refusal(new)


def test_so_many_producers_are_known_and_another_one_is_refused() -> None:
    node = Node({0: {"p": kept(5), "q": kept(5)}, 1: {"p": kept(5), "q": kept(5)}}, most=2)
    with pytest.raises(LimitReached, match="each of its tasks knows 2 producers"):
        node.admission.refusal(node.hello(peer="r"))
    assert node.admission.refusal(node.hello(peer="q")) == ""


def test_a_batch_is_known_by_its_events_for_a_day_after_which_others_may_have_its_id() -> None:
    node = Node()
    node.greet(peer="=a", own_id=True)
    node.take(0, 3, peer="=a").done()
    assert node.commit() == {"=a": kept(3)}
    other = node.hello(peer="=a", incarnation="i2", own_id=True)
    refused = node.admission.greet(other, "another", 1.0)
    assert refused is not None
    assert "has other events" in refused.error
    assert refused.headers == {wire.WHY: wire.OTHER_BATCH}
    again = Node({0: {"=a": kept(3)}, 1: {}})  # the next owner, which has been asked for it
    assert "has other events" in again.admission.refusal(other)
    assert again.greet(peer="=a", own_id=True) == [(3, 3), (0, 0)]
    again.admission.gone(NODE, 0.0)
    again.admission.tick(1000.0, 100.0)
    again.admission.tick(wire.BATCH_SECONDS - 10, 100.0)
    assert again.commit() == {}
    again.admission.tick(wire.BATCH_SECONDS + 10, 100.0)
    assert again.commit() == {"=a": None}
    assert again.admission.refusal(other) == ""


def test_so_many_batches_are_known_beside_the_producers_and_another_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "MAX_BATCHES", 2)
    rows = {"=a": kept(5), "=b": kept(5), "p": kept(5)}
    node = Node({0: rows, 1: rows}, most=2)
    with pytest.raises(LimitReached, match="each of its tasks knows 2 producers"):
        node.admission.refusal(node.hello(peer="=c"))
    assert node.admission.refusal(node.hello(peer="=b")) == ""
    assert node.admission.refusal(node.hello(peer="q")) == ""


def test_a_producer_that_comes_back_before_it_is_forgotten_is_known() -> None:
    node = Node({0: {"p": SavedProducer(5)}, 1: {}})
    node.admission.tick(200.0, 100.0)
    taken = node.roster.snapshot(0)
    assert taken.forgotten == {"p"}
    assert node.greet() == [(5, 5), (0, 0)]
    node.roster.commit_written(0, taken)
    assert node.commit() == {"p": kept(5)}


def test_a_task_s_later_owner_shuts_out_the_earlier_one_for_ever() -> None:
    node = Node()
    assert "has no fence" in node.admission.refusal(node.hello(peer="~t"))
    node.greet(peer="~t", fence=4)
    node.take(0, 3, peer="~t").done()
    for later in (node, Node({0: node.commit(), 1: {}})):  # type: ignore[dict-item]
        refusal = later.admission.refusal(later.hello(peer="~t", fence=3))
        assert "(fence 4) sends now" in refusal
        assert later.admission.refusal(later.hello(peer="~t", fence=5)) == ""


@pytest.mark.parametrize("on_demand", [False, True])
def test_a_producer_that_does_not_ask_for_its_verdicts_can_wait_a_second_for_a_commit(
    on_demand: bool,
) -> None:
    node = Node(on_demand=on_demand)
    node.greet()
    frame = node.take(0, 3)
    assert node.roster.patience(0) == math.inf
    frame.done()
    assert node.roster.patience(0) == (math.inf if on_demand else 1.0)
    assert node.effects.commits == ({} if on_demand else {0: 1.0})
    node.commit()
    assert node.roster.patience(0) == math.inf


@pytest.mark.parametrize("asks_first", [False, True])
def test_a_producer_that_asks_for_its_verdicts_waits_once_all_of_its_events_are_processed(
    asks_first: bool,
) -> None:
    node = Node()
    node.greet()
    frames = [node.take(0, 3), node.take(3, 3)]
    if asks_first:
        node.admission.ask("p", NODE)
    frames[0].done()
    assert node.effects.commits == {0: 1.0}
    frames[1].done()
    if not asks_first:
        node.admission.ask("p", NODE)
    assert node.effects.commits == {0: 0.0}
    assert node.roster.patience(0) == 0.0
    node.commit()
    assert node.roster.patience(0) == math.inf


def test_on_demand_a_producer_that_wants_its_verdict_makes_a_commit() -> None:
    node = Node(on_demand=True)
    node.greet()
    frame = node.take(0, 3)
    node.admission.ask("p", NODE)
    assert node.effects.commits.get(0) != AT_ONCE
    frame.done()
    assert node.effects.commits == {0: AT_ONCE}
    node.commit()
    node.take(3, 3).done()
    node.admission.ask("p", NODE)
    assert node.effects.commits == {0: AT_ONCE}


def test_parts_of_a_frame_count_one_by_one_in_whatever_order() -> None:
    node = Node()
    node.greet()
    frame = node.take(0, 6)
    frame.parts = 2
    even, odd = PartReceipt(frame, [0, 2, 4]), PartReceipt(frame, [1, 3, 5])
    even.complete(0, 3)
    assert node.commit() == {"p": kept(1)}
    odd.complete(1, 4)
    assert node.commit() == {"p": kept(4)}
    odd.done()
    assert node.commit() == {}
    even.done()
    assert node.commit() == {"p": kept(6)}


def test_programs_get_no_more_credit_while_much_waits_of_what_others_are_to_process() -> None:
    full: set[tuple[str, int]] = set()
    node = Node(full=full)
    for peer in ("p", "~t"):
        node.greet(peer=peer, fence=1)
        node.take(0, 400, peer=peer).done()
    node.commit()
    full.add(("ticks", 0))
    assert node.ruling().limit == 512  # what it got before anything came
    assert node.ruling("~t").limit == 900  # tasks wait for each other
    node.admission.released()
    assert not node.admission.lanes["p", 0].pressing
    full.clear()
    node.admission.released()
    assert node.admission.lanes["p", 0].pressing
    node.take(400, 600).done()
    assert node.ruling().limit == 1500


def test_no_producer_waits_for_a_partition_that_has_been_given_up() -> None:
    full: set[tuple[str, int]] = set()
    node = Node(full=full)
    node.greet()
    node.take(0, 400).done()
    node.commit()
    full.add(("ticks", 0))
    assert node.ruling().limit == 512
    node.admission.revoke(0)
    full.clear()
    node.effects.answers.clear()
    node.admission.released()
    assert node.effects.answers == {}


# -- set-up ---------------------------------------------------------------------------------------


State = dict[tuple[str, int], list[int]]


class DurableWorld(World):
    """A node that commits and dies: what it has processed is what it had committed, and more."""

    def __init__(self, window: int, **more: Any) -> None:
        super().__init__(**more)
        self.window = window
        self.rows: dict[int, dict[str, SavedProducer]] = {}
        self.saved: State = {}
        self.committing: dict[int, tuple[TakenLanes, State]] = {}
        self.at_hand: dict[int, EventBatch] = {}
        self.history: dict[str, list[Tick]] = {name: [] for name in self.names}
        self.reborn: set[str] = set()
        self.waiting: list[tuple[Frame, Any]] = []
        self.settings = [stage.settings for stage in self.admission.stages.values()]
        self.begin()

    def begin(self) -> None:
        frames = self.admission.stages[0].deserializer.settings
        self.effects = Effects()
        self.roster = CommitRows(Commits(len(self.settings), window_events=self.window))
        self.admission = StreamAdmission(
            "ticks",
            stages_of(len(self.settings), self.settings[0], frames),
            self.effects,
            roster=self.roster,
        )
        for partition, rows in self.rows.items():
            self.roster.restore(partition, rows, self.time)
        self.processed = {place: list(serials) for place, serials in self.saved.items()}
        self.committing.clear()
        self.at_hand.clear()

    def crash(self, *, written: bool) -> None:
        """The node dies; what it was about to write may have been written all the same."""
        for partition in list(self.committing) if written else ():
            self.write(partition)
        for name in self.names:
            if self.wires[name] is not None:
                self.wires[name] = None
                self.routes[name].disconnected()
        self.old_wires.clear()
        self.waiting.clear()
        self.begin()

    def put(self, name: str, count: int, what: str) -> None:
        incoming = self.outboxes[name]._incoming
        before = len(incoming)
        super().put(name, count, what)
        self.history[name] += incoming[before:]

    def bear(self, name: str) -> None:
        """The producer dies, and a new process sends everything again."""
        self.disconnect(name, 0)
        old = self.outboxes[name]
        self.outboxes[name] = Outbox(
            "ticks",
            name,
            types=[Tick],
            max_frame_events=old.builder.max_events,
            max_frame_bytes=200,
        )
        self.routes[name] = route_of(
            self.outboxes[name], f"i{len(self.history[name])}", own_id=True, again=True
        )
        self.outboxes[name].extend(self.history[name])
        self.reborn.add(name)

    def node_takes(self, frame: Frame, wire_: Any) -> None:
        header = frame.header
        if isinstance(header, wire.Hello) and wire_ is self.wires[header.peer]:
            assert self.admission.refusal(header) == ""  # else of an earlier life, maybe
            assert not self.roster.unknown(header)
            if self.roster.unsettled(header, self.time):
                self.waiting.append((frame, wire_))
                return
        super().node_takes(frame, wire_)

    def process(self, partition: int, parts: int) -> None:
        """Process some events of the batch at hand."""
        stage = self.admission.stages[partition]
        batch = self.at_hand.pop(partition, None)
        if batch is None:
            batch = stage.poll()
            if batch is None:
                return
            stage.load()
        receipt = batch.receipt
        assert isinstance(receipt, BatchReceipt)
        name = receipt.progress.producer
        before, batch.at = batch.at, min(batch.size, batch.at + parts)
        for index in range(before, batch.at):
            tick = batch.events[index]
            self.processed.setdefault((name, partition), []).append(tick.serial)
            if tick.user.startswith("bad"):
                receipt.refuse(batch.number(index), "bad")
                self.refused[name].add(tick.serial)
        if batch.at < batch.size:
            stage.release(batch.at - before)
            receipt.complete(batch.number(before), batch.number(batch.at - 1) + 1)
            self.at_hand[partition] = batch
            return
        stage.release(batch.at - before, batch.bytes)
        receipt.done()
        self.time += 1
        self.admission.tick(self.time, 1 << 30)
        self.admission.released()

    def commit(self, partition: int) -> None:
        """Take state and numbers of a task, to be written."""
        if partition not in self.committing:
            taken = self.roster.snapshot(partition)
            state = {at: list(s) for at, s in self.processed.items() if at[1] == partition}
            self.committing[partition] = taken, state
            self.effects.commits.pop(partition, None)

    def write(self, partition: int) -> TakenLanes | None:
        if partition not in self.committing:
            return None
        taken, state = self.committing.pop(partition)
        rows = self.rows.setdefault(partition, {})
        for producer in taken.forgotten:
            rows.pop(producer, None)
        rows.update({saved.lane.producer: row for saved, row in taken.lanes.items()})
        self.saved.update(state)
        return taken

    def written(self, partition: int) -> None:
        taken = self.write(partition)
        if taken is not None:
            self.roster.commit_written(partition, taken)
            waiting, self.waiting = self.waiting, []
            for frame, wire_ in waiting:
                if wire_ in self.wires.values():
                    self.node_takes(frame, wire_)

    def finish(self, index: int) -> None:
        partition = index % len(self.settings)
        self.written(partition)
        self.commit(partition)

    def check(self) -> None:
        self.admission.validate()
        for name, outbox in self.outboxes.items():
            outbox.validate()
            counts = outbox.refusals.counts
            assert outbox.admitted >= 0
            assert counts["refused"] <= len(self.refused[name])
        for stage in self.admission.stages.values():
            stage.validate()
        for serials in self.processed.values():  # once, and in order
            assert all(one < other for one, other in pairwise(serials))
        for lane in self.admission.lanes.values():
            assert isinstance(lane.settlement, Saved)
            assert lane.limit <= lane.settled + lane.settlement.window

    def settle(self) -> None:
        for name in self.names:
            self.connect(name)
        for wire_ in list(self.old_wires):
            self.node_notices(wire_)
        for _ in range(20 + 8 * self.serial):
            for name, each in self.wires.items():
                assert each is not None
                self.send(name, 1 << 20)
                if self.admission.left and self.outboxes[name].unsettled:
                    self.ask(name)
                while each.up:
                    self.node_reads(each)
                while self.owes(each):
                    self.node_tells(each, busy=False)
                while each.down:
                    self.hear(name)
            for partition in self.admission.stages:
                self.process(partition, 1 << 20)
                if (
                    self.effects.commits.get(partition) == AT_ONCE
                ):  # a full window asks, before any time is over
                    self.finish(partition)
            self.check()
            if all(lane.safe == lane.expected for lane in self.admission.lanes.values()):
                for partition in self.admission.stages:
                    self.finish(partition)
            if not any(outbox.unsettled for outbox in self.outboxes.values()):
                break
        assert self.processed == self.saved
        assert not any(outbox.unsettled for outbox in self.outboxes.values())
        for stage in self.admission.stages.values():
            for gauge in (stage, stage.deserializer):
                assert (gauge.depth, gauge.bytes) == (0, 0)
        handled = sorted(serial for serials in self.processed.values() for serial in serials)
        assert handled == [n for n in range(self.serial) if n not in self.unsendable]
        for name, outbox in self.outboxes.items():
            if name not in self.reborn:
                assert outbox.refusals.counts["refused"] == len(self.refused[name])


def happens(world: DurableWorld, random: Random) -> None:
    """One step of what may happen, chosen at random."""
    if random.random() < 0.01:
        world.crash(written=random.random() < 0.5)
    elif random.random() < 0.01:
        world.bear(random.choice(world.names))
    else:
        happen(world, random, True)
