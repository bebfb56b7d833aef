"""The state of keys over HTTP: real processes and clusters, while they run."""

from __future__ import annotations

import json
import re
import threading
from functools import partial
from pathlib import Path

import pytest
from harness import node_process, until, until_told
from monitored import monitored, told
from shared_apps import COUNTER, Click

from s4node import Client
from s4node.errors import StateError
from s4node.events.keys import Partitioner, kafka
from s4node.state.browse import Committed
from s4node.state.database import PIECE_ROWS, Database
from s4node.state.rows import prefix

WINDOWED = """\
from s4node import App, Event, ProcessingElement, tumbling
class Click(Event):
    user: str
    at: float
class PerHour(ProcessingElement):
    clicks: int = 0
    def on_event(self, click: Click):
        self.clicks += 1
    def on_window(self):
        pass
class Cart(ProcessingElement):
    seen: float = 0.0
    def on_event(self, click: Click):
        self.seen = click.at
        self.at(click.at + 3600, "forgotten")
    def on_timer(self, name: str):
        pass
class Counter(App):
    def on_init(self):
        hours = self.create_pe(PerHour)
        hours.set_window(tumbling(3600))
        self.create_input_stream("clicks", hours, self.create_pe(Cart), key="user", time="at")
app = Counter("counter")
"""
DURABLE = "-ps4.stream.clicks.grade=durable"


