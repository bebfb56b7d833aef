"""The producers of a stream as sources of its watermark in one partition."""

from __future__ import annotations

from s4node.net.ingress.admission import MAX_WATCHED, StreamAdmission
from s4node.net.ingress.producer_lane import Effects
from s4node.net.wire import frame as wire
from s4node.runtime.inputs.lane_sources import LaneSources
from s4node.stages.stage import Stage


def test_only_those_that_have_come_or_gone_are_looked_at_again() -> None:
    admission = admission_of(2)
    for number in range(1000):
        greet(admission, f"p{number}", number)
    here, there = LaneSources(admission, 0), LaneSources(admission, 1)
    assert len(here.take_changes()) == len(there.take_changes()) == 1000

    greet(admission, "new", 1000)
    admission.gone(7, 1.0)

    assert sorted(here.take_changes()) == ["clicks[0]@new", "clicks[0]@p7"]
    assert here.take_changes() == set()
    assert sorted(there.take_changes()) == ["clicks[1]@new", "clicks[1]@p7"]
    assert [(each.name, each.here) for each in here.states(["clicks[0]@p7"])] == [
        ("clicks[0]@p7", False)
    ]


def test_a_partition_that_was_given_away_and_came_back_is_looked_at_as_a_whole() -> None:
    admission = admission_of(2)
    greet(admission, "a", 1)
    before = LaneSources(admission, 0)
    before.take_changes()

    admission.revoke(0)
    admission.enter(0)
    greet(admission, "a", 2)
    after = LaneSources(admission, 0)

    assert after.take_changes() == {"clicks[0]@a"}
    assert [each.here for each in after.states()] == [True]


def test_another_container_is_a_source_once_it_has_forwarded_an_event() -> None:
    admission = admission_of(1)
    greet(admission, "container", 1)
    sources = LaneSources(admission, 0, forwarding=[1])

    assert sources.take_changes()
    assert list(sources.states()) == []

    event = wire.Data("clicks", 0, "container", 0, 1, (wire.Section(1, 1, 1),))
    assert admission.admit(event, 1, 0.0) is not None

    assert [each.name for each in sources.states(sources.take_changes())] == ["clicks[0]@container"]
    assert sources.take_changes() == set()


def test_a_former_life_of_a_task_has_left_once_another_one_is_there() -> None:
    admission = admission_of(1)
    sources = LaneSources(admission, 0)
    greet(admission, f"{wire.TASK}cluster/app/one#1", 1)
    greet(admission, f"{wire.TASK}cluster/app/other#1", 1)
    sources.take_changes()
    admission.gone(1, 1.0)
    assert [each.left for each in sources.states()] == [False, False]
    greet(admission, f"{wire.TASK}cluster/app/one#2", 2)
    sources.take_changes()
    assert {each.name: (each.here, each.left) for each in sources.states()} == {
        f"clicks[0]@{wire.TASK}cluster/app/one#1": (False, True),
        f"clicks[0]@{wire.TASK}cluster/app/other#1": (False, False),
        f"clicks[0]@{wire.TASK}cluster/app/one#2": (True, False),
    }


def test_a_program_that_says_that_it_leaves_has_left_until_it_is_back() -> None:
    admission = admission_of(1)
    sources = LaneSources(admission, 0)
    greet(admission, "a", 1)
    report = wire.Watermark("clicks", "a", 0, ((0, 0),), {wire.IDLE: True})
    admission.take_time(report, 1)
    sources.take_changes()
    assert [(each.here, each.left) for each in sources.states()] == [(True, False)]
    admission.gone(1, 1.0)
    assert [(each.here, each.left) for each in sources.states()] == [(False, True)]
    greet(admission, "a", 2)
    admission.gone(2, 2.0)
    assert [(each.here, each.left) for each in sources.states()] == [(False, False)]


def test_names_of_producers_are_noted_for_those_that_look_and_up_to_a_limit() -> None:
    admission = admission_of(2)
    unread, sources = LaneSources(admission, 0), LaneSources(admission, 1)
    greet(admission, "stays", 1)
    assert sources.take_changes() == {"clicks[1]@stays"}
    admission.gone(1, 1.0)
    for number in range(2 * MAX_WATCHED):
        greet(admission, f"p{number}", 2)
        admission.forget(f"p{number}", 2)

    assert [*admission.watched] == [1]
    assert len(admission.watched[1]) == MAX_WATCHED
    greet(admission, "new", 3)
    assert {"clicks[1]@stays", "clicks[1]@new"} <= {*sources.take_changes()}
    assert [each.name for each in sources.states() if each.here] == ["clicks[1]@new"]
    assert unread.take_changes() == {"clicks[0]@stays", "clicks[0]@new"}


# -- set-up ---------------------------------------------------------------------------------------


def admission_of(partitions: int) -> StreamAdmission:
    stages = {each: Stage(10_000) for each in range(partitions)}
    return StreamAdmission("clicks", stages, Effects())


def greet(admission: StreamAdmission, producer: str, connection: int) -> None:
    headers = {wire.FENCE: 1} if producer.startswith(wire.TASK) else {}
    admission.hello(wire.Hello(producer, "1", "clicks", headers=headers), connection, 0.0)
