"""The synchronous client, against running nodes with real sockets."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import pytest
import trio
from cli_apps import HELLO
from harness import (
    DEADLINE,
    environment,
    free_port,
    in_thread,
    node_process,
    running,
    together,
    until,
    until_still,
)
from recording_app import LARGE, MOST, SMALL, RecordingApp, clicks
from shared_apps import Buy, Click, HoldingApp
from structlog.testing import capture_logs

from s4node import Client, GenericEvent, SyncClient
from s4node.errors import ConfigError, ConnectionRefused, EventError, StageBroken, StageClosed
from s4node.net.client.client_stream import ClientStream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


async def test_the_sync_client_sends_from_a_plain_thread_in_order() -> None:
    noted = RecordingApp()
    async with running(noted) as node:

        def work() -> None:
            with SyncClient(node.address) as client:
                stream = client.stream("clicks")
                assert stream.partitions == 1
                for n in range(3000):
                    stream.send(Click("ann", n))
                stream.send_many(clicks(2000, 3000))
                for n in range(5000, 5003):
                    stream.send(Click("ann", n))
                assert stream.flush() == []
                assert stream.counts["admitted"] == 5003
                stream.send(Click("ann", 5003))

        await in_thread(work)
    assert noted.numbers == list(range(5004))


def left_by(status: int | str, address: str, count: int) -> None:
    with SyncClient(address) as client:
        stream = client.stream("clicks")
        for n in range(count):
            stream.send(Click("ann", n))
        sys.exit(status)


async def test_a_sync_block_that_sys_exit_leaves_without_an_error_waits_for_all_verdicts() -> None:
    noted = RecordingApp()
    async with running(noted) as node:

        def work() -> None:
            with pytest.raises(SystemExit):
                left_by(0, node.address, 2000)

        await in_thread(work)
        assert noted.numbers == list(range(2000))


async def test_a_sync_block_in_a_generator_that_is_closed_waits_for_all_verdicts() -> None:
    noted = RecordingApp()
    async with running(noted) as node:

        def sending() -> Iterator[int]:
            with SyncClient(node.address) as client:
                stream = client.stream("clicks")
                for n in range(3000):
                    stream.send(Click("ann", n))
                    yield n

        def work() -> None:
            for n in sending():
                if n == 1999:
                    break

        await in_thread(work)
        assert noted.numbers == list(range(2000))


async def test_a_sync_block_that_an_error_leaves_says_how_many_events_are_given_up() -> None:
    app = HoldingApp()
    async with running(app) as node:

        def work() -> None:
            with pytest.raises(SystemExit):
                left_by("it went wrong", node.address, 3)

        with capture_logs() as logs:
            await in_thread(work)
        app.may_go_on.set()
    (told,) = [log for log in logs if log["event"] == "events stay unacknowledged"]
    assert (told["stream"], told["events"]) == ("clicks", 3)
    assert told["reason"] == "the block was left by SystemExit"


async def test_the_sync_client_sends_json_objects() -> None:
    noted = RecordingApp()

    def work() -> None:
        with SyncClient(node.address) as client:
            stream = client.stream("clicks")
            stream.read_as("Click")
            stream.send(b'{"user": "ann", "n": 1}')
            stream.send_many([b'{"user": "ann", "n": 2}'])
            assert stream.flush() == []

    async with running(noted) as node:
        await in_thread(work)
    assert noted.numbers == [1, 2]


async def test_two_threads_with_clients_of_their_own_do_not_disturb_each_other() -> None:
    noted = RecordingApp()
    async with running(noted, partitions=2) as node:

        def work(user: str) -> None:
            with SyncClient(node.address) as client:
                stream = client.stream("clicks")
                for n in range(4000):
                    stream.send(Click(user, n))

        await together(
            lambda: in_thread(lambda: work("ann")), lambda: in_thread(lambda: work("bob"))
        )
    for user in ("ann", "bob"):
        assert [event.n for event in noted.seen if event.user == user] == list(range(4000))


async def test_the_sync_client_returns_refusals() -> None:
    noted = RecordingApp(key=lambda event: event.user if event.n % 2 else None)
    async with running(noted) as node:

        def work() -> None:
            with SyncClient(node.address) as client:
                stream = client.stream("clicks")
                stream.send_many(clicks(10))
                refused = client.flush()
                assert [r.number for r in refused] == [0, 2, 4, 6, 8]
                assert "the KeyFinder returned nothing" in refused[0].reason

        await in_thread(work)


async def test_an_exception_leaves_the_sync_clients_block_as_it_is_and_nothing_waits() -> None:
    noted = RecordingApp()
    noted.hold()
    async with running(noted) as node:

        def work() -> None:
            with SyncClient(node.address) as client:
                client.stream("clicks").send_many(clicks(10))
                raise ZeroDivisionError

        before = threading.active_count()
        with pytest.raises(ZeroDivisionError):
            await in_thread(work)
        await until(lambda: threading.active_count() <= before)
        noted.may_go_on.set()


async def test_an_object_that_is_not_an_event_raises_in_the_line_that_sends_it() -> None:
    noted = RecordingApp()
    async with running(noted) as node:

        def work() -> None:
            with SyncClient(node.address) as client:
                stream = client.stream("clicks")
                stream.send(Click("ann", 1))
                with pytest.raises(EventError, match="is not an event type"):
                    stream.send("text")
                with pytest.raises(EventError, match="is not an event type"):
                    stream.send_many([Click("ann", 99), "text"])
                stream.send(Click("ann", 2))

        await in_thread(work)
    assert noted.numbers == [1, 2]


async def test_the_sync_client_is_told_of_a_type_that_the_app_does_not_take() -> None:
    noted = RecordingApp()
    async with running(noted) as node:

        def work() -> None:
            with SyncClient(node.address) as client:
                stream = client.stream("clicks")
                stream.send(Click("ann", 1))
                stream.send(Buy("ann", 5))
                (refused,) = stream.flush()
                assert refused.reason.startswith("stream 'clicks' takes Click, not 'Buy'")
                stream.send(Buy("ann", 6))
                stream.send(Click("ann", 2))
                (refused,) = stream.flush()
                assert refused.reason.startswith("stream 'clicks' takes Click, not 'Buy'")

        await in_thread(work)
    assert noted.numbers == [1, 2]


async def test_envelopes_stay_within_what_the_node_reads() -> None:
    noted = RecordingApp()
    small = {"s4.listener.maxEnvelopeBytes": "2048"}
    async with running(noted, small) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        await stream.send_many(clicks(20_000))
        await stream.send(Click("x" * 3000, 20_000))
        (refused,) = await stream.flush()
        assert "over the node's limit of 1024" in refused.reason
        assert node.statistics().peers["connections"] == 1
    assert noted.numbers == list(range(20_000))


async def test_the_sync_client_freezes_a_generic_event_in_the_line_that_sends_it() -> None:
    noted = RecordingApp(types=GenericEvent)
    async with running(noted) as node:

        def work() -> None:
            with SyncClient(node.address) as client:
                stream = client.stream("clicks")
                for n in range(200):
                    event = GenericEvent(user="ann", n=n)
                    stream.send(event)
                    with pytest.raises(EventError, match="already sent"):
                        event.put("n", -1)

        await in_thread(work)
    assert noted.numbers == list(range(200))


@pytest.mark.parametrize("way", ["send", "send_many"])
async def test_a_full_queue_makes_the_sync_client_wait(way: str) -> None:
    noted = RecordingApp()
    noted.hold()
    sent = 0
    async with running(noted, SMALL) as node, trio.open_nursery() as nursery:

        def work() -> None:
            nonlocal sent
            with SyncClient(node.address, queue_size=500) as client:
                stream = client.stream("clicks")
                for n in range(0, 10_000, 10):
                    if way == "send":
                        for more in range(10):
                            stream.send(Click("ann", n + more))
                    else:
                        stream.send_many(clicks(10, n))
                    sent = n + 10
                    threading.Event().wait(0.0001)  # slow enough for the client's thread

        nursery.start_soon(in_thread, work)
        await until(lambda: sent >= 500)
        assert await until_still(lambda: sent, seconds=0.5) < 2000
        noted.may_go_on.set()
    assert noted.numbers == list(range(10_000))


async def test_the_sync_client_waits_when_large_events_take_too_much_memory() -> None:
    noted = RecordingApp(key="n")
    noted.hold()
    sent = 0
    async with running(noted) as node:

        def work() -> None:
            nonlocal sent
            with SyncClient(node.address) as client:
                stream = client.stream("clicks")
                for _ in range(1000):
                    stream.send(Click(LARGE, sent))
                    sent += 1
                assert stream.flush() == []

        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, work)
            await until(lambda: sent > MOST - 100)
            # so many are handed over at a time
            assert MOST - 100 < await until_still(lambda: sent) < MOST + 22
            noted.may_go_on.set()
    assert noted.numbers == list(range(1000))


async def test_the_sync_client_is_told_in_time_that_there_is_no_node() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"

    def work() -> None:
        with SyncClient(address, timeout=0.3) as client:
            client.stream("clicks")

    with trio.fail_after(DEADLINE), pytest.raises(ConnectionRefused, match=r"within 0\.3 s"):
        await in_thread(work)


@pytest.mark.long
async def test_the_sync_client_waits_once_for_a_node_that_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    opened, gone = threading.Event(), threading.Event()
    waits: list[StageBroken] = []
    broken = ClientStream._broken

    def noting(stream: ClientStream) -> StageBroken:
        waits.append(broken(stream))
        return waits[-1]

    monkeypatch.setattr(ClientStream, "_broken", noting)

    def send_one() -> None:
        with SyncClient(address, timeout=0.5) as client:
            stream = client.stream("clicks")
            opened.set()
            assert gone.wait(DEADLINE)
            stream.send(Click("ann", 0))

    def work() -> None:
        with pytest.raises(StageBroken):
            send_one()

    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as nursery:
            async with running(RecordingApp(), address=address):
                nursery.start_soon(in_thread, work)
                await until(opened.is_set)
            gone.set()
    assert len(waits) == 1


async def test_the_sync_client_reports_an_invalid_address_plainly() -> None:
    def work() -> None:
        with SyncClient("nonsense"):
            raise AssertionError("it must not open")

    with pytest.raises(ConfigError, match="'nonsense' is not an address"):
        await in_thread(work)


async def test_a_sync_client_outside_of_its_block_says_so() -> None:
    async with running(RecordingApp()) as node:

        def work() -> None:
            client = SyncClient(node.address)
            with pytest.raises(StageClosed, match="use it in 'with'"):
                client.stream("clicks")
            with client:
                stream = client.stream("clicks")
            with pytest.raises(StageClosed, match="use it in 'with'"):
                stream.send(Click("ann"))

        await in_thread(work)


SCRIPT = """
import sys
from s4node import GenericEvent, SyncClient
with SyncClient(sys.argv[1]) as client:
    names = client.stream("names")
    for name in ("ann", "bob"):
        names.send(GenericEvent(name=name))
    print(names.flush(), names.counts["admitted"])
