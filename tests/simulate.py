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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from random import Random
from typing import Any, NamedTuple

from judge import by_key, too_many, too_much_memory, wrong_events, wrong_store

from s4node import App, Event, OutputStream, ProcessingElement, Stream, hopping
from s4node.errors import CheckpointError
from s4node.process import log_setup
from s4node.state import database, remote_log, remote_task
from s4node.testing import ClusterTest, Fault, check_seeds

USERS = [f"user-{n}" for n in range(6)]
GUESTS = ["guest-6", "guest-7"]
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


class Relay(Count):
    seen: OutputStream  # type: ignore[assignment]


def fails(click: Click) -> bool:
    return click.number % 4 == 3 and click.user in USERS[:3]


SAVEPOINT = "one"
DEEDS = ("", "", "savepoint", "savepoint", "repartition")
MEANWHILE, ROUND_SECONDS = 20, 0.015
"""Rounds that are sent while a savepoint is taken."""

WINDOW, EVERY = 4, 2
LATENESS = 2.0

START = 300.0
"""The time of the first events."""


def counting(pe: type[Count] = Count, system: str = "live") -> App:
    """clicks -> Count of each user -> seen -> Group of each last digit, which any host may have."""
    app = App("counting")
    group, count = app.create_pe(Group), app.create_pe(pe)
    count.seen = app.create_stream("seen", group, key="group")
    app.create_input_stream("clicks", count, key="user", types=Click, system=system)
    return app


def failing() -> App:
    return counting(Failing)


def logged() -> App:
    """As counting, and its input is from the log."""
    return counting(system="log")


def relaying() -> App:
    """As counting, and Group is in another app."""
    app = App("relaying")
    count = app.create_pe(Relay)
    count.seen = app.create_output_stream("seen", key="group", types=Seen)
    app.create_input_stream("clicks", count, key="user")
    return app


def grouping() -> App:
    app = App("grouping")
    app.create_input_stream("seen", app.create_pe(Group), types=Seen, key="group")
    return app


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
    hosts_of_two: Sequence[int]  # apps
    partitions: int
    faults: Sequence[int]
    rounds: range
    seconds: float


SMALL = Size((1, 2, 2, 2, 3), (1, 2), 4, (1, 2, 2, 3), range(5, 21), 4.0)
LARGE = Size((4, 5), (3,), 12, (4, 6, 8), range(20, 41), 10.0)


def scenario(seed: int, size: Size = SMALL) -> ClusterTest:
    chance = Random(f"scenario {seed}")
    with small_bounds() if chance.random() < 0.5 else nullcontext():
        return _run(seed, chance, size)


