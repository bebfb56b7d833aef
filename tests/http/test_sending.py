"""Events that are posted: real processes, and everything that may become of them."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from harness import NodeProcess, node_process, run_s4, until
from monitored import Told, told

from s4node import Client, Event
from s4node.http import sending
from s4node.http.messages import Request

pytestmark = pytest.mark.slow

COUNTER = """\
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
    n: int = 1
    def __post_init__(self):
        if self.n > 100:
            raise ValueError("too many")
class Count(ProcessingElement):
    clicks: int = 0
    def on_event(self, click: Click):
        self.clicks += click.n
        if click.user == "unknown":
            raise ValueError("nobody knows them")
        while click.user == "stuck":
            pass
class Counter(App):
    def on_init(self):
        self.create_input_stream("clicks", self.create_pe(Count), key="user")
app = Counter("counter")
"""
LINES = "application/x-ndjson"


@asynccontextmanager
async def counter(
    folder: Path, grade: str = "durable", *options: str
) -> AsyncIterator[NodeProcess]:
    (folder / "app.py").write_text(COUNTER)
    given = (f"-ps4.stream.clicks.grade={grade}", f"-ps4.state.folder={folder / 'state'}")
    async with node_process("app.py", "--partitions=3", *given, *options, cwd=folder) as process:
        await until(lambda: process.url)
        yield process


def clicks(process: NodeProcess) -> str:
    return f"{process.url}/streams/clicks"


def request_of(body: bytes, headers: dict[str, str] | None = None) -> Request:
    given = {"content-type": "application/json"} | (headers or {})
    return Request("POST", "", {}, given, body, {"stream": "clicks"})


async def counted(folder: Path, user: str) -> int:
    options = ("--json", f"-ps4.state.folder={folder / 'state'}")
    done = await run_s4("state", "get", "counter", user, *options, cwd=folder)
    return sum(json.loads(row)["value"]["clicks"] for row in done.stdout.splitlines())


async def test_an_object_an_array_and_lines_are_committed(tmp_path: Path) -> None:
    async with counter(tmp_path) as process:
        answer = await told(clicks(process), {"user": "joe"})
        assert answer.status == 200
        assert answer.json == {"stream": "clicks", "events": 1, "committed": True}
        assert (await told(clicks(process), [{"user": "joe"}, {"user": "ann"}])).status == 200
        lines = b'{"user": "joe"}\n\n  {"user": "joe", "n": 5}\r\n'
        assert (await told(clicks(process), lines, Content_Type=LINES)).json["events"] == 2
        assert await counted(tmp_path, "joe") == 8
        assert await counted(tmp_path, "ann") == 1


async def test_events_of_a_fast_stream_are_only_taken(tmp_path: Path) -> None:
    async with counter(tmp_path, "fast") as process:
        answer = await told(clicks(process), {"user": "joe"})
        assert (answer.status, answer.json["committed"]) == (202, False)
        answer = await told(clicks(process), {"user": "joe"}, Idempotency_Key="1")
        assert answer.status == 400
        assert "durable" in answer.text


@pytest.mark.parametrize(
    ("body", "kind", "lines"),
    [
        (b'[{"user": "joe"}, {"user": 1}, {"n": 1}]', "application/json", [2, 3]),
        (b'{"user": "joe"}\n{"user": "joe", "x": 1}\nx\n\n3\n', LINES, [2, 3, 5]),
        (b'{"user": "joe"},{"user": "joe"}\n{"user": "joe"}', LINES, [1]),
        (b'{"user": "joe"', "application/json", [1]),
        (b'{"user": "joe", "n": 9223372036854775808}', "application/json", [1]),
        (b'{"user": "\xff"}', "application/json", [1]),
        (b"", "application/json", [1]),
        (b"[]", "application/json", [1]),
        (b"[" * 100_000, "application/json", [1]),
    ],
)
async def test_if_one_event_is_bad_none_is_sent(
    tmp_path: Path, body: bytes, kind: str, lines: list[int]
) -> None:
    async with counter(tmp_path) as process:
        answer = await told(clicks(process), body, Content_Type=kind)
        assert answer.status == 422
        assert [each["line"] for each in answer.json["lines"]] == lines
        assert all(each["reason"] for each in answer.json["lines"])
        assert answer.json["taken"] == 0
        assert answer.json["takes"] == {"Click": {"user": "str", "n": "int, optional"}}
        assert (await told(clicks(process), {"user": "ann"})).status == 200
        assert await counted(tmp_path, "joe") == 0


async def test_what_only_the_app_can_refuse_is_said(tmp_path: Path) -> None:
    async with counter(tmp_path) as process:
        answer = await told(clicks(process), [{"user": "joe"}, {"user": "joe", "n": 101}])
        assert answer.status == 422
        assert answer.json["taken"] == 1
        assert "too many" in answer.json["lines"][0]["reason"]


async def test_a_request_at_which_the_app_ends_gets_the_reason(tmp_path: Path) -> None:
    async with counter(tmp_path) as process:
        answer = await told(clicks(process), {"user": "unknown"})
        assert answer.status == 504
        assert "the app has ended: Count of app 'counter' raised ValueError: nobody" in answer.text
        assert await process.wait() == 1


async def test_what_is_no_json_or_no_stream_is_refused(tmp_path: Path) -> None:
    async with counter(tmp_path) as process:
        assert (await told(clicks(process), b"x=1", Content_Type="text/plain")).status == 415
        answer = await told(f"{process.url}/streams/nowhere", {"user": "joe"})
        assert answer.status == 404
        assert "no input stream 'nowhere'" in answer.text
        assert (await told(clicks(process) + "?type=Other", {"user": "joe"})).status == 400
        assert (await told(clicks(process) + "?type=Click", {"user": "joe"})).status == 200


async def test_the_same_key_counts_once_and_with_other_events_it_is_refused(
    tmp_path: Path,
) -> None:
    async with counter(tmp_path) as process:
        events = [{"user": "joe"}, {"user": "ann"}]
        for _ in range(3):
            assert (await told(clicks(process), events, Idempotency_Key="a")).status == 200
        assert (await told(clicks(process), events, Idempotency_Key="b")).status == 200
        assert (await told(clicks(process), events[:1], Idempotency_Key="a")).status == 422
        process.signal(signal.SIGKILL)
    async with counter(tmp_path) as process:
        assert (await told(clicks(process), events, Idempotency_Key="a")).status == 200
        assert (await told(clicks(process), [*events, *events], Idempotency_Key="b")).status == 422
        assert await counted(tmp_path, "joe") == await counted(tmp_path, "ann") == 2


async def test_a_request_does_not_wait_for_ever_for_another_with_its_key(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(sending, "_COMMITTED_SECONDS", 0.1)
    (silent,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = silent.socket.getsockname()[1]
    sends = sending.Sending(sending.Reach(lambda: [f"tcp://127.0.0.1:{port}"], None))
    nursery.start_soon(sends.run)
    request = request_of(b"{}", {sending.KEY: "a"})
    nursery.start_soon(sends.post, request)
    await trio.testing.wait_all_tasks_blocked()
    answer = await sends.post(request)
    assert answer.status == 504
    assert "another request with this key has no answer yet" in str(answer.text)
    await silent.aclose()
    nursery.cancel_scope.cancel()


async def test_requests_with_one_key_at_the_same_time_are_all_answered_and_count_once(
    tmp_path: Path,
) -> None:
    async with counter(tmp_path, "durable", "-ptask.commit.ms=300") as process:
        events = [{"user": "joe"}] * 50
        answers: list[Told] = []

        async def post() -> None:
            answers.append(await told(clicks(process), events, Idempotency_Key="a"))

        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(post)
        assert [each.status for each in answers] == [200] * 6
        assert await counted(tmp_path, "joe") == 50


async def test_a_stop_is_not_logged_for_the_connections_that_posts_have_left(
    tmp_path: Path,
) -> None:
    async with counter(tmp_path) as process:
        assert (await told(clicks(process), {"user": "joe"})).status == 200
        process.signal(signal.SIGINT)
        assert await process.wait() == 0
        assert "dialling again" not in process.errors
        assert "takes no more" not in process.errors


async def test_a_full_stream_takes_nothing_and_a_stuck_one_may_have(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_TAKEN_SECONDS", 1.0)
    monkeypatch.setattr(sending, "_COMMITTED_SECONDS", 2.0)
    async with counter(tmp_path, "fast", "-ps4.stream.workQueueSize=5") as process:
        sends = sending.Sending(sending.Reach(lambda: [process.address], None))
        nursery.start_soon(sends.run)
        await trio.testing.wait_all_tasks_blocked()
        stuck = await sends.post(request_of(b'{"user": "stuck"}'))
        assert stuck.status == 504
        assert "may be taken: s4 why and s4 status say" in str(stuck.text)
        assert dict(stuck.headers)["Retry-After"]
        monkeypatch.setattr(sending, "_OPEN_SECONDS", 1.0)
        answer = await sends.post(request_of(b'{"user": "joe"}'))
        assert answer.status in (429, 503)  # nothing was taken
        assert dict(answer.headers)["Retry-After"]
        process.signal(signal.SIGKILL)
        nursery.cancel_scope.cancel()


class Click(Event):
    user: str
    n: int = 1


async def test_a_client_cannot_send_other_events_under_the_id_of_a_batch(tmp_path: Path) -> None:
    async with counter(tmp_path) as process:
        async with Client(process.address, producer="=one", batch="first") as client:
            await (await client.stream("clicks", again=True)).send(Click("joe"))
        async with Client(process.address, producer="=one", batch="second") as client:
            with pytest.raises(Exception, match="has other events") as refused:
                await client.stream("clicks", again=True)
        assert refused.value.refused_as == "batch"  # type: ignore[attr-defined]
