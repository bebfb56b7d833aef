"""The cuts of a savepoint over three nodes, taken amid events that run in a cycle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from s4node import App, Event, ProcessingElement, Stream
from s4node.events.keys import Partitioner, crc32m
from s4node.net.egress.outbox_rows import channels_of, sort_rows
from s4node.net.egress.settlements import ReceiversCommits
from s4node.net.ingress.admission import StreamAdmission
from s4node.net.wire import frame as wire
from s4node.runtime.inputs.port import InputPort
from s4node.state.database import Database
from s4node.state.job import task_of
from s4node.state.rows import OUTBOX
from s4node.state.task_state import TaskState
from s4node.testing import ClusterTest, Fault
from s4node.testing.runtime import shared_folder


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("way", ["in circles", "upwards"])
def test_the_cuts_of_a_savepoint_hold_what_was_under_way_between_them(way: str, seed: int) -> None:
    assert faults_of(seed, WAYS[way]) == []


def test_without_the_cut_in_acknowledgements_events_are_missing_from_a_savepoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ReceiversCommits, "take_cuts", lambda *_: None)
    found = [each for seed in range(4) for each in faults_of(seed, upwards)]
    assert {kind for kind, *_ in found} == {"missing"}


@pytest.mark.parametrize("seed", range(2))
def test_the_cuts_fit_each_other_where_connections_are_lost_between_them(seed: int) -> None:
    assert faults_of(seed, upwards, torn=True) == []


def test_without_the_cut_in_answers_to_hellos_events_are_missing_after_a_reconnect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_hello = InputPort.on_hello

    def without(port: InputPort, *arguments: Any) -> wire.Hello | None:
        answer = on_hello(port, *arguments)
        if answer is not None:
            answer.headers.pop(wire.SAVEPOINT, None)
        return answer

    monkeypatch.setattr(InputPort, "on_hello", without)
    found = [each for seed in range(4) for each in faults_of(seed, upwards, torn=True)]
    assert {kind for kind, *_ in found} == {"missing"}


def test_without_the_cut_in_frames_a_savepoint_counts_events_that_were_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StreamAdmission, "_is_of_later_cut", lambda *_: False)
    found = [each for seed in range(4) for each in faults_of(seed, in_circles)]
    assert "ahead" in {kind for kind, *_ in found}


# -- set-up ---------------------------------------------------------------------------------------

PARTITIONS = 6
HOSTS = ("host1", "host2", "host3")
SETTINGS = {"s4.stream.clicks.grade": "durable", "task.commit.ms": "200"}

USERS = [f"user-{n}" for n in range(24)]
LOWER = [user for user in USERS if Partitioner(PARTITIONS, crc32m).partition_of(user) < 3]
HIGHER = [user for user in USERS if user not in LOWER]


class Token(Event):
    user: str
    path: list[str]


class Pass(ProcessingElement):
    """Passes a token on along its path."""

    out: Stream
    n: int = 0

    def on_event(self, token: Token) -> None:
        self.n += 1
        if token.path:
            self.out.put(Token(token.path[0], token.path[1:]))


def passing_on() -> App:
    app = App("counting")
    pe = app.create_pe(Pass)
    pe.out = app.create_stream("hops", pe, key="user")
    app.create_input_stream("clicks", pe, key="user")
    return app


def faults_of(seed: int, tokens: Tokens, *, torn: bool = False) -> list[Misfit]:
    """The mismatches in three savepoints that are taken while tokens are passed on. Connections
    may be ``torn`` before all tasks are asked."""
    chance, faults = Random(seed), list[Misfit]()
    with ClusterTest(
        passing_on, hosts=3, partitions=PARTITIONS, seed=seed, settings=SETTINGS
    ) as test:
        for number in (1, 2, 3):
            test.send("clicks", *tokens(chance))
            test.advance(chance.uniform(0, 0.1))
            ask_for_cut(test, chance.randrange(3, PARTITIONS), number)
            test.send("clicks", *tokens(chance))
            test.advance(chance.uniform(0, 0.3))
            if torn:
                test.send("clicks", *tokens(chance))
                test.advance(chance.uniform(0.005, 0.1))
                # what has arrived is committed, and its sender not told
                test.plan(*(Fault("cut off", host, test.now, 0.4) for host in HOSTS))
                test.advance(0.4 + chance.uniform(0.2, 0.6))
            for partition in range(PARTITIONS):
                ask_for_cut(test, partition, number)
            test.advance(5)
            with TemporaryDirectory(dir=shared_folder()) as folder:
                cuts = cuts_of(test, number, Path(folder))
                assert len(cuts) == PARTITIONS
                faults += misfits(cuts)
        test.settle()
        assert not test.waiting
    return faults


def ask_for_cut(test: ClusterTest, partition: int, number: int) -> None:
    """Ask the task of a partition for its cut."""
    for process in test._members[0]:
        container = process.container
        assert container is not None
        if partition in container.tasks:
            replay = container.parts._replay
            assert replay.keeps
            world = test._hosts.world
            world.call(replay.cuts.request, partition, number, run=process.run)


def in_circles(chance: Random) -> list[Token]:
    """Tokens that pass all tasks in any order."""
    return [Token(user, chance.choices(USERS, k=chance.randrange(8))) for user in USERS * 5]


def upwards(chance: Random) -> list[Token]:
    """Tokens that go from the first three tasks to the others."""
    return [Token(user, [chance.choice(HIGHER)]) for user in LOWER * 10]


Tokens = Callable[[Random], list[Token]]
Misfit = tuple[str, str, str, str, int, int]
WAYS: dict[str, Tokens] = {"in circles": in_circles, "upwards": upwards}


def cuts_of(test: ClusterTest, number: int, folder: Path) -> list[Path]:
    """The folders of the cuts at the URL, copied into ``folder``."""
    for name, data in test._hosts.world.store.objects.items():
        _, found, path = name.partition(f"/savepoints/files/{number}/")
        if found:
            place = folder / path
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(data)
    return [*folder.iterdir()]


def misfits(cuts: list[Path]) -> list[Misfit]:
    """Where what a task has sent by its cut is not what another's cut counts, plus what the first
    still has."""
    sent, counted = {}, {}
    for place in cuts:
        database = Database(place)
        state = TaskState(database, crc32m)
        life = state.meta("life")
        for channel, rows in channels_of(state.rows(OUTBOX)).items():
            saved = sort_rows(channel, rows)
            for partition, end in saved.next_numbers.items():
                has = {n for kept in saved.frames[partition] for n in range(kept.first, kept.end)}
                producer = f"~default/counting/{task_of(place.name)}#{life}"
                sent[channel, producer, f"Partition {partition}"] = end, has
        for (stream, producer), row in state.producers().items():
            counted[stream, producer, task_of(place.name)] = row.number
        database.close()
    found = []
    for lane, (end, has) in sent.items():
        number = counted.get(lane, 0)
        if number > end:
            found.append(("ahead", *lane, number, end))
        elif not has >= set(range(number, end)):
            found.append(("missing", *lane, number, end))
    return found
