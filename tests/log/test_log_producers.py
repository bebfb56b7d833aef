"""The producers that a log knows: some are forgotten, some never, and the life of some is over."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import RawPeer, data_frame, environment, free_port, raw_peer, run_s4, until, until_told
from log_nodes import log_at, log_node, read_all
from shared_apps import Click
from test_hosted import hosted
from test_log_processes import node_at

from s4node import Client, clocks
from s4node.errors import LimitReached, StoreError
from s4node.events.schema import EventType
from s4node.log.host import LogHost
from s4node.log.writer import LogWriter
from s4node.net.wire import frame as wire
from s4node.offsets.startpoint import Oldest
from s4node.systems.embedded_log import EmbeddedLog


async def test_a_program_with_an_id_of_its_own_is_not_forgotten_because_of_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for clicks in (100, 150):
        async with log_node(tmp_path, settings=SOON) as node, log_at(node.address) as log:
            await log.create("clicks", 3)
            await send(node.address, clicks)
            told = "no earlier life of this producer" in capsys.readouterr().err
            assert told == (clicks == 100)
            await wait_forgotten(log)
            await send(node.address, clicks)
            assert await count(log) == clicks


async def test_an_unknown_program_that_sends_again_gets_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 2)
        await send(node.address, 10)
        capsys.readouterr()
        await send(node.address, 10)
        assert "no earlier life of this producer is known" not in capsys.readouterr().err
        await forget(log, "import")
        await send(node.address, 10)
        assert "no earlier life of this producer is known" in capsys.readouterr().err
        assert await count(log) == 20


async def test_a_program_without_an_id_of_its_own_is_known_while_it_is_connected(
    tmp_path: Path,
) -> None:
    step = [0.0]
    with clocks.replaced(clocks.steady, lambda: time.time() + step[0]):
        async with log_node(tmp_path, settings=SOON) as node, log_at(node.address) as log:
            await log.create("clicks")
            async with Client(node.address) as client:
                clicks = await client.stream("clicks")
                await clicks.send(Click("joe"))
                await clicks.flush()
                step[0] = 7200.0  # the clock of the machine is put forward
                await wait_forgotten(log)
                assert await known(log, "clicks") == 1
            await until_told(lambda: known(log, "clicks"), lambda count: not count)


@pytest.mark.long
async def test_a_step_of_the_clock_makes_the_log_forget_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = [0.0]
    looks: Counter[str] = Counter()
    for of, name in ((LogHost, "_tick"), (LogWriter, "_housekeeping")):
        monkeypatch.setattr(of, name, counting(looks, name, getattr(of, name)))
    with clocks.replaced(clocks.steady, lambda: time.time() + step[0]):
        async with log_node(tmp_path) as node, log_at(node.address) as log:
            await log.create("clicks")
            async with Client(node.address) as client:
                await (await client.stream("clicks")).send(Click("joe"))
                await client.flush()
                client.abandon()
            step[0] = 7200.0
            await log.append("clicks", 0, [Click("ann")])
            looks.clear()
            await until(lambda: min(looks["_tick"], looks["_housekeeping"]) >= 2)
            assert await known(log, "clicks") == 2


def counting(calls: Counter[str], name: str, function: Callable[..., None]) -> Callable[..., None]:
    def call(*arguments: Any, **more: Any) -> None:
        function(*arguments, **more)
        calls[name] += 1

    return call


async def told_task(peer: RawPeer, producer: str, fence: int = 1) -> str:
    await peer.send_frames(wire.Hello(producer, "i", "clicks", headers={"fence": fence}))
    answer = await peer.receive_until(lambda header: isinstance(header, wire.Hello))
    assert isinstance(answer, wire.Hello)
    return answer.error


async def test_a_task_is_forgotten_when_many_later_lives_of_it_are_known_and_not_because_of_time(
    tmp_path: Path,
) -> None:
    one, *others = (f"~here/job/Partition 0#{life:02}" for life in range(wire.MAX_LIVES + 1))
    frame = data_frame("clicks", one, 0, [Click("joe", 1)])
    types = (EventType(Click).declaration,)
    async with log_node(tmp_path, settings=SOON) as node, log_at(node.address) as log:
        await log.create("clicks")
        async with raw_peer(node.address) as peer:
            await peer.send_frames(
                wire.Hello(one, "i", "clicks", types, headers={"fence": 1}), frame
            )
            await peer.receive_until(lambda header: isinstance(header, wire.Verdict))
        await wait_forgotten(log)
        assert await known(log, "clicks") == 1
    async with log_node(tmp_path, settings=SOON) as node, log_at(node.address) as log:
        async with raw_peer(node.address) as peer:  # sent again long after
            await peer.send_frames(
                wire.Hello(one, "i", "clicks", types, headers={"fence": 2}), frame
            )
            await peer.receive_until(lambda header: isinstance(header, wire.Verdict))
        assert await count(log) == 1
        async with raw_peer(node.address) as peer:
            assert await told_task(peer, others[0]) == ""
            assert await told_task(peer, one, 3) == ""
            for life in others:
                assert await told_task(peer, life) == ""
                await peer.send_frames(data_frame("clicks", life, 0, [Click("joe", 2)]))
                await peer.receive_until(lambda header: isinstance(header, wire.Verdict))
                assert "has begun anew since" in await told_task(peer, one, 9)
        async with raw_peer(node.address) as peer:
            await until_told(lambda: known(log, "clicks"), lambda n: n <= wire.MAX_LIVES)
            assert "has begun anew since" in await told_task(peer, one, 9)


OLD = """
import os, sys, trio
from s4node import Client, Event
class Click(Event):
    user: str
    n: int = 0