@contextmanager
def small_bounds() -> Iterator[None]:
    """Have few commits and rows reach what many do on a node."""
    known = [
        (module, name, getattr(module, name), value)
        for module, name, value in (
            (remote_task, "MOST_COMMITS", 10),
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
    kind = chance.choice(["counting", "windowed", "windowed", "failing", "logged", "relayed"])
    common = {
        "task.commit.ms": str(chance.choice([50, 200, 1000])),
        "s4.producer.expiry": "1000",
        "s4.state.checkpointInterval": chance.choice(["500", "60000"]),
        "s4.state.standby": chance.choice(["0", "0", "1"]),
    }
    skip = {"s4.stream.clicks.onError": "skip"}
    clicks, seen = ({f"s4.stream.{name}.grade": "durable"} for name in ("clicks", "seen"))
    apps, settings = {
        "counting": ([counting], [common | clicks]),
        "windowed": ([windowed], [common | clicks]),
        "failing": ([failing], [common | clicks | skip]),
        "logged": ([logged], [common]),
        "relayed": ([relaying, grouping], [common | clicks, common | seen]),
    }[kind]
    hosts = chance.choice(size.hosts if len(apps) == 1 else size.hosts_of_two)
    with ClusterTest(
        apps,
        hosts=hosts,
        containers=2 if hosts == 2 and len(apps) == 1 and chance.random() < 0.2 else 1,
        partitions=size.partitions,
        log=kind == "logged",
        seed=seed,
        settings=settings,
    ) as test:
        deed = chance.choice(DEEDS) if kind in ("counting", "failing") else ""
        rounds = chance.choice(size.rounds) + (MEANWHILE if deed == "savepoint" else 0)
        sent = {"program": _rounds(USERS, rounds, chance)}
        if chance.random() < 0.3:
            test.add_program("guest")
            sent["guest"] = _rounds(GUESTS, rounds, chance, behind=LATENESS + 1)
            test.send("clicks", *sent["guest"][0], program="guest")
            test.settle()  # or its next events may be late, where nobody knows of it yet
            if chance.random() < 0.5:
                at = test.now + chance.uniform(0, size.seconds)
                test.plan(Fault("kill host", "guest", at, chance.choice([0, 1, 4])))
        test.faults(chance.choice(size.faults), seconds=size.seconds)
        if kind == "logged":
            test.faults(chance.choice([0, 1, 2]), seconds=size.seconds, hosts=["log"])
        when, saved = chance.randrange(max(size.rounds) // 2), False
        for number in range(rounds):
            for name in sent:
                if name == "program" or number:
                    test.send("clicks", *sent[name][number], program=name)
            if number == when and deed == "savepoint":
                saved = _take_savepoint(test, sent, number + 1)
                break
            if number == when and deed == "repartition":
                with suppress(CheckpointError):  # events are between tasks: the job stays as it is
                    test.repartition(3)
            test.advance(size.seconds / rounds)
        test.settle()
        clicks = [click for each in sent.values() for some in each for click in some]
        if kind == "windowed":
            judge_windows(test, clicks)
        pe = {"failing": Failing, "relayed": Relay}.get(kind, Count)
        left_out = [click for click in clicks if kind == "failing" and fails(click)]
        judge_all(test, pe, clicks, left_out)
        ending = chance.choice(["", "", "lose all", "kill in turn" if hosts < 3 else ""])
        if ending == "lose all":
            test.plan(*(Fault("lose host", host, test.now + 0.1, 1) for host in test.errors))
            test.settle()
            judge_all(test, pe, clicks, left_out)
        elif ending:
            for number, host in enumerate(test.errors, rounds):  # each has former folders of others
                clicks += (more := [Click(user, number, START + number) for user in USERS])
                left_out += [click for click in more if kind == "failing" and fails(click)]
                test.send("clicks", *more)
                test.plan(Fault("kill host", host, test.now + 0.1, 3))
                test.settle()
            judge_all(test, pe, clicks, left_out)
        if saved:
            test.go_back(SAVEPOINT)
            test.settle()
            judge_savepoint(test, pe, clicks, left_out)
    return test


def _rounds(
    users: Sequence[str], rounds: int, chance: Random, behind: float = 0.0
) -> list[list[Click]]:
    """The clicks of each round: some are early, and all may be behind those of another program."""
    return [
        [
            Click(user, number, START + max(0.0, number - behind - early))
            for user in users
            for early in [chance.choice([0.0, chance.uniform(0, LATENESS)])]
        ]
        for number in range(rounds)
    ]


def _take_savepoint(test: ClusterTest, sent: Mapping[str, list[list[Click]]], first: int) -> bool:
    """Take a savepoint while the rounds from the ``first`` on are sent; False if that fails."""
    runs = test._hosts.world.runs
    for name, rounds in sent.items():
        for number, clicks in enumerate(rounds[first:], 1):
            send = partial(test._programs[name].send, "clicks", clicks, runs)
            runs.after(test.now + number * ROUND_SECONDS, None, send)
    taken = True
    try:
        test.take_savepoint(SAVEPOINT)
    except CheckpointError:  # its tasks were taken over, or could not commit
        taken = False
    test.advance(len(sent["program"]) * ROUND_SECONDS)
    return taken


def judge(test: ClusterTest, rounds: int, pe: type[Count] = Count) -> None:
    """Judge after so many rounds of clicks of each user."""
    judge_all(test, pe, [Click(user, number) for number in range(rounds) for user in USERS])


def judge_all(
    test: ClusterTest, pe: type[Count], sent: Sequence[Click], left_out: Sequence[Click] = ()
) -> None:
    """Raise AssertionError unless each event counts once and in order by user, at both hops, and
    nothing is left that nobody needs."""
    hosts, users = test._hosts, sorted({click.user for click in sent})
    came = {(pe.__name__, user): _numbers(test, pe, user) for user in users}
    came |= {("Group", user): _numbers(test, Group, user[-1:]) for user in users}
    counted = by_key((click.user, click.number) for click in sent if click not in left_out)
    truth = {(hop, user): counted[user] for hop, user in came}
    found = wrong_events(came, truth, truth)
    found += wrong_store(hosts.world.store.objects)
    found += too_many([each.folder for each in hosts.each.values()], hosts.world.store.objects)
    refused = sum(each.count for each in test.refused)
    if refused != len(left_out):
        found.append(f"{refused} events are refused, and not {len(left_out)}: {test.refused[:3]}")
    opened = hosts.coordination.sessions.values()
    sessions = [each for each in opened if not (each.run.killed or each.run.ended)]
    containers = [each for each in hosts.processes.values() if each.container is not None]
    if len(sessions) > 2 * len(containers):  # one of each is for savepoints
        found.append(f"sessions: {[each.name for each in sessions]}")
    found += too_much_memory(test.usage, len(hosts.processes))
    assert not found, found


def judge_savepoint(
    test: ClusterTest, pe: type[Count], sent: Sequence[Click], left_out: Sequence[Click]
) -> None:
    """Raise AssertionError unless both hops have the same first events of each user."""
    counted = by_key((click.user, click.number) for click in sent if click not in left_out)
    for user, numbers in counted.items():
        first, second = (_numbers(test, hop, key) for hop, key in ((pe, user), (Group, user[-1:])))
        assert first == second == numbers[: len(first)], (user, first, second)


def _numbers(test: ClusterTest, pe: type[Any], key: str) -> list[int]:
    try:
        return list(test.state(pe, key).numbers)
    except LookupError:
        return []


def judge_windows(test: ClusterTest, sent: Sequence[Click]) -> None:
    """Raise AssertionError unless each window that is over has one result, in order."""
    users = sorted({click.user for click in sent})
    times = {user: [click.at - START for click in sent if click.user == user] for user in users}
    programs = ([user for user in users if (user in GUESTS) == guest] for guest in (False, True))
    newest = [max(at for user in some for at in times[user]) for some in programs if some]
    over, known = min(newest) - LATENESS, max(newest) - LATENESS
    wanted = {
        user: [
            (start, count)
            for start in range(-WINDOW, int(known) - WINDOW + 1, EVERY)
            if (count := sum(start <= at < start + WINDOW for at in times[user]))
        ]
        for user in users
    }
    least = {user: sum(start + WINDOW <= over for start, _ in wanted[user]) for user in users}
    for _ in range(20):  # seconds until all tasks know the time
        found = {user: test.state(Group, user[-1:]).results for user in users}
        if all(len(found[user]) >= least[user] for user in users):
            break
        test.advance(1)
    for user in users:  # more are over once the slower program is no longer waited for
        assert len(found[user]) >= least[user], (user, found[user], wanted[user])
        assert found[user] == wanted[user][: len(found[user])], (user, found[user], wanted[user])


def failure_of(size: Size, seed: int) -> tuple[int, str]:
    """The failure of a seed, with the fewest faults; nothing if it passes."""
    run = partial(scenario, size=size)
    try:
        run(seed)
    except Exception as error:
        first = "".join(traceback.format_exception(error, limit=-3))
    else:
        return seed, ""
    try:
        check_seeds(run, [seed])
    except Exception as error:
        return seed, "".join(traceback.format_exception(error, limit=-3))
    return seed, f"it failed once, and then did not:\n{first}"


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
