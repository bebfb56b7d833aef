"""The commands of a cluster in memory, while faults happen."""

from __future__ import annotations

from contextlib import suppress

import pytest
from simulate import USERS, Click, Count, counting, durable, judge

from s4node.errors import CheckpointError, SessionLost
from s4node.testing import ClusterTest, Fault, check_seeds, spend


def send(test: ClusterTest, numbers: range) -> None:
    for number in numbers:
        test.send("clicks", *(Click(user, number) for user in USERS))
        test.advance(0.4)


@pytest.mark.parametrize("after", [0.1, 1.1])
def test_a_host_that_starts_stops_for_another_number_of_partitions(after: float) -> None:
    with ClusterTest(counting, settings=DURABLE) as test:
        send(test, range(2))
        for host in ("host1", "host2"):
            test.plan(Fault("kill host", host, at=test.now, seconds=0.9))
        test.advance(after)
        test.repartition(3)
        test.settle()
        judge(test, 2)


@pytest.mark.parametrize("partitions", [3, 7])
def test_each_event_counts_once_over_another_number_of_partitions(partitions: int) -> None:
    with ClusterTest(counting, settings=DURABLE) as test:
        send(test, range(3))
        test.faults(1, seconds=1)
        test.repartition(partitions)
        send(test, range(3, 6))
        test.settle()
        judge(test, 6)


def test_an_app_that_goes_back_to_a_savepoint_has_its_state_and_counts_on_from_there() -> None:
    with ClusterTest(counting, settings=DURABLE) as test:
        send(test, range(3))
        test.take_savepoint("one")
        send(test, range(3, 6))
        test.go_back("one")
        test.settle()
        judge(test, 3)
        send(test, range(3, 5))
        test.settle()
        judge(test, 5)


def test_each_event_counts_once_whatever_fails_while_a_savepoint_is_taken() -> None:
    def saved(seed: int) -> None:
        with ClusterTest(counting, seed=seed, settings=DURABLE) as test:
            send(test, range(3))
            test.faults(2, seconds=1)
            with suppress(CheckpointError):  # tasks were taken over three times
                test.take_savepoint("one")
            send(test, range(3, 6))
            test.settle()
            judge(test, 6)

    check_seeds(saved, range(3))


def test_a_savepoint_waits_until_a_container_runs() -> None:
    with ClusterTest(counting, settings=DURABLE) as test:
        send(test, range(2))
        for host in ("host1", "host2"):
            test.plan(Fault("kill process", host, at=test.now, seconds=3))
        test.advance(0.1)
        test.take_savepoint("one")
        test.settle()
        judge(test, 2)


def test_a_drained_host_has_no_partitions_until_the_end_of_the_drain() -> None:
    def partitions_of(host: str) -> int:
        container = test._hosts.processes[host].container
        assert container is not None
        return len(container.tasks)

    with ClusterTest(counting, settings=DURABLE) as test:
        send(test, range(2))
        test.plan(Fault("drain", "host1", at=test.now, seconds=3))
        send(test, range(2, 4))
        assert (partitions_of("host1"), partitions_of("host2")) == (0, 4)
        test.settle()
        test.advance(5)
        assert (partitions_of("host1"), partitions_of("host2")) == (2, 2)
        judge(test, 4)


def test_a_handler_that_takes_long_delays_what_follows_it_and_loses_its_session() -> None:
    class Slow(Count):
        def on_event(self, click: Click) -> None:
            super().on_event(click)
            spend(seconds)

    def seconds_for(count: int) -> float:
        with ClusterTest(lambda: counting(Slow), hosts=1, settings=DURABLE) as test:
            began = test.now
            test.send("clicks", *(Click("joe", number) for number in range(count)))
            test.settle()
            assert test.state(Slow, "joe").numbers == list(range(count))
            lost.append(any(isinstance(error, SessionLost) for error in test.errors["host1"]))
            return test.now - began

    lost: list[bool] = []
    seconds = 0.1
    assert seconds_for(10) > 1
    seconds = 3
    assert seconds_for(1) > 3
    assert lost == [False, True]


# -- set-up ---------------------------------------------------------------------------------------

DURABLE = durable()
