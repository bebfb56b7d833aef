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
from collections.abc import Iterator
from random import Random

from s4node import App, Event, ProcessingElement, Stream, tumbling
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


WINDOW = 3

START = 300.0
"""The time of the first events."""


def counting(pe: type[Count] = Count) -> App:
    """clicks -> Count of each user -> seen -> Group of each last digit, which any host may have."""
    app = App("counting")
    group, count = app.create_pe(Group), app.create_pe(pe)
    count.seen = app.create_stream("seen", group, key="group")
    app.create_input_stream("clicks", count, key="user")
    return app


def windowed() -> App:
    """As counting, and clicks -> InWindow of each user -> results -> Group."""
    app = App("counting")
    group, count, window = app.create_pe(Group), app.create_pe(Count), app.create_pe(InWindow)
    count.seen = app.create_stream("seen", group, key="group")
    window.results = app.create_stream("results", group, key="group")
    window.set_window(tumbling(WINDOW))
    app.create_input_stream("clicks", count, window, key="user", time="at")
    return app


def durable(commit_ms: int = 200) -> dict[str, str]:
    return {"s4.stream.clicks.grade": "durable", "task.commit.ms": str(commit_ms)}


def scenario(seed: int) -> ClusterTest:
    """A small cluster, with one to three faults; returns it as it was in the end."""
    chance = Random(f"scenario {seed}")
    app = chance.choice([counting, windowed])
    with ClusterTest(
        app,
        hosts=chance.choice([2, 2, 3]),
        seed=seed,
        settings=durable(chance.choice([200, 1000])),
    ) as test:
        test.faults(chance.choice([1, 2, 2, 3]), seconds=4)
        rounds = chance.randint(5, 20)
        for number in range(rounds):
            test.send("clicks", *(Click(user, number, START + number) for user in USERS))
            test.advance(4 / rounds)
        test.settle()
        if app is windowed:
            judge_windows(test, rounds)
        judge(test, rounds)
        if chance.random() < 0.25:
            hosts = list(test.errors)
            test.plan(*(Fault("lose host", host, test.now + 0.1, 1) for host in hosts))
            test.settle()
            judge(test, rounds)
    return test


def judge(test: ClusterTest, rounds: int) -> None:
    """Raise AssertionError unless each event counts once and in order by user, at both hops."""
    assert test.refused == []
    for user in USERS:
        assert test.state(Count, user).numbers == list(range(rounds)), user
        assert test.state(Group, user[-1:]).numbers == list(range(rounds)), user


def judge_windows(test: ClusterTest, rounds: int) -> None:
    """Raise AssertionError unless each window that is over has one result, in order."""
    whole = [(start, WINDOW) for start in range(0, rounds - WINDOW, WINDOW)]
    for _ in range(30):  # seconds until all tasks know the time
        found = {user: test.state(Group, user[-1:]).results for user in USERS}
        if all(len(each) >= len(whole) for each in found.values()):
            break
        test.advance(1)
    assert found == dict.fromkeys(USERS, whole)


def failure_of(seed: int) -> tuple[int, str]:
    """What fails with a seed, with the fewest faults; nothing if it passes."""
    try:
        scenario(seed)
    except Exception:
        try:
            check_seeds(scenario, [seed])
        except Exception as error:
            return seed, "".join(traceback.format_exception(error, limit=-3))
        return seed, "it failed once, and then did not"
    return seed, ""


def failures(seeds: range, jobs: int) -> Iterator[tuple[int, str]]:
    with multiprocessing.Pool(jobs, maxtasksperchild=_SEEDS_OF_A_PROCESS) as pool:
        yield from pool.imap_unordered(failure_of, seeds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulate", description="Run clusters by seed.")
    parser.add_argument("--seeds", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    asked = parser.parse_args()
    began, found, done = time.monotonic(), 0, 0
    for seed, failure in failures(range(asked.first, asked.first + asked.seeds), asked.jobs):
        done += 1
        if failure:
            found += 1
            print(f"seed {seed}:\n{failure}", flush=True)
        if done % 100 == 0:
            print(f"{done} seeds, {found} failed, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{done} seeds from {asked.first} on, {found} failed, {time.monotonic() - began:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
