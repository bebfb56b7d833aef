"""Clusters in memory by seed: ``python -m simulate --seeds 2000`` runs them, and says what fails.

Each seed makes a cluster of its own: how many hosts it has, how often it commits, what is sent and
what fails. In the end all that was acknowledged has to be there once and in order by key, at the
first hop and after it; also after all hosts have come back with empty folders.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from random import Random
from typing import NamedTuple

from judge import too_many, wrong_events, wrong_store

from s4node import App, Event, ProcessingElement, Stream, hopping
from s4node.process import log_setup
from s4node.state import database, remote_log, remote_task
from s4node.testing import ClusterTest, Fault, check_seeds

USERS = [f"user-{n}" for n in range(6)]
_SEEDS_OF_A_PROCESS = 25


class Click(Event):
    """An event of a user, ``at`` a time in seconds."""

    user: str
    number: int
    at: float = 0.0


class Seen(Event):
    group: str
    user: str
    number: int


class Count(ProcessingElement):
    """Keeps the numbers of its events, and sends each on to another task."""

    seen: Stream
    numbers: list[int] = []  # noqa: RUF012

    def on_event(self, click: Click) -> None:
        self.numbers.append(click.number)
        self.seen.put(Seen(click.user[-1:], click.user, click.number))


class InWindow(ProcessingElement):
    """Counts the events of a window."""

    results: Stream
    clicks: int = 0

    def on_event(self, _: Click) -> None:
        self.clicks += 1

    def merge(self, other: InWindow) -> None:
        self.clicks += other.clicks

    def on_window(self) -> None:
        self.results.put(Result(str(self.key)[-1:], self.window.start - START, self.clicks))


class Result(Event):
    group: str
    start: float
    clicks: int


class Group(ProcessingElement):
    """Keeps what other tasks have sent on: the numbers of events, and the results of windows."""

    numbers: list[int] = []  # noqa: RUF012
    results: list[tuple[float, int]] = []  # noqa: RUF012

    def on_event(self, seen: Seen) -> None:
        self.numbers.append(seen.number)

    def on_event_of_window(self, result: Result) -> None:
        self.results.append((result.start, result.clicks))


class Failing(Count):
    """Fails at some events, which are skipped: its task goes back to its last commit."""

    def on_event(self, click: Click) -> None:
        super().on_event(click)
        if fails(click):
            raise ValueError(click)


def fails(click: Click) -> bool:
    return click.number % 4 == 3 and click.user in USERS[:3]


WINDOW, EVERY = 4, 2
LATENESS = 2.0

START = 300.0
"""The time of the first events."""


def counting(pe: type[Count] = Count) -> App:
    """clicks -> Count of each user -> seen -> Group of each last digit, which any host may have."""
    app = App("counting")
    group, count = app.create_pe(Group), app.create_pe(pe)
    count.seen = app.create_stream("seen", group, key="group")
    app.create_input_stream("clicks", count, key="user")
    return app


def failing() -> App:
    return counting(Failing)


def windowed() -> App:
    """As counting, and clicks -> InWindow of each user -> results -> Group."""
    app = App("counting")
    group, count, window = app.create_pe(Group), app.create_pe(Count), app.create_pe(InWindow)
    count.seen = app.create_stream("seen", group, key="group")
    window.results = app.create_stream("results", group, key="group")
    window.set_window(hopping(WINDOW, every=EVERY))
    app.create_input_stream("clicks", count, window, key="user", time="at", lateness=LATENESS)
    return app


def durable(commit_ms: int = 200) -> dict[str, str]:
    return {"s4.stream.clicks.grade": "durable", "task.commit.ms": str(commit_ms)}


class Size(NamedTuple):
    """The numbers of hosts, faults and rounds of events, of which a seed chooses."""

    hosts: Sequence[int]
    partitions: int
    faults: Sequence[int]
    rounds: range
    seconds: float


SMALL = Size((1, 2, 2, 2, 3), 4, (1, 2, 2, 3), range(5, 21), 4.0)
LARGE = Size((4, 5), 12, (4, 6, 8), range(20, 41), 10.0)


def scenario(seed: int, size: Size = SMALL) -> ClusterTest:
    """A cluster with faults; returns it as it was in the end."""
    chance = Random(f"scenario {seed}")
    with small_bounds() if chance.random() < 0.5 else nullcontext():
        return _run(seed, chance, size)


@contextmanager
def small_bounds() -> Iterator[None]:
    """Have few commits and rows reach what many do on a node."""
    known = [
        (module, name, getattr(module, name), value)
        for module, name, value in (
            (remote_task, "_MOST_COMMITS", 10),
            (remote_log, "_EVERY", 4),
            (database, "PIECE_ROWS", 8),
        )
    ]
    for module, name, _, value in known:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, before, _ in known:
            setattr(module, name, before)


def _run(seed: int, chance: Random, size: Size) -> ClusterTest:
    app = chance.choice([counting, windowed, windowed, failing])
    with ClusterTest(
        app,
        hosts=chance.choice(size.hosts),
        partitions=size.partitions,
        seed=seed,
        settings=durable(chance.choice([50, 200, 1000]))
        | {
            "s4.stream.clicks.onError": "skip",
            "s4.producer.expiry": "1000",
            "s4.state.checkpointInterval": chance.choice(["500", "60000"]),
            "s4.state.standby": chance.choice(["0", "0", "1"]),
        },
    ) as test:
        test.faults(chance.choice(size.faults), seconds=size.seconds)
        rounds = chance.choice(size.rounds)
        sent = [
            Click(user, number, START + number - (chance.uniform(0, LATENESS) if early else 0.0))
            for number in range(rounds)
            for user in USERS
            for early in [number < rounds - 1 and chance.random() < 0.5]
        ]
        for number in range(rounds):
            test.send("clicks", *sent[number * len(USERS) : (number + 1) * len(USERS)])
            test.advance(size.seconds / rounds)
        test.settle()
        if app is windowed:
            judge_windows(test, sent)
        left_out = [click for click in sent if app is failing and fails(click)]
        judge(test, rounds, left_out)
        if chance.random() < 0.3:
            hosts = list(test.errors)
            test.plan(*(Fault("lose host", host, test.now + 0.1, 1) for host in hosts))
            test.settle()
            judge(test, rounds, left_out)
    return test


def judge(test: ClusterTest, rounds: int, left_out: Sequence[Click] = ()) -> None:
    """Raise AssertionError unless each event counts once and in order by user, at both hops, and
    nothing is left that nobody needs."""
    pe, hosts = Failing if left_out else Count, test._hosts
    came = {(pe.__name__, user): test.state(pe, user).numbers for user in USERS}
    came |= {("Group", user): test.state(Group, user[-1:]).numbers for user in USERS}
    failed = {(click.user, click.number) for click in left_out}
    truth = {
        (hop, user): [n for n in range(rounds) if (user, n) not in failed] for hop, user in came
    }
    found = wrong_events(came, truth, truth)
    found += wrong_store(hosts.world.store.objects)
    found += too_many([each.folder for each in hosts.each.values()], hosts.world.store.objects)
    refused = sum(each.count for each in test.refused)
    if refused != len(left_out):
        found.append(f"{refused} events are refused, and not {len(left_out)}: {test.refused[:3]}")
    sessions = [each for each in hosts.coordination.sessions.values() if not each.run.killed]
    containers = [each for each in hosts.processes.values() if each.container is not None]
    if len(sessions) > 2 * len(containers):  # one of each is for savepoints
        found.append(f"sessions: {[each.name for each in sessions]}")
    assert not found, found


def judge_windows(test: ClusterTest, sent: Sequence[Click]) -> None:
    """Raise AssertionError unless each window that is over has one result, in order."""
    times = {user: [click.at - START for click in sent if click.user == user] for user in USERS}
    ends = max(click.at for click in sent) - START - LATENESS
    wanted = {
        user: [
            (start, count)
            for start in range(-WINDOW, int(ends) - WINDOW + 1, EVERY)
            if (count := sum(start <= at < start + WINDOW for at in times[user]))
        ]
        for user in USERS
    }
    for _ in range(30):  # seconds until all tasks know the time
        found = {user: test.state(Group, user[-1:]).results for user in USERS}
        if all(len(found[user]) >= len(wanted[user]) for user in USERS):
            break
        test.advance(1)
    assert found == wanted


def failure_of(size: Size, seed: int) -> tuple[int, str]:
    """What fails with a seed, with the fewest faults; nothing if it passes."""
    run = partial(scenario, size=size)
    try:
        run(seed)
    except Exception:
        pass
    else:
        return seed, ""
    try:
        check_seeds(run, [seed])
    except Exception as error:
        return seed, "".join(traceback.format_exception(error, limit=-3))
    return seed, "it failed once, and then did not"


def failures(seeds: range, jobs: int, size: Size) -> Iterator[tuple[int, str]]:
    with multiprocessing.Pool(jobs, maxtasksperchild=_SEEDS_OF_A_PROCESS) as pool:
        yield from pool.imap(partial(failure_of, size), seeds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulate", description="Run clusters by seed.")
    parser.add_argument("--seeds", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    parser.add_argument("--large", action="store_true", help="more hosts, partitions and faults")
    parser.add_argument("--until-failure", action="store_true", help="end with the first one")
    asked = parser.parse_args()
    log_setup.configure("error")
    seeds = range(asked.first, asked.first + asked.seeds)
    began, found, done = time.monotonic(), 0, 0
    for seed, failure in failures(seeds, asked.jobs, LARGE if asked.large else SMALL):
        done += 1
        if failure:
            found += 1
            again = f"make simulate SEEDS=1 FIRST={seed}{' ARGS=--large' if asked.large else ''}"
            print(f"seed {seed}:\n{failure}\nto repeat it: {again}", flush=True)
            if asked.until_failure:
                break
        if done % 100 == 0:
            print(f"{done} seeds, {found} failed, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{done} seeds from {asked.first} on, {found} failed, {time.monotonic() - began:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