async def main(address):
    async with Client(address, producer="mortal", timeout=60) as client:
        clicks = await client.stream("clicks")
        await clicks.send_many([Click("old", n) for n in range(10)])
        await clicks.flush()
        print("sent", flush=True)
        while not os.path.exists("go"):
            await trio.sleep(0.01)
        try:
            await clicks.send_many([Click("old", n) for n in range(10, 60)])
            print("flushed", await clicks.flush(), flush=True)
        except Exception as error:
            print(error, flush=True)
            client.abandon()
trio.run(main, sys.argv[1])
"""


@pytest.mark.parametrize("restarts", [True, False])
async def test_a_program_whose_id_another_has_used_meanwhile_gets_an_error(
    tmp_path: Path, restarts: bool
) -> None:
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"

    async def run_another() -> None:
        async with Client(address, producer="mortal", timeout=30) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many([Click("new", n) for n in range(60)])
            assert await clicks.flush() == []

    with trio.fail_after(90):
        async with node_at(tmp_path, port) as node:
            async with log_at(address) as log:
                await log.create("clicks")
            old = await trio.lowlevel.open_process(
                [sys.executable, "-c", OLD, address],
                stdout=subprocess.PIPE, env=environment(), cwd=tmp_path,
            )  # fmt: skip
            try:
                assert old.stdout is not None
                assert await old.stdout.receive_some() == b"sent\n"
                old.send_signal(signal.SIGSTOP)
                if restarts:
                    await node.kill()
                else:
                    await run_another()
                (tmp_path / "go").touch()
                if restarts:
                    async with node_at(tmp_path, port):
                        await run_another()
                        old.send_signal(signal.SIGCONT)
                        told = (await old.stdout.receive_some()).decode()
                        found = await read_all(address, "clicks", 70, types=Click, start=Oldest())
                else:
                    old.send_signal(signal.SIGCONT)
                    told = (await old.stdout.receive_some()).decode()
                    found = await read_all(address, "clicks", 70, types=Click, start=Oldest())
                assert "'mortal'" in told
                assert "a producer id of its own" in told
            finally:
                old.kill()
                await old.wait()
    assert [click.n for click in found if click.user == "old"] == list(range(10))
    assert [click.n for click in found if click.user == "new"] == list(range(60))


async def test_names_of_single_events_make_room_and_a_producer_too_many_is_refused() -> None:
    stream, _, _ = hosted()
    stream.rows.most = 2
    assert stream.hello(wire.Hello("b", "1", "clicks"), "line", 0.0)[1] == ""
    with pytest.raises(LimitReached, match=r"knows 2 producers, and cannot know .*s4 log forget"):
        stream.hello(wire.Hello("c", "1", "clicks"), "line", 0.0)
    assert stream.hello(wire.Hello("a", "1", "clicks"), "line", 0.0)[1] == ""


async def test_names_of_events_appended_once_are_forgotten_to_make_room(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks")
        assert node.log is not None
        rows = node.log._streams.by_name["clicks"].rows
        rows.most = 2
        for name in ("one", "two", "three"):
            assert await log.append_once("clicks", 0, Click("joe"), name)
        assert not await log.append_once("clicks", 0, Click("joe"), "three")
        assert await log.append_once("clicks", 0, Click("joe"), "one")
        assert await known(log, "clicks") == 2


async def test_a_producer_is_forgotten_by_hand_unless_it_is_there(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 2)
        await log.create("views")

        async def forget(*words: str) -> subprocess.CompletedProcess[str]:
            return await run_s4("log", "forget", *words, "--to", node.address, cwd=tmp_path)

        async with Client(node.address, producer="import") as client:
            clicks = await client.stream("clicks")
            await clicks.send_many([Click("joe", n) for n in range(10)])
            await clicks.flush()
            done = await forget("import")
            assert done.returncode == 1
            assert "'import' is connected to stream 'clicks'" in done.stderr
        await until(lambda: not node.log._streams.by_name["clicks"].rows.is_here("import"))
        done = await forget("import", "--json")
        assert json.loads(done.stdout) == {
            "producer": "import",
            "forgotten": {"clicks": [0, 1]},
        }, done.stderr
        done = await forget("import", "--stream", "views")
        assert "knows no producer 'import'" in done.stderr
        with pytest.raises(StoreError, match="knows no producer 'import'"):
            await log.forget("import")
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        assert await known(log, "clicks") == 0


# -- set-up ---------------------------------------------------------------------------------------


SOON = {"s4.producer.expiry": "100"}


async def known(log: EmbeddedLog, stream: str) -> int:
    count = (await log.describe(stream))["producers"]
    assert isinstance(count, int)
    return count


async def wait_forgotten(log: EmbeddedLog, stream: str = "witness") -> None:
    """Return when who comes now and has no id of its own is forgotten because of time."""
    await log.create(stream)
    await log.append(stream, 0, [Click("joe")])
    assert await known(log, stream) == 1
    while await known(log, stream):
        await trio.sleep(0.01)


async def forget(log: EmbeddedLog, producer: str) -> None:
    """Forget a producer, once the log has seen that its connection has ended."""
    with trio.fail_after(60):
        while True:
            try:
                await log.forget(producer, "clicks")
            except StoreError as error:
                if "is connected to stream" not in str(error):
                    raise
                await trio.sleep(0.01)
            else:
                return


async def count(log: EmbeddedLog, stream: str = "clicks") -> int:
    return sum(each["upcoming"] for each in (await log.describe(stream))["partitions"])


async def send(address: str, clicks: int, producer: str = "import") -> None:
    async with Client(address, producer=producer) as client:
        stream = await client.stream("clicks", again=True)
        await stream.send_many([Click("joe", n) for n in range(clicks)])
        assert await stream.flush() == []
