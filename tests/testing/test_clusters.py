"""A cluster in one process, with faults by seed, as app authors test theirs."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.lowlevel
from harness import environment
from simulate import (
    START,
    USERS,
    Click,
    Count,
    Group,
    Seen,
    counting,
    durable,
    judge,
    scenario,
    windowed,
)

from s4node import App
from s4node.errors import S4Error, SessionLost, TaskFenced
from s4node.testing import AppTest, ClusterTest, Fault, check_seeds
from s4node.testing.faults import KINDS, Kind


@pytest.mark.parametrize("kind", KINDS)
def test_each_event_counts_once_through_a_fault_of_each_kind(kind: Kind) -> None:
    with ClusterTest(counting, settings=DURABLE) as test:
        test.plan(Fault(kind, "host1", at=test.now + 0.5, seconds=2.5, other="host2"))
        for number in range(8):
            test.send("clicks", *(Click(user, number) for user in USERS))
            test.advance(0.5)
        test.settle()
        judge(test, 8)


def test_the_same_seed_gives_the_same_trace_and_another_one_another() -> None:
    assert trace_of(7) == trace_of(7)
    assert trace_of(7) != trace_of(8)


def test_the_trace_of_a_seed_does_not_depend_on_the_order_of_sets() -> None:
    traces = {trace_elsewhere(hash_seed) for hash_seed in ("1", "2")}
    assert len(traces) == 1


def test_a_host_that_is_killed_is_replaced_after_its_session_and_a_process_at_once() -> None:
    def seconds_without_owners(fault: Fault) -> float:
        with ClusterTest(counting, settings=DURABLE) as test:
            test.plan(fault)
            test.advance(fault.at - test.now)
            began = test.now
            test.send("clicks", *CLICKS)
            while test.waiting:
                test.advance(0.05)
            return test.now - began

    assert seconds_without_owners(Fault("kill process", "host1", at=5, seconds=9)) < 1
    assert seconds_without_owners(Fault("kill host", "host1", at=5, seconds=9)) > 1


def test_a_host_that_is_paused_for_longer_than_its_session_loses_it() -> None:
    with ClusterTest(counting, settings=DURABLE) as test:
        test.plan(Fault("pause", "host1", at=test.now, seconds=1))
        test.settle()
        assert test.errors == {"host1": [], "host2": []}
        test.plan(Fault("pause", "host1", at=test.now, seconds=4))
        test.settle()
        assert test.errors["host1"] != []
        assert all(isinstance(e, SessionLost | TaskFenced) for e in test.errors["host1"])
        assert test.errors["host2"] == []


def test_a_host_that_comes_back_without_its_folder_gets_its_state_from_the_store() -> None:
    with ClusterTest(counting, hosts=1, settings=DURABLE) as test:
        test.send("clicks", *CLICKS)
        test.settle()
        test.plan(Fault("lose host", "host1", at=test.now, seconds=1))
        test.settle()
        assert test.state(Count, "user-0").numbers == [0]


def test_the_state_of_a_key_is_that_of_its_owner_and_not_of_a_former_one() -> None:
    with ClusterTest(counting, settings=DURABLE) as test:
        test.send("clicks", *CLICKS)
        test.settle()
        test.plan(Fault("lose coordination", "host1", at=test.now, seconds=6))
        test.plan(Fault("stop", "host1", at=test.now + 0.1, seconds=0))  # which has to wait
        test.advance(4)
        test.send("clicks", *(Click(user, 1) for user in USERS))
        test.advance(1)
        assert [test.state(Count, user).numbers for user in USERS] == [[0, 1]] * len(USERS)


def test_what_runs_in_a_killed_process_does_not_end() -> None:
    ended: list[bool] = []

    async def wait() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(True)

    class Waiting(App):
        def on_init(self) -> None:
            self.create_input_stream("clicks", self.create_pe(Group), types=Seen, key="user")

        def on_start(self) -> None:
            self.start_soon(wait)

    with ClusterTest(Waiting, settings=DURABLE) as test:
        test.plan(Fault("kill process", "host1", at=test.now, seconds=0))
        test.settle()
        assert ended == []


def test_a_failure_names_the_seed_and_the_fewest_faults_with_which_it_fails() -> None:
    def second_host_never_fails(seed: int) -> None:
        with ClusterTest(counting, seed=seed, settings=DURABLE) as test:
            test.faults(4, seconds=3)
            test.settle()
            assert test.errors["host2"] == []

    with pytest.raises(AssertionError) as failure:
        check_seeds(second_host_never_fails, range(12))
    *_, note, trace = failure.value.__notes__
    found = re.search(r"fails with (\d+) of (\d+) chosen faults", note)
    assert found is not None
    assert note.count("Fault(") == int(found[1]) < int(found[2])
    assert re.search(r"the last of \d+ messages:\n    \d+\.\d+ host\d ", trace)


def test_a_failure_shows_the_events_of_the_last_messages() -> None:
    def fails(seed: int) -> None:
        with ClusterTest(counting, seed=seed, settings=DURABLE) as test:
            test.send("clicks", *CLICKS)
            test.settle()
            test.send("clicks", *CLICKS)
            test.settle()
            raise AssertionError

    with pytest.raises(AssertionError) as failure:
        check_seeds(fails, [1])
    shown = failure.value.__notes__[-1]
    assert re.search(
        r"program to host\d: clicks\[\d\] \d: Click\(user='user-\d', number=0, at=", shown
    )
    assert re.search(
        r"host\d to host\d: seen\[\d\] \d: Seen\(group='\d', user='user-\d', nu", shown
    )
    assert re.search(r"host\d to program: done of clicks: \[\d\] below \d", shown)
    assert re.search(r"host\d commits Partition \d of counting: user-\d = \[0, \[0, 0\]\]", shown)


@pytest.mark.parametrize("chance", [random.random, time.time, time.perf_counter])
def test_an_app_that_is_not_deterministic_is_found_where_two_runs_differ(
    chance: Callable[[], float],
) -> None:
    class Different(Count):
        def on_event(self, click: Click) -> None:
            self.seen.put(Seen(click.user[-1:], f"{chance():032.9f}", 0))

    def sent(seed: int) -> None:
        with ClusterTest(lambda: counting(Different), seed=seed, settings=DURABLE) as test:
            test.send("clicks", *CLICKS)
            test.settle()

    with pytest.raises(S4Error, match="seed 3: two runs differ at message") as failure:
        check_seeds(sent, [3])
    one, other = str(failure.value).splitlines()[1:]
    assert re.search(r"host\d (to host\d: seen\[\d\]|commits Partition \d of counting:) ", one)
    assert one != other


def test_an_app_whose_state_alone_is_not_deterministic_is_found_at_its_first_commit() -> None:
    class Different(Count):
        chance: float = 0.0

        def on_event(self, click: Click) -> None:
            self.chance = random.random()

    def sent(seed: int) -> None:
        with ClusterTest(lambda: counting(Different), seed=seed, settings=DURABLE) as test:
            test.send("clicks", Click("joe", 0))
            test.settle()

    with pytest.raises(S4Error, match="seed 3: two runs differ at message") as failure:
        check_seeds(sent, [3])
    one, other = str(failure.value).splitlines()[1:]
    assert re.fullmatch(r"    \d+\.\d+ host\d commits Partition \d of counting: joe = .*", one)
    assert one != other


def test_what_a_cluster_holds_on_to_does_not_grow_with_what_it_has_done() -> None:
    def used(rounds: int) -> None:
        for number in range(rounds):
            test.plan(Fault("kill process", "host1", at=test.now, seconds=0))
            test.send("clicks", *(Click(user, number) for user in USERS))
            test.settle()

    with ClusterTest(counting, settings=DURABLE) as test:
        used(6)
        before = test.usage
        used(6)
        after = test.usage
        assert after.sessions == before.sessions
        assert after.producers == before.producers
        assert after.open_files <= before.open_files + 4
        assert after.files <= before.files + 8
        assert after.connections <= before.connections
        assert after.tasks <= before.tasks
        assert after.waiting == before.waiting == 0


def test_a_fault_that_cannot_be_is_refused_when_it_is_planned() -> None:
    kind: Any = "explode"
    with ClusterTest(counting) as test:
        for fault, said in (
            (Fault("pause", "host9", at=1, seconds=1), "no host 'host9'; the hosts are host1, "),
            (Fault("hold", "host1", at=1, seconds=1, other="host9"), "no host 'host9'"),
            (Fault(kind, "host1", at=1, seconds=1), "no kind 'explode'; the kinds are stop, kill"),
            (Fault("hold", "host1", at=1, seconds=1), "give the other host"),
            (Fault("kill host", "host1", at=1, seconds=1, point="nope"), "a point 'nope'"),
            (Fault("pause", "host1", at=1, seconds=1, point="commit.write"), "no kill at a point"),
            (Fault("slow", "host1", at=1, seconds=-2), "it lasts -2 s"),
        ):
            with pytest.raises(S4Error, match=said):
                test.plan(fault)


def test_a_cluster_has_an_app_a_host_and_a_container() -> None:
    for wrong in ({"hosts": 0}, {"containers": -1}, {"app": []}):
        given: dict[str, Any] = {"app": counting, **wrong}
        with pytest.raises(S4Error, match="at least one app, one host and one container"):
            ClusterTest(**given)


def test_a_run_that_fails_for_what_an_earlier_one_has_left_is_told() -> None:
    left: list[int] = []

    def grows(seed: int) -> None:
        left.append(seed)
        assert len(left) < 2

    with pytest.raises(S4Error, match="seed 4: one of two equal runs fails, so something is left"):
        check_seeds(grows, [4, 5])


def test_a_cluster_that_does_not_become_healthy_says_what_is_missing_and_which_handler_waits() -> (
    None
):
    class Stuck(Count):
        async def on_event(self, click: Click) -> None:
            await trio.sleep_forever()

    with ClusterTest(lambda: counting(Stuck), settings=DURABLE) as test:
        test.send("clicks", Click("joe", 0))
        with pytest.raises(S4Error) as failure:
            test.settle()
    missing, first, heading, *tasks = str(failure.value).splitlines()
    assert "1 events to 'clicks' are not committed" in missing
    assert re.fullmatch(
        r"  Stuck\.on_event\(Click\(user='joe', number=0, at=0\.0\)\) of 'joe' waits at "
        r"test_clusters\.py:\d+ in on_event: await trio\.sleep_forever\(\) \(host\d\)",
        first,
    )
    assert heading == "all tasks:"
    assert len(set(tasks)) == len(tasks) < 40


@pytest.mark.parametrize("kit", ["ClusterTest", "AppTest"])
def test_a_handler_that_goes_round_without_waiting_ends_the_test_and_is_named(kit: str) -> None:
    class Busy(Count):
        async def on_event(self, click: Click) -> None:
            while True:
                await trio.lowlevel.checkpoint()

    with pytest.raises(S4Error, match=r"rest at 0\.\d+ s\n  Busy\.on_event\(.* goes round at"):
        send_one(kit, Busy)


async def goes_round() -> None:
    while True:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        await trio.lowlevel.checkpoint()


async def computes() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    while True:
        pass


@pytest.mark.parametrize("kit", ["ClusterTest", "AppTest"])
@pytest.mark.parametrize("handle", [goes_round, computes])
def test_ctrl_c_ends_a_test_whatever_a_handler_does(
    kit: str, handle: Callable[[], Awaitable[None]]
) -> None:
    class Busy(Count):
        async def on_event(self, click: Click) -> None:
            await handle()

    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            send_one(kit, Busy)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_task_with_due_windows_that_is_handed_over_does_not_keep_its_loop_busy() -> None:
    with ClusterTest(windowed, hosts=3, seed=1, settings=durable(1000)) as test:
        test.plan(Fault("kill process", "host2", at=1.403868946481182, seconds=0))
        test.plan(Fault("cut apart", "host2", at=3.7218689464811816, seconds=0.788, other="host1"))
        for number in range(16):
            test.send("clicks", *(Click(user, number, START + number) for user in USERS))
            test.advance(0.25)
        test.settle()


# -- set-up ---------------------------------------------------------------------------------------

CLICKS = [Click(user, 0) for user in USERS]
DURABLE = durable()


def send_one(kit: str, pe: type[Count]) -> None:
    """Send one event to a PE in one of the kits."""
    cluster, app = ClusterTest(lambda: counting(pe)), AppTest(counting(pe))
    with cluster if kit == "ClusterTest" else app as test:
        test.send("clicks", Click("joe", 0))
        test.advance(1)


def trace_of(seed: int) -> str:
    return repr(scenario(seed).trace)


def trace_elsewhere(hash_seed: str) -> str:
    """The trace of a seed in another process, whose sets have another order."""
    code = "from simulate import scenario; print(scenario(7).trace)"
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment(PYTHONHASHSEED=hash_seed, PYTHONPATH=os.pathsep.join(sys.path)),
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