@pytest.mark.slow
async def test_the_state_of_a_key_is_that_of_the_last_commit(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(COUNTER)
    state = f"-ps4.state.folder={tmp_path / 'state'}"
    async with node_process("app.py", "--partitions=3", DURABLE, state, cwd=tmp_path) as process:
        await until(lambda: process.url)
        events = [{"user": user} for user in ("joe", "7", "a/b c", "é", "joe")]
        assert (await told(f"{process.url}/streams/clicks", events)).status == 200
        at = f"{process.url}/state/counter/Count"
        for key, text, clicks in (
            ("joe", "joe", 2),
            ("7", "7", 1),
            ("a%2Fb%20c", "a/b c", 1),
            ("%C3%A9", "é", 1),
        ):
            found = (await told(f"{at}/{key}")).json
            assert (found["key"], found["value"]) == (text, {"clicks": clicks})
            assert found["commit"]["time"] > 1e9
            assert found["owner"]["partition"] == found["commit"]["task"]
        partition = Partitioner(3).partition_of("nobody")
        owner = f"the key is of partition {partition}, which is on node {found['owner']['node']!r}"
        for path, problem in (
            (f"{at}/nobody", f"nothing is saved of this key; {owner}\n"),
            (
                f"{process.url}/state/counter/Other/nobody",
                f"no table 'Other': saved are Count; {owner}\n",
            ),
            (f"{process.url}/state/other/Count/joe", "there is no app 'other'; there is counter\n"),
        ):
            assert (await told(path))[:2] == (404, problem)
        keys: list[str] = []
        after = ""
        while True:
            page = (await told(f"{at}?limit=2&after={after}")).json
            assert len(page["keys"]) <= 2
            keys += [each["key"] for each in page["keys"]]
            after = page["after"]
            if not after:
                break
        assert sorted(keys) == ["7", "a/b c", "joe", "é"]
        for query in ("limit=0", "limit=1001", "limit=x", "after=x", "after=0.x", "after=9."):
            assert (await told(f"{at}?{query}")).status == 400


@pytest.mark.slow
async def test_a_key_is_found_in_the_partition_that_kafka_gives_it(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(COUNTER)
    options = ("-ps4.hasher=kafka", f"-ps4.state.folder={tmp_path / 'state'}", DURABLE)
    async with node_process("app.py", "--partitions=7", *options, cwd=tmp_path) as process:
        await until(lambda: process.url)
        users = [f"user-{number}" for number in range(9)]
        events = [{"user": user} for user in users]
        assert (await told(f"{process.url}/streams/clicks", events)).status == 200
        partitioner = Partitioner(7, kafka)
        for user in users:
            found = (await told(f"{process.url}/state/counter/Count/{user}")).json
            assert found["value"] == {"clicks": 1}
            assert found["owner"]["partition"] == partitioner.partition_of(user)


@pytest.mark.slow
async def test_windows_and_timers_of_a_key_are_state(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(WINDOWED)
    state = f"-ps4.state.folder={tmp_path / 'state'}"
    async with node_process("app.py", state, cwd=tmp_path) as process:
        await until(lambda: process.url)
        events = [{"user": "joe", "at": at} for at in (30.0, 59.0, 60.0)]
        events += [{"user": "ann", "at": 61.0}]
        assert (await told(f"{process.url}/streams/clicks", events)).status == 200
        found = (await told(f"{process.url}/state/counter/PerHour/joe")).json
        assert found["windows"] == [{"start": 0.0, "value": {"clicks": 3}}]
        found = (await told(f"{process.url}/state/counter/Cart/joe")).json
        assert found["value"] == {"seen": 60.0}
        assert found["timers"] == [{"name": "forgotten", "time": 3660.0}]
        page = (await told(f"{process.url}/state/counter/PerHour?limit=1")).json
        assert page["keys"][0]["window"] == 0.0


@pytest.mark.slow
async def test_an_app_that_saves_nothing_has_no_state_to_show(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(COUNTER)
    async with node_process("app.py", "-ps4.stream.clicks.grade=fast", cwd=tmp_path) as process:
        await until(lambda: process.url)
        status, text, _ = await told(f"{process.url}/state/counter/Count/joe")
        assert status == 409
        assert re.fullmatch(
            r"the app saves no state; the key is of partition 0, which is on node '.+'\n", text
        )
        assert (await told(f"{process.url}/state/counter/Count")).status == 409


@pytest.mark.slow
async def test_any_node_answers_for_the_owner_of_a_key(tmp_path: Path) -> None:
    async with monitored(tmp_path) as one, monitored(tmp_path, "two") as two:
        assert (await one.deploy("--partitions", "4", DURABLE, source=COUNTER))[0] == 0
        await one.ready()
        await two.ready()
        users = [f"user {number}" for number in range(8)]
        async with Client(one.process.address) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many([Click(user) for user in users])
            assert await clicks.flush() == []
        await until_told(lambda: one.owned_by("two"), lambda partitions: partitions == 2)
        owners = json.loads((await one.get("/status"))[1])[0]["apps"][0]["owners"]
        for node in (one, two):
            for user in users:
                path = f"/state/counter/Count/{user.replace(' ', '%20')}"
                _, text = await until_told(partial(node.get, path), lambda got: got[0] == 200)
                partition = Partitioner(4).partition_of(user)
                found = json.loads(text)
                assert found["value"] == {"clicks": 1}
                assert found["owner"] == {"partition": partition, "node": owners[partition]}
            other = await node.get("/state/count/Count/joe")
            assert other == (404, "there is no app 'count'; there is counter\n")
            _, text = await node.get("/state/counter/Count?limit=1000")
            assert sorted(each["key"] for each in json.loads(text)["keys"]) == users


def test_a_commit_that_is_written_in_pieces_is_seen_whole_or_not_at_all(tmp_path: Path) -> None:
    database = Database(tmp_path / "db")
    rows = [prefix(number % 4096, 20) + b"%d" % number for number in range(4 * PIECE_ROWS)]
    database.write(rows, [b"0"] * len(rows))
    over = threading.Event()
    seen: set[frozenset[bytes]] = set()

    def read() -> None:
        while not over.is_set():
            with database.committed(10.0) as held:
                seen.add(frozenset(value for _, value in Committed(held).table(20)))

    reader = threading.Thread(target=read)
    reader.start()
    for value in (b"1", b"2", b"3"):
        database.write(rows, [value] * len(rows))
    over.set()
    reader.join()
    database.close()
    assert all(len(values) == 1 for values in seen)


def test_a_commit_that_takes_too_long_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(tmp_path / "db")
    rows = [prefix(number % 4096, 20) + b"%d" % number for number in range(2 * PIECE_ROWS)]

    def stop(at: str) -> None:
        if at == "pieces.count":
            with (
                pytest.raises(StateError, match="is being written"),
                database.committed(0.0),
            ):
                pass
            tried.append(at)

    tried: list[str] = []
    monkeypatch.setattr("s4node.state.database.passing", stop)
    database.write(rows, [b"1"] * len(rows))
    assert tried
    with database.committed(0.0) as held:
        assert {value for _, value in Committed(held).table(20)} == {b"1"}
    database.close()