"""


@pytest.mark.parametrize("how", ["told", "again", "unreported"])
async def test_the_sync_client_raises_a_final_error_once(how: str) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    sent, changed, ended = threading.Event(), threading.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    def work() -> None:
        with SyncClient(address) as client:
            stream = client.stream("clicks")
            stream.send(Click("ann"))
            assert stream.flush() == []
            sent.set()
            assert changed.wait(DEADLINE)
            trio.from_thread.run(until, lambda: stream._stream._outbox.error, trio_token=token)
            stream.send(Click("bob"))  # only the client's own thread has met the error by now
            if how == "told":
                with pytest.raises(EventError, match="open a new Client or SyncClient"):
                    stream.flush()
            elif how == "again":  # what is sent behind that is told anew
                with pytest.raises(EventError):
                    stream.flush()
                stream.send(Click("cid"))

    async def run() -> None:
        try:
            if how == "told":
                await in_thread(work)
            else:
                with pytest.raises(EventError, match="had 3 partitions and now has 5"):
                    await in_thread(work)
        finally:
            ended.set()

    async with trio.open_nursery() as nursery:
        async with running(RecordingApp(), partitions=3, address=address):
            nursery.start_soon(run)
            await until(sent.is_set)
        async with running(RecordingApp(), partitions=5, address=address):
            changed.set()
            await ended.wait()


INHERITED = """
import os, sys
from s4node import Event, S4Error, SyncClient
class Click(Event):
    user: str
    n: int = 0
