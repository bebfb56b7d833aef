"""A cluster in memory: nodes on hosts of their own, cut off and put back, by a seed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_in_memory import cluster, in_memory

from s4node import App, Event, ProcessingElement, Stream
from s4node.errors import S4Error


@pytest.mark.long
def test_a_cluster_counts_exactly_through_a_cut_and_a_failover(folder: Path) -> None:
    """In turns of a bare loop, which take 3 to 6 ms each, as machines are not equally fast."""

    def turn() -> None:
        sum(n * n for n in range(100_000))

    def run() -> None:
        assert len(scenario(folder / str(len(scenarios)), 1)) > 100

    scenario(folder / "warm", 0)
    scenarios: list[float] = []
    turns = []
    for _ in range(3):
        scenarios.append(seconds_of(run))
        turns += [seconds_of(turn) for _ in range(5)]
    assert min(scenarios) < 170 * min(turns)


def test_the_same_seed_gives_the_same_trace_and_another_one_another(folder: Path) -> None:
    first, second = scenario(folder / "one", 7), scenario(folder / "two", 7)
    assert first == second
    assert first != scenario(folder / "three", 8)


def seconds_of(run: Callable[[], None]) -> float:
    """The processor's seconds that ``run`` takes."""
    began = time.process_time()
    run()
    return time.process_time() - began


# -- set-up ---------------------------------------------------------------------------------------


USERS = [f"user-{n}" for n in range(12)]


class Click(Event):
    user: str


class Seen(Event):
    letter: str


class Count(ProcessingElement):
    seen: Stream
    n: int = 0

    def on_event(self, click: Click) -> None:
        self.n += 1
        self.seen.put(Seen(click.user[-1]))


class Letters(ProcessingElement):
    n: int = 0

    def on_event(self, seen: Seen) -> None:
        self.n += 1


def counting() -> App:
    """clicks -> Count of each user -> seen -> Letters of each last letter, on any node."""
    app = App("counting")
    count = app.create_pe(Count)
    count.seen = app.create_stream("seen", app.create_pe(Letters), key="letter")
    app.create_input_stream("clicks", count, key="user")
    return app


def scenario(folder: Path, seed: int) -> list[tuple[float, str, str, int]]:
    """Three nodes; one is cut off and fails, the others take over, and it comes back."""
    folder.mkdir()
    with cluster(folder, seed, counting) as nodes:
        nodes.start("n0", "n1", "n2")
        assert sum(len(c.tasks) for c in nodes.containers.values()) == 6
        nodes.connect()
        clicks = [Click(user) for user in USERS]
        nodes.send(clicks * 5)
        nodes.until(nodes.settled)

        nodes.cut("n2")
        nodes.send(clicks * 5)
        nodes.until(lambda: "n2" in nodes.ended)
        assert all(isinstance(one, S4Error) for one in nodes.ended["n2"])
        nodes.until(nodes.settled)
        nodes.until(lambda: sorted(len(c.tasks) for c in nodes.containers.values()) == [3, 3])
        assert nodes.counts("Count") == dict.fromkeys(USERS, 10)

        nodes.heal("n2")
        nodes.start("n2", expected=3)
        nodes.until(lambda: [len(c.tasks) for c in nodes.containers.values()] == [2, 2, 2])
        nodes.send(clicks * 5)
        nodes.until(nodes.settled)
        nodes.until(lambda: sum(nodes.counts("Letters").values()) == 15 * len(USERS))
        assert nodes.counts("Count") == dict.fromkeys(USERS, 15)
        assert nodes.refused == []
        nodes.stop()
        return nodes.world.network.trace


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with in_memory(tmp_path) as made:
        yield made
