"""The promises of fast inputs that are held for a savepoint: what arrived before is processed."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import trio
from harness import until
from shared_apps import Click

from s4node.app.app import App
from s4node.app.stream import InputStream
from s4node.cluster.coordination.state_coordination import FOLDER, StateCoordination
from s4node.config.config import Config
from s4node.events.event import EventBatch
from s4node.events.keys import Partitioner
from s4node.events.schema import EventType
from s4node.net.ingress.admission import StreamAdmission
from s4node.net.ingress.commit_rows import CommitRows
from s4node.net.ingress.connection import Waker
from s4node.net.ingress.flow import Flow
from s4node.net.ingress.producer_lane import Effects
from s4node.net.ingress.roster import Roster
from s4node.net.ingress.settlement import Commits
from s4node.net.wire import frame as wire
from s4node.offsets.cuts import Cuts
from s4node.runtime.commit.retries import Retries
from s4node.runtime.commit.savepoint_requests import SavepointRequests
from s4node.runtime.inputs.fast_inputs import FastInputs
from s4node.runtime.inputs.port import InputPort
from s4node.stages.stage import Stage
from s4node.state.job import identity_of


def test_frames_that_come_while_an_input_is_held_are_left_to_their_producers() -> None:
    it = Inputs()
    it.send("program", 0)
    it.fast.hold(10.0)
    it.send("program", 1)
    assert it.users() == ["program-0"]
    assert it.fast.let_go(11.0)
    it.port.admission.released()
    (lane,) = it.effects.answers
    assert (lane.flow, lane.expected) == (Flow.GAP, 1)  # it is asked to go back to number 1
    it.send("program", 1)
    assert it.users() == ["program-0", "program-1"]


def test_events_that_other_members_forward_are_taken_while_an_input_is_held() -> None:
    it = Inputs()
    it.port.members.add("member")
    it.fast.hold(10.0)
    it.send("member", 0)
    assert it.users() == ["member-0"]


def test_an_input_is_drained_when_what_came_is_processed_and_what_went_to_members_is_too() -> None:
    it = Inputs()
    it.send("program", 0)
    it.carried = 2
    it.fast.hold(10.0)
    assert it.fast.undrained == {"visits": 3}
    it.stage.went(1, it.stage.bytes)
    assert it.fast.undrained == {"visits": 2}
    it.carried = 0
    assert it.fast.undrained == {}


def test_an_input_that_is_not_held_is_not_drained() -> None:
    it = Inputs()
    assert it.fast.undrained == {"visits": 0}
    it.fast.hold(10.0)
    assert it.fast.undrained == {}
    it.fast.let_go(11.0)
    assert it.fast.undrained == {"visits": 0}


def test_the_pause_counts_from_the_first_hold_to_the_release() -> None:
    it = Inputs()
    it.fast.hold(10.0)
    it.fast.hold(11.0)
    assert it.fast.held_seconds(12.5) == 2.5
    assert it.fast.let_go(13.0)
    assert not it.fast.let_go(14.0)
    assert it.fast.held_seconds(15.0) == 3.0
    it.fast.hold(20.0)
    assert it.fast.held_seconds(21.0) == 1.0


async def test_held_inputs_go_on_while_the_coordination_cannot_be_written(tmp_path: Path) -> None:
    it = Inputs()
    it.send("program", 0)
    async with asked_for_savepoint(it, tmp_path) as (cuts, tree):
        await until(lambda: it.held)
        fails = "BEFORE UPDATE ON entry BEGIN SELECT RAISE(FAIL, 'the disk fails'); END"
        tree.execute(f"CREATE TRIGGER failing {fails}")
        it.stage.went(1, it.stage.bytes)  # so it has to tell that nothing waits any more
        it.looks.clear()
        await until(lambda: len(it.looks) > 3, "it is tried again")
        assert it.looks[1:] == [False] * len(it.looks[1:])
        assert not cuts.is_due(0)
        it.send("program", 1)
        tree.execute("DROP TRIGGER failing")
        await until(lambda: it.held)
        it.stage.went(1, it.stage.bytes)
        await until(lambda: cuts.is_due(0))


async def test_held_inputs_go_on_if_the_session_ends_and_are_held_again_in_the_next(
    tmp_path: Path,
) -> None:
    it = Inputs()
    it.send("program", 0)
    async with asked_for_savepoint(it, tmp_path) as (cuts, tree):
        await until(lambda: it.held)
        tree.execute("DELETE FROM session WHERE name = 'container'")
        await until(lambda: it.waker.nudged)
        await until(lambda: it.held)
        it.stage.went(1, it.stage.bytes)
        await until(lambda: cuts.is_due(0))


def test_durable_inputs_are_not_held() -> None:
    assert not Inputs(durable=True).fast


# -- set-up ---------------------------------------------------------------------------------------


class Inputs:
    """A fast input of one partition, and what comes out of it."""

    def __init__(self, *, durable: bool = False) -> None:
        stream = App("shop").create_input_stream("visits", key="user", types=Click)
        assert isinstance(stream, InputStream)
        self.stage = Stage(1000)
        self.effects = Effects()
        self.carried = 0
        self.waker = Waker()
        self.looks: list[bool] = []  # whether it was held when it was looked how much waits
        self._batches: list[EventBatch] = []
        stages = {0: self.stage}
        roster = CommitRows(Commits()) if durable else Roster()
        admission = StreamAdmission("visits", stages, self.effects, roster=roster)
        gauge = self.stage.deserializer
        self.port = InputPort(stream, stages, admission, gauge, Partitioner(1), "crc32m", {}, {})
        self.fast = FastInputs([self.port], self)

    @property
    def held(self) -> bool:
        return self.port.admission.taken_from is not None

    def send(self, connection: Hashable, number: int) -> None:
        if (connection, 0) not in self.port.admission.lanes:
            hello = wire.Hello(str(connection), "i1", "visits", ())
            self.port.on_hello(hello, connection, "node", "n1", 0.0)
        kind = EventType(Click)
        body = kind.encode([Click(f"{connection}-{number}")])
        section = wire.Section(kind.fingerprint, 1, len(body))
        data = wire.Data("visits", 0, str(connection), number, 1, (section,))
        assert self.port.on_data(data, memoryview(body), connection, 0.0) == ""
        for batch in self.effects.batches:
            batch.load()
            self._batches.append(batch)
            self.stage.offer(batch)
        self.effects.batches.clear()

    def users(self) -> list[str]:
        return [event.user for batch in self._batches for event in batch.events]

    def unsettled(self, _: str) -> int:
        """As for the other members."""
        self.looks.append(self.held)
        return self.carried


@asynccontextmanager
async def asked_for_savepoint(
    it: Inputs, folder: Path
) -> AsyncIterator[tuple[Cuts, sqlite3.Connection]]:
    """Ask a container with one task and these inputs for a savepoint; gives its cuts, and the
    database of the coordination."""
    config, cuts = Config.from_values({}), Cuts()
    cuts.restore(0, 0)
    retries = Retries(1.0, trio.Event())
    requests = SavepointRequests(
        folder, None, config, {0: "Partition 0"}, retries, cuts, it.fast, it.waker
    )
    async with (
        StateCoordination(folder, config).registry("command") as registry,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(requests.run)
        await registry.job.request_savepoint(identity_of(folder, None), 1)
        with closing(sqlite3.connect(folder / FOLDER / "tree.sqlite")) as tree:
            tree.isolation_level = None
            yield cuts, tree
        nursery.cancel_scope.cancel()