with SyncClient(sys.argv[1]) as client:
    names = client.stream("clicks")
    names.send_many([])
    child = os.fork()
    if child == 0:
        for call in (lambda: names.send(Click("ann")), names.flush, client.flush,
                     lambda: client.stream("others"), lambda: client.__exit__(None, None, None),
                     SyncClient(sys.argv[1]).__enter__):
            try:
                call()
            except S4Error as error:
                print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    names.send(Click("bob"))
    print(names.flush(), names.counts["admitted"])
"""

FORKED = """
import multiprocessing, sys
from s4node import Event, S4Error, SyncClient
class Click(Event):
    user: str
    n: int = 0
def work(address):
    try:
        with SyncClient(address) as client:
            clicks = client.stream("clicks")
            clicks.send(Click("ann"))
            print(clicks.flush(), flush=True)
    except S4Error as error:
        print(error, flush=True)
def child():
    process = multiprocessing.get_context("fork").Process(target=work, args=(sys.argv[1],))
    process.start()
    process.join()
    print(process.exitcode, flush=True)
child()
work(sys.argv[1])
child()
"""

FORK = (
    "this process was forked from one that had used s4node's sockets, which do not work in it; use "
    "multiprocessing's 'spawn', or open the first client after the fork"
)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (INHERITED, [FORK] * 6 + ["[] 1"]),
        (FORKED, ["[]", "0", "[]", FORK, "0"]),
    ],
)
async def test_a_forked_child_cannot_use_its_parents_sockets(script: str, told: list[str]) -> None:
    async with running(RecordingApp()) as node:
        done = None
        with trio.move_on_after(DEADLINE):
            done = await trio.run_process(
                [sys.executable, "-c", script, node.address],
                capture_stdout=True,
                capture_stderr=True,
                env=environment(),
                check=False,
            )
        assert done is not None, "it hangs"
        assert done.stdout.decode().splitlines() == told, done.stderr.decode()


@pytest.mark.slow
async def test_a_plain_script_sends_to_a_node_process(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(HELLO)
    async with node_process("hello.py", cwd=tmp_path) as node:
        done = await trio.run_process(
            [sys.executable, "-c", SCRIPT, node.address],
            capture_stdout=True,
            capture_stderr=True,
            env=environment(),
            cwd=tmp_path,
        )
        assert (done.stdout, done.stderr) == (b"[] 2\n", b"")
        await until(lambda: node.stdout == ["Hello ann!", "Hello bob!"])
