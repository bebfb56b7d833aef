"""Processes on the hosts of a cluster in memory: containers, programs, several apps, a log."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulate import USERS, Click, Count, Group, Seen, counting, durable, judge

from s4node import App, Event, OutputStream, ProcessingElement, Stream
from s4node.errors import SessionLost
from s4node.testing import ClusterTest, Fault, check_seeds
from s4node.testing.faults import Kind
from s4node.testing.memory_network import Message


@pytest.mark.parametrize("kind", ["pause", "lose coordination"])
def test_of_faults_of_one_kind_that_overlap_on_a_host_the_last_end_counts(kind: Kind) -> None:
    with ClusterTest(counting, settings=DURABLE) as test:
        test.plan(Fault(kind, "host1", at=test.now, seconds=4))
        test.plan(Fault(kind, "host1", at=test.now + 0.5, seconds=0.5))
        test.settle()
        assert any(isinstance(error, SessionLost) for error in test.errors["host1"])


def test_the_clock_of_a_host_is_ahead_by_all_faults_that_last() -> None:
    with ClusterTest(counting, settings=DURABLE) as test:
        host = test._hosts.each["host1"]
        test.plan(Fault("set clock", "host1", at=test.now, seconds=4))
        test.plan(Fault("set clock", "host1", at=test.now + 1, seconds=1))
        seen = []
        for _ in range(3):
            test.advance(1.5)
            seen.append(host.ahead)
        assert seen == [5, 4, 0]


def test_a_process_that_dies_leaves_the_others_of_its_host_and_a_host_that_dies_none() -> None:
    starts: list[App] = []

    def started_by(fault: Fault) -> int:
        starts.clear()
        with ClusterTest(Starting, containers=2, settings=DURABLE) as test:
            test.plan(fault)
            for number in range(4):
                test.send("clicks", *(Click(user, number) for user in USERS))
                test.advance(0.5)
            test.settle()
            judge(test, 4)
        return len(starts) - 4

    class Starting(App):
        def on_init(self) -> None:
            group, count = self.create_pe(Group), self.create_pe(Count)
            count.seen = self.create_stream("seen", group, key="group")
            self.create_input_stream("clicks", count, key="user")

        def on_start(self) -> None:
            starts.append(self)

    assert started_by(Fault("kill process", "host1-2", at=1, seconds=1)) == 1
    assert started_by(Fault("kill process", "host1", at=1, seconds=1)) == 2
    assert started_by(Fault("kill host", "host1", at=1, seconds=1)) == 2


def test_each_event_counts_once_on_hosts_with_two_containers_whatever_fails() -> None:
    def counted(seed: int) -> None:
        with ClusterTest(counting, containers=2, seed=seed, settings=DURABLE) as test:
            test.faults(2, seconds=3)
            for number in range(8):
                test.send("clicks", *(Click(user, number) for user in USERS))
                test.advance(0.4)
            test.settle()
            judge(test, 8)

    check_seeds(counted, range(3))


def test_a_program_with_an_id_that_dies_sends_all_again_and_each_event_counts_once() -> None:
    with ClusterTest(counting, settings=DURABLE) as test:
        for number in range(8):
            test.send("clicks", *(Click(user, number) for user in USERS))
            test.plan(Fault("kill process", "program", at=test.now + 0.1, seconds=0))
            test.advance(0.3)
        test.settle()
        judge(test, 8)


def test_events_of_a_program_without_an_id_that_dies_count_at_least_once_and_in_order() -> None:
    with ClusterTest(counting, settings=DURABLE) as test:
        test.add_program("guest", keeps_id=False)
        for number in range(8):
            test.send("clicks", *(Click(user, number) for user in USERS), program="guest")
            soon = test.now + 0.004 * (1 + number)
            test.plan(Fault("kill process", "guest", at=soon, seconds=0))
            test.advance(1.2)
        test.settle()
        found = [test.state(Count, user).numbers for user in USERS]
        assert all(sorted(set(numbers)) == list(range(8)) for numbers in found)
        assert all(numbers == sorted(numbers) for numbers in found)
        assert any(len(numbers) > 8 for numbers in found)


def test_an_unknown_input_or_program_is_refused_with_those_that_are_known() -> None:
    with ClusterTest(counting, settings=DURABLE) as test:
        with pytest.raises(LookupError, match="no app has an input 'hits'; known: clicks"):
            test.send("hits", Click("joe", 0))
        with pytest.raises(LookupError, match="no program 'guest'; known: program"):
            test.send("clicks", Click("joe", 0), program="guest")


@pytest.mark.parametrize("kind", ["pause", "cut off", "cut apart", "hold", "slow", "stop"])
def test_events_of_a_fast_stream_come_once_and_in_order_while_no_process_dies(kind: Kind) -> None:
    assert fast_events(kind) == {user: list(range(12)) for user in USERS}


@pytest.mark.parametrize("kind", ["kill process", "kill host"])
def test_events_of_a_fast_stream_stay_in_order_when_a_process_dies(kind: Kind) -> None:
    for numbers in fast_events(kind).values():
        first = list(dict.fromkeys(numbers))
        assert first == sorted(first)
        assert first[-4:] == [8, 9, 10, 11]


def test_an_app_reads_each_event_of_a_log_once_whatever_fails() -> None:
    check_seeds(read_from_log, range(3))


def test_two_runs_over_a_log_that_is_killed_are_equal() -> None:
    assert read_from_log(1) == read_from_log(1)


@pytest.mark.parametrize("point", ["log.append", "log.appended"])
def test_a_log_that_dies_as_it_writes_has_each_event_once(point: str) -> None:
    with ClusterTest(logged, log=True, settings=COMMITS) as test:
        test.plan(Fault("kill process", "log", at=test.now + 0.5, seconds=3, point=point))
        for number in range(4):
            test.send("clicks", *(Click(user, number) for user in USERS))
            test.advance(0.4)
        test.settle()
        judge(test, 4)


def test_what_an_app_puts_out_counts_once_and_in_order_in_another_app_whatever_fails() -> None:
    def relayed(seed: int) -> None:
        settings = [durable(), {"s4.stream.seen.grade": "durable", **COMMITS}]
        with ClusterTest([relaying, grouping], seed=seed, settings=settings) as test:
            test.faults(2, seconds=3)
            for number in range(8):
                test.send("clicks", *(Click(user, number) for user in USERS))
                test.advance(0.4)
            test.settle()
            assert test.refused == []
            for user in USERS:
                assert test.state(Group, user[-1:]).numbers == list(range(8))

    check_seeds(relayed, range(3))


@pytest.mark.parametrize("apps", [1, pytest.param(2, marks=pytest.mark.long)])
def test_events_in_a_full_cycle_of_one_app_or_two_count_once_whatever_fails(apps: int) -> None:
    makes = [cycle] if apps == 1 else [half("ones", "twos", One), half("twos", "ones", Two)]
    small = {"s4.stream.workQueueSize": "10", **COMMITS}
    settings = [small | {f"s4.stream.{name}.grade": "durable"} for name in ("ones", "twos")[:apps]]

    def turned(seed: int) -> None:
        with ClusterTest(makes, seed=seed, settings=settings) as test:
            test.faults(2, seconds=3)
            for number in range(4):
                test.send("ones", *(Turn(str(number + n), 10) for n in range(12)))
                test.advance(0.8)
            test.settle()
            assert test.refused == []
            spins = [Spin] if apps == 1 else [One, Two]
            counts = [turns_of(test, spin, place) for spin in spins for place in range(PLACES)]
            assert sum(counts) == 4 * 12 * 11

    check_seeds(turned, range(2))


# -- set-up ---------------------------------------------------------------------------------------


def logged() -> App:
    """As counting, and its input is from the log."""
    app = App("counting")
    group, count = app.create_pe(Group), app.create_pe(Count)
    count.seen = app.create_stream("seen", group, key="group")
    app.create_input_stream("clicks", count, types=Click, key="user", system="log")
    return app


class Relay(ProcessingElement):
    seen: OutputStream

    def on_event(self, click: Click) -> None:
        self.seen.put(Seen(click.user[-1:], click.user, click.number))


def relaying() -> App:
    app = App("relaying")
    relay = app.create_pe(Relay)
    relay.seen = app.create_output_stream("seen", types=Seen, key="group")
    app.create_input_stream("clicks", relay, key="user")
    return app


def grouping() -> App:
    app = App("grouping")
    app.create_input_stream("seen", app.create_pe(Group), types=Seen, key="group")
    return app


def fast_events(kind: Kind) -> dict[str, list[int]]:
    """The numbers of the events of each user, as handlers get them, with a fault under way."""
    found: dict[str, list[int]] = {user: [] for user in USERS}

    class Seeing(Count):
        def on_event(self, click: Click) -> None:
            found[click.user].append(click.number)
            super().on_event(click)

    with ClusterTest(lambda: counting(Seeing)) as test:
        for number in range(12):
            test.send("clicks", *(Click(user, number) for user in USERS))
            if number == 5:
                test.plan(Fault(kind, "host1", at=test.now + 0.002, seconds=1, other="host2"))
            test.advance(0.01)
        test.settle()
        assert test.refused == []
    return found


def read_from_log(seed: int) -> list[Message]:
    with ClusterTest(logged, log=True, seed=seed, settings=COMMITS) as test:
        test.faults(2, seconds=3)
        test.faults(2, seconds=3, hosts=["log"])
        for number in range(8):
            test.send("clicks", *(Click(user, number) for user in USERS))
            test.advance(0.4)
        test.settle()
        judge(test, 8)
        return test.trace


COMMITS = {"task.commit.ms": "200"}

DURABLE = durable()


PLACES = 16


class Turn(Event):
    place: str
    left: int


class Spin(ProcessingElement):
    """Puts its event on, half of them at another place."""

    turns: Stream | OutputStream
    count: int = 0

    def on_event(self, turn: Turn) -> None:
        self.count += 1
        if turn.left:
            place = (int(turn.place) + turn.left % 2) % PLACES
            self.turns.put(Turn(str(place), turn.left - 1))


class One(Spin): ...


class Two(Spin): ...


def cycle() -> App:
    app = App("cycle")
    spin = app.create_pe(Spin)
    spin.turns = app.create_stream("turns", spin, key="place")
    app.create_input_stream("ones", spin, key="place")
    return app


def half(stream: str, to: str, pe: type[Spin]) -> Callable[[], App]:
    def make() -> App:
        app = App(pe.__name__.lower())
        spin = app.create_pe(pe)
        spin.turns = app.create_output_stream(to, types=Turn, key="place")
        app.create_input_stream(stream, spin, key="place")
        return app

    return make


def turns_of(test: ClusterTest, pe: type[Spin], place: int) -> int:
    try:
        return int(test.state(pe, str(place)).count)
    except LookupError:
        return 0
