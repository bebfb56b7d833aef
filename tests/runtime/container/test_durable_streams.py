"""Durable streams in real containers: what producers send counts once, whatever dies."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import trio
from harness import free_port, in_thread, metric, running, until, until_still
from input_systems import dies
from lives import lives
from saved_state import saved_instances, saved_producers
from shared_apps import Click, CountAndTell, CountingApp, ForwardingApp, NotingApp, OnePE, handling
from structlog.testing import capture_logs

from s4node import App, Client, Event, GenericEvent, ProcessingElement, Stream, SyncClient, TaskApp
from s4node.errors import ConfigError, ConnectionRefused, EventError, ProgressUnwritten, TaskFenced
from s4node.events.keys import Partitioner
from s4node.events.schema import JsonText
from s4node.offsets.task_claims import TaskClaims
from s4node.state import task_state
from s4node.state.task_state import TaskState


async def test_an_integer_beyond_64_bits_is_refused_on_arrival_and_ends_no_app(
    settings: dict[str, str],
) -> None:
    class Last(ProcessingElement):
        value: Any = None

        def on_event(self, event: GenericEvent) -> None:
            self.value = event.attributes

    app = OnePE(Last)
    settings |= {"s4.cluster.partitions": "1", "task.commit.ms": "10"}
    async with running(app, settings) as node:
        async with Client(node.address) as client:
            clicks = await client.stream("clicks")
            clicks.read_as("GenericEvent")
            await clicks.send(JsonText(b'{"user": "a", "n": 18446744073709551616}'))
            await clicks.send(JsonText(b'{"user": "a", "n": [{"x": -9223372036854775809}]}'))
            await clicks.send(JsonText(b'{"user": "a", "n": 18446744073709551615}'))
            refused = await clicks.flush()
        assert [one.number for one in refused] == [0, 1]
        assert all("it holds a value that cannot be saved" in one.reason for one in refused)


def clicks_of(first: int, end: int) -> list[Click]:
    return [Click(USERS[n % 4], n) for n in range(first, end)]


def processed(app: CountingApp) -> int:
    return sum(app.counts.values())


async def test_a_producer_that_waits_for_its_earlier_life_is_told_that_the_node_is_not_away(
    settings: dict[str, str],
) -> None:
    began: list[int] = []
    may_end = trio.Event()

    async def wait(_pe: Any, click: Click) -> None:
        began.append(click.n)
        await may_end.wait()

    app = OnePE(wait)
    address = settings["s4.listener.address"]
    async with lives(settings) as node:
        await node.begin(app)
        async with Client(address, producer="clicker") as client:
            await (await client.stream("clicks", again=True)).send(Click("joe", 0))
            await until(lambda: len(began) == 1)
            client.abandon()
        async with Client(address, producer="clicker", timeout=0.5) as client:
            with pytest.raises(ConnectionRefused, match="yet to commit events of an earlier life"):
                await client.stream("clicks", again=True)
            may_end.set()
            clicks = await client.stream("clicks", again=True)
            await clicks.send_many(clicks_of(0, 4))
            await until(lambda: len(began) == 4)
            node.commit()
            assert await clicks.flush() == []
            assert clicks.counts["admitted"] == 4
    assert len(began) == 4


async def test_clients_without_an_id_of_their_own_leave_nothing_behind(
    settings: dict[str, str],
) -> None:
    often = settings | {"task.commit.ms": "5"}
    async with running(CountingApp(), often, address=often["s4.listener.address"]) as container:
        for _ in range(3):
            async with Client(container.address) as client:
                clicks = await client.stream("clicks")
                await clicks.send_many(clicks_of(0, 20))
        # a node that stops does not wait to hear that a client was the last time there
        await until(lambda: not container.ports["clicks"].admission.lanes)
    kept = saved_producers(Path(settings["s4.state.folder"]) / "default" / "counting")
    assert {task: list(rows) for task, rows in kept.items()} == {
        "Partition 0": [],
        "Partition 1": [],
    }


async def test_a_producer_ends_its_id_with_the_sync_client_too(settings: dict[str, str]) -> None:
    folder = Path(settings["s4.state.folder"]) / "default" / "counting"
    async with running(CountingApp(), settings | {"task.commit.ms": "5"}) as container:

        def work(*, end: bool) -> None:
            with SyncClient(container.address, producer="clicker") as client:
                stream = client.stream("clicks")
                stream.send_many(clicks_of(0, 20))
                assert stream.flush() == []
                if end:
                    stream.end()

        for end, rows in ((False, [1, 1]), (True, [0, 0])):
            await in_thread(partial(work, end=end))
            await until(lambda rows=rows: [*map(len, saved_producers(folder).values())] == rows)


async def test_a_producer_that_was_not_seen_for_long_is_forgotten(
    settings: dict[str, str],
) -> None:
    soon = settings | {"s4.producer.expiry": "100", "task.commit.ms": "5"}
    folder = Path(settings["s4.state.folder"]) / "default" / "counting"
    async with running(CountingApp(), soon, address=soon["s4.listener.address"]) as container:
        async with Client(container.address, producer="clicker") as client:
            clicks = await client.stream("clicks")
            await clicks.send_many(clicks_of(0, 20))
            await clicks.flush()
            async with Client(container.address) as other:
                await (await other.stream("clicks")).send_many(clicks_of(0, 20))
                await other.flush()
                assert [len(rows) for rows in saved_producers(folder).values()] == [2, 2]
                other.abandon()
        await until(lambda: [len(rows) for rows in saved_producers(folder).values()] == [1, 1])
        for lives_on in (True, False):  # one with an id of its own is known until it ends
            async with Client(container.address, producer="clicker") as client:
                clicks = await client.stream("clicks")
                assert (await clicks.resume_at() > 0) == lives_on
                clicks.end()
            await until(lambda: [len(rows) for rows in saved_producers(folder).values()] == [0, 0])


async def test_an_executor_that_drops_events_is_refused_on_a_durable_stream(
    settings: dict[str, str],
) -> None:
    for stage in ("stream", "deserializer"):
        bad = settings | {f"s4.{stage}.executor": "shed"}
        with dies(
            ConfigError, match=f"'clicks' is durable, but the executor 'shed' of its {stage}"
        ):
            async with running(CountingApp(), bad):
                pass


@pytest.mark.long
async def test_throttling_a_durable_stream_delays_and_drops_nothing(
    settings: dict[str, str],
) -> None:
    slow = settings | {
        "s4.stream.executor": "throttle",
        "s4.stream.maxRate": "2000",
        "s4.stream.workQueueSize": "50",
        "task.commit.ms": "20",
    }
    app = CountingApp()
    async with running(app, slow) as container, Client(container.address) as client:
        clicks = await client.stream("clicks")
        began = trio.current_time()
        await clicks.send_many(clicks_of(0, 1500))
        assert await clicks.flush() == []
        assert trio.current_time() - began > 0.2
    assert processed(app) == 1500


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("s4.stream.click.grade", "app 'counting' has: clicks"),
        ("s4.stream.results.grade", "a grade is for input streams that producers send to"),
    ],
)
async def test_a_grade_is_for_a_live_input(settings: dict[str, str], key: str, words: str) -> None:
    with dies(ConfigError, match=words):
        async with running(CountingApp(), settings | {key: "durable"}):
            pass


async def test_state_from_an_older_backup_is_reported_to_producers(
    settings: dict[str, str], tmp_path: Path
) -> None:
    one = settings | {"s4.cluster.partitions": "1", "task.commit.ms": "5"}
    folder = Path(one["s4.state.folder"])
    async with lives(one) as node:
        await node.begin(CountingApp())
        async with Client(one["s4.listener.address"], producer="clicker") as client:
            clicks = await client.stream("clicks")
            await clicks.send_many(clicks_of(0, 20))
            await clicks.flush()
            await node.crash()
            shutil.copytree(folder, tmp_path / "older")
            await node.begin(CountingApp())
            await clicks.send_many(clicks_of(20, 40))
            await clicks.flush()
            await node.crash()
            shutil.rmtree(folder)
            shutil.copytree(tmp_path / "older", folder)
            await node.begin(CountingApp())
            await clicks.send(Click("joe"))
            with pytest.raises(EventError, match=r"everything below 40 is committed .* ends at 20"):
                await clicks.flush()
            client.abandon()


async def test_a_node_without_state_believes_its_producers_and_tells_them_so(
    settings: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    one = settings | {"s4.cluster.partitions": "1", "task.commit.ms": "5"}
    app = CountingApp()
    async with lives(one) as node:
        await node.begin(CountingApp())
        async with Client(one["s4.listener.address"], producer="clicker") as client:
            clicks = await client.stream("clicks")
            await clicks.send_many(clicks_of(0, 20))
            await clicks.flush()
            await node.crash()
            shutil.rmtree(one["s4.state.folder"])
            await node.begin(app)
            await clicks.send_many(clicks_of(20, 40))
            await clicks.flush()
    assert processed(app) == 20
    assert "the node no longer knows this producer" in capsys.readouterr().err


def test_a_program_cannot_use_the_id_of_a_task() -> None:
    with pytest.raises(ConfigError, match="ids that begin with ~ belong to tasks"):
        Client("tcp://127.0.0.1:1", producer="~me")


async def test_an_app_with_stores_has_durable_streams_unless_they_are_set_to_fast(
    settings: dict[str, str],
) -> None:
    del settings["s4.stream.clicks.grade"]
    async with running(CountingApp(), settings) as container:
        assert container.statistics().grades == {"clicks": "fast"}
        assert not container.replay.keeps

    class Tally:
        def process(self, envelope: Any, _collector: Any, _coordinator: Any) -> None: ...

    app = TaskApp("tally", Tally)
    app.create_input_stream("words")
    app.create_output_stream("told")
    app.create_store("counts", key=str, value=int)
    async with running(app, settings) as container:
        assert container.statistics().grades == {"words": "durable", "told": "durable"}


async def test_without_an_interval_a_producer_that_flushes_has_a_commit_made(
    settings: dict[str, str],
) -> None:
    never = settings | {"task.commit.ms": "0"}
    async with running(CountingApp(), never) as container, Client(container.address) as client:
        clicks = await client.stream("clicks")
        await clicks.send_many(clicks_of(0, 20))
        assert await clicks.flush() == []


SELDOM = {"task.commit.ms": "60000"}
"""Nothing is committed by time within a test."""


async def test_a_producer_does_not_wait_for_the_commit_interval(
    settings: dict[str, str],
) -> None:
    seldom = settings | SELDOM
    async with running(CountingApp(), seldom) as container, Client(container.address) as client:
        clicks = await client.stream("clicks")
        for at in range(0, 100, 20):
            await clicks.send_many(clicks_of(at, at + 20))
            assert await clicks.flush() == []


def hopping(*, outside: bool = False) -> NotingApp:
    """Passes clicks on, to tasks of its own or to another app."""

    def pass_on(_pe: Any, click: Click) -> None:
        hops.put(Click(f"user-{click.n}", click.n))

    app = NotingApp("others", name="hopping")
    if outside:
        hops: Any = app.create_output_stream("hops", key="user", types=Click)
    else:
        hops = app.create_stream("hops", app.pe, key="user")
    app.create_input_stream("clicks", app.create_pe(handling(pass_on)), key="user")
    return app


async def test_events_between_tasks_do_not_wait_for_the_commit_interval(
    settings: dict[str, str],
) -> None:
    app = hopping()
    async with running(app, settings | SELDOM) as container, Client(container.address) as client:
        await (await client.stream("clicks")).send_many(clicks_of(0, 40))
        await until(lambda: len(app.seen) == 40)
    assert sorted(app.numbers) == list(range(40))


async def test_events_for_another_app_do_not_wait_for_the_commit_interval(
    settings: dict[str, str],
) -> None:
    end = NotingApp("hops")
    own = {name: value for name, value in settings.items() if "clicks" not in name}
    own |= SELDOM | {
        "s4.listener.address": f"tcp://127.0.0.1:{free_port()}",
        "s4.stream.hops.grade": "durable",
    }
    async with running(end, own, address=own["s4.listener.address"]):
        more = SELDOM | {
            "s4.stream.hops.consumers": "end",
            "s4.cluster.end.address": own["s4.listener.address"],
        }
        async with (
            running(hopping(outside=True), settings | more) as container,
            Client(container.address) as client,
        ):
            clicks = await client.stream("clicks")
            await clicks.send_many(clicks_of(0, 40))
            await until(lambda: len(end.seen) == 40)
    assert sorted(end.numbers) == list(range(40))


async def test_a_commit_at_an_event_within_a_frame_covers_exactly_that_event(
    settings: dict[str, str],
) -> None:
    class Committing:
        """Commits at every seventh event."""

        def init(self, _config: Any, context: Any) -> None:
            self.counts = context.store("counts")

        def process(self, envelope: Any, _collector: Any, coordinator: Any) -> None:
            done = self.counts.get("all", 0) + 1
            self.counts.put("all", done)
            seen.append((done, envelope.message.n))
            if done % 7 == 0:
                coordinator.commit()

    class Committed(TaskApp):
        def __init__(self) -> None:
            super().__init__("committed", Committing)

        def on_init(self) -> None:
            self.create_input_stream("clicks", types=Click)
            self.create_store("counts", key=str, value=int)

    seen: list[tuple[int, int]] = []
    one = settings | {"s4.cluster.partitions": "1"}
    async with lives(one) as node:
        container = await node.begin(Committed())
        async with Client(one["s4.listener.address"]) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many(clicks_of(0, 100))
            await until(lambda: len(seen) == 100 and container.replay.committer.commits)  # type: ignore[union-attr]
            await node.crash()
            seen.clear()
            await node.begin(Committed())
            await clicks.send_many(clicks_of(100, 110))
            await until(lambda: seen and seen[-1] == (110, 109))
            client.abandon()
    assert all(done == number + 1 for done, number in seen)  # state and place are of one moment


BAD = [0, 1, 7, 50, 51, 70, 99]
"""Events of a frame that do not decode, or have no key."""


class Once:
    """Notes in a task's state how often each event was seen. It asks for a commit
    at each; it fails at one, or stops behind event 30 when a commit has covered some."""

    def __init__(self, *, fails: int = -1) -> None:
        self.seen: list[tuple[int, int]] = []
        self.covered: Callable[[], bool] | None = None
        self.fails = fails
        self.stopped = trio.Event()

    @property
    def numbers(self) -> list[int]:
        return sorted({number for number, _ in self.seen})

    @property
    def app(self) -> TaskApp:
        once = self

        class Note:
            def init(self, _config: Any, context: Any) -> None:
                self.times = context.store("times")

            async def process(self, envelope: Any, _collector: Any, coordinator: Any) -> None:
                number = envelope.message.n
                if number > 30 and once.covered is not None:
                    if once.covered():
                        once.stopped.set()
                        await trio.sleep_forever()
                    await trio.sleep(0.02)  # commits have time before the last event
                if number == once.fails:
                    raise ValueError("it fails")
                times = self.times.get(number, 0) + 1
                self.times.put(number, times)
                once.seen.append((number, times))
                coordinator.commit()

        class Notes(TaskApp):
            def __init__(self) -> None:
                super().__init__("notes", Note)

            def on_init(self) -> None:
                self.create_input_stream("clicks", key=key_of, types=Click)
                self.create_store("times", key=int, value=int)

        return Notes()


def key_of(click: Click) -> Any:
    if click.user == "raises":
        raise ValueError("no key")
    return None if click.user == "none" else click.user


def texts_of(bad: str) -> list[JsonText]:
    """A hundred events that the client looks at no closer; some of them are bad."""
    texts = []
    for click in clicks_of(0, 100):
        user: Any = click.user
        if click.n in BAD:
            user = 5 if bad == "undecodable" else bad
        texts.append(JsonText(msgspec.json.encode({"user": user, "n": click.n})))
    return texts


GOOD = sorted(set(range(100)) - set(BAD))


def refused_of(refusals: list[Any]) -> list[int]:
    return sorted(n for one in refusals for n in range(one.number, one.number + one.count))


@pytest.mark.parametrize("concurrency", ["1", "4"])
async def test_going_back_to_a_commit_within_a_frame_with_bad_events_counts_the_others_once(
    settings: dict[str, str], concurrency: str
) -> None:
    chosen = settings | {
        "s4.cluster.partitions": "1",
        "task.max.concurrency": concurrency,
        "s4.stream.clicks.onError": "skip",
        "task.commit.ms": "20",
    }
    once = Once(fails=90)
    async with running(once.app, chosen) as container, Client(container.address) as client:
        clicks = await client.stream("clicks")
        clicks.read_as("Click")
        await clicks.send_many(texts_of("undecodable"))
        await until(lambda: once.numbers == sorted({*GOOD} - {90}))
        assert refused_of(await clicks.flush()) == sorted([*BAD, 90])
    assert [one for one in once.seen if one[1] != 1] == []


async def test_no_producer_is_told_of_a_commit_that_the_next_owner_does_not_have(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = settings | {"s4.cluster.partitions": "1"}
    other = one | {"s4.listener.address": f"tcp://127.0.0.1:{free_port()}"}
    sleeps, awake = threading.Event(), threading.Event()
    write = TaskState.write_commit

    def sleeping(state: TaskState) -> None:
        """The first one that writes stops there, as by SIGSTOP."""
        if armed and not sleeps.is_set():
            sleeps.set()
            awake.wait(20)
        write(state)

    armed: list[bool] = []
    monkeypatch.setattr(TaskState, "write_commit", sleeping)
    first, second = CountingApp(), CountingApp()
    with dies(TaskFenced, match="has taken over task 'Partition 0'"):
        async with lives(one) as node:
            container = await node.begin(first)
            assert container.replay.keeps
            committer = container.replay.committer
            async with Client(one["s4.listener.address"]) as client:
                clicks = await client.stream("clicks")
                await clicks.send_many(clicks_of(0, 10))
                await until(lambda: processed(first) == 10 and not committer.writing)
                armed.append(True)
                node.commit()
                await until(sleeps.is_set)
                async with running(second, other):
                    awake.set()
                    try:
                        await trio.sleep_forever()
                    finally:
                        assert clicks.counts["admitted"] == 0
                        client.abandon()


async def test_passing_errors_of_commits_do_not_add_up(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s4node.runtime.commit.task_commit.RETRY_SECONDS", 0.01)
    often = settings | {"task.commit.ms": "10", "task.commit.timeout.ms": "50"}
    fails: list[str] = []

    def failing(name: str) -> None:
        call = getattr(TaskClaims, name)

        def once(*arguments: Any, **more: Any) -> None:
            if name in fails:
                fails.remove(name)
                raise ProgressUnwritten("it is locked")
            call(*arguments, **more)

        monkeypatch.setattr(TaskClaims, name, once)

    failing("acknowledge")  # behind a commit
    failing("renew")  # before one
    async with running(CountingApp(), often) as container, Client(container.address) as client:
        assert container.replay.keeps
        clicks = await client.stream("clicks")
        for name in ("acknowledge", "renew"):
            fails.append(name)
            await clicks.send_many(clicks_of(0, 10))
            assert await clicks.flush() == []
            assert not fails
            await trio.sleep(0.1)  # longer than commits may fail
        assert container.replay.committer.failures == 2


class Slow(CountAndTell):
    """Handlers of several keys overlap, and end in any order."""

    async def on_event(self, event: Click) -> None:
        await trio.sleep(0.001 * (event.n % 3))
        super().on_event(event)


async def test_overlapping_handlers_count_once_because_commits_wait_for_them(
    settings: dict[str, str],
) -> None:
    random = Random(7)
    often = settings | {"task.commit.ms": "15"}
    async with lives(often) as node:
        await node.begin(CountingApp(Slow, parallelism=4))
        async with Client(often["s4.listener.address"]) as client:
            clicks = await client.stream("clicks")
            for part in range(6):
                await clicks.send_many(clicks_of(part * 100, part * 100 + 100))
                least = random.randrange(100)
                await until(lambda least=least: node.container.processed >= least)
                await node.crash()
                last = CountingApp(Slow, parallelism=4)
                await node.begin(last)
            assert await clicks.flush() == []
    for at, user in enumerate(USERS):
        if user in last.seen:  # its state was read in this life
            assert last.seen[user] == list(range(at, 600, 4))
    kept = saved_instances(Path(often["s4.state.folder"]) / "default" / "counting")
    assert {key: each["count"] for key, each in kept.items()} == dict.fromkeys(USERS, 150)


async def test_an_event_that_a_task_sends_on_counts_as_admitted_where_it_is_processed(
    settings: dict[str, str],
) -> None:
    often = settings | {"task.commit.ms": "20", "s4.cluster.partitions": "4"}
    async with running(CountingApp(), often) as container, Client(container.address) as client:
        clicks = await client.stream("clicks")
        clicks.read_as("Click")
        await clicks.send_many(
            [
                JsonText(msgspec.json.encode({"user": click.user, "n": click.n}))
                for click in clicks_of(0, 100)
            ]
        )
        assert await clicks.flush() == []
        await until(lambda: container.parts.outputs.idle)  # type: ignore[union-attr]
        assert container.ports["clicks"].deserializer.redispatched
        assert container.processed == 100
        assert container.statistics().inputs["clicks"].admitted == 100
        assert metric(container, "s4_input_admitted_total", stream="clicks") == 100


async def test_events_that_come_to_another_task_s_partition_are_sent_on_by_commits(
    settings: dict[str, str],
) -> None:
    often = settings | {"task.commit.ms": "20", "s4.cluster.partitions": "4"}
    redispatched = 0
    async with lives(often) as node:
        await node.begin(CountingApp())
        async with Client(often["s4.listener.address"]) as client:
            clicks = await client.stream("clicks")
            clicks.read_as("Click")
            for part in range(6):
                texts = [
                    JsonText(msgspec.json.encode({"user": click.user, "n": click.n}))
                    for click in clicks_of(part * 100, part * 100 + 100)
                ]
                await clicks.send_many(texts)
                await until(lambda part=part: node.container.processed >= 15 * part)
                redispatched += node.container.ports["clicks"].deserializer.redispatched
                await node.crash()
                await node.begin(CountingApp())
            assert await clicks.flush() == []
            await until(lambda: node.container.parts.outputs.idle)  # type: ignore[union-attr]
            redispatched += node.container.ports["clicks"].deserializer.redispatched
    assert redispatched
    kept = saved_instances(Path(often["s4.state.folder"]) / "default" / "counting")
    assert {key: each["seen"] for key, each in kept.items()} == {
        user: list(range(at, 600, 4)) for at, user in enumerate(USERS)
    }


class Order(Event):
    user: str


class Repeats(ProcessingElement):
    clicks: Stream

    def on_event(self, order: Order) -> None:
        self.clicks.put(Click(f"{order.user}!", "many"))  # type: ignore[arg-type]


class Counts(ProcessingElement):
    clicks: int = 0

    def on_event(self, _click: Click) -> None:
        self.clicks += 1


async def test_a_bad_event_that_a_handler_puts_on_an_input_is_reported_where_it_is_put(
    settings: dict[str, str],
) -> None:
    app = App("shop")
    repeats = app.create_pe(Repeats)
    repeats.clicks = app.create_input_stream(
        "clicks", app.create_pe(Counts), key="user", types=Click
    )
    app.create_input_stream("orders", repeats, key="user", types=Order)
    settings |= {"s4.cluster.partitions": "2", "s4.stream.orders.grade": "durable"}
    users = [f"u{n}" for n in range(20)]
    partition_of = Partitioner(2).partition_of
    others = sum(partition_of(user) != partition_of(f"{user}!") for user in users)
    assert others
    async with running(app, settings) as node, Client(node.address) as client:
        orders = await client.stream("orders", types=[Order])
        await orders.send_many([Order(user) for user in users])
        assert await orders.flush() == []
        await until(lambda: node.statistics().unsendable == {"sender": {"clicks": others}})
        assert node.statistics().inputs["clicks"].refused == 0


async def test_a_producer_that_sends_much_for_other_tasks_waits_until_they_have_committed_it(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_state, "CHANGES_BYTES", 2000)
    small = settings | {"task.commit.ms": "20"}
    app = CountingApp()
    async with running(app, small) as container, Client(container.address) as client:
        clicks = await client.stream("clicks", key=lambda click: "all to one")
        await clicks.send_many(clicks_of(0, 20_000))
        assert await clicks.flush() == []
        await until(lambda: processed(app) == 20_000)
    assert {user: len(seen) for user, seen in app.seen.items()} == dict.fromkeys(USERS, 5_000)


async def test_an_output_that_nobody_has_ever_taken_holds_its_inputs_and_loses_nothing(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_state, "CHANGES_BYTES", 10_000)
    away = f"tcp://127.0.0.1:{free_port()}"
    settings |= {
        "s4.stream.copies.consumers": "keeper",
        "s4.cluster.keeper.address": away,
        "s4.step.maxEvents": "16",
        "task.commit.ms": "10",
    }
    count = 5000
    async with running(ForwardingApp(to="copies", key="user"), settings) as container:

        def waiting() -> tuple[int, int]:
            outboxes = container.statistics().outboxes
            return sum(each.depth for each in outboxes), sum(each.bytes for each in outboxes)

        async with Client(container.address) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many(clicks_of(0, count))
            await until(lambda: waiting()[1] > 10_000)  # one task has as much as it may
            events, size = await until_still(waiting)  # nothing more is processed
            assert size < 40_000
            assert events < count
            seen = NotingApp("copies")
            async with running(seen, {"s4.listener.address": away}):
                assert await clicks.flush() == []
                await until(lambda: waiting()[0] == 0)
    assert sorted(seen.numbers) == list(range(count))


class Copied(Event):
    number: int


@pytest.mark.parametrize("make", [Copied, GenericEvent])
async def test_events_on_a_stream_without_types_are_read_again_after_a_restart(
    settings: dict[str, str], make: Callable[..., Any]
) -> None:
    away = f"tcp://127.0.0.1:{free_port()}"
    settings |= {
        "s4.stream.copies.consumers": "keeper",
        "s4.cluster.keeper.address": away,
        "task.commit.ms": "10",
    }

    def copies() -> App:
        app = OnePE(lambda _, click: out.put(make(number=click.n)), name="copies")
        out = app.create_output_stream("copies")
        return app

    for _ in range(2):
        async with running(copies(), settings) as before, Client(before.address) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many(clicks_of(0, 30))
            assert await clicks.flush() == []
    keeper = NotingApp("copies", key=None, types=make, note=lambda _, event: event.number)
    keeper.pe.set_singleton()
    async with running(keeper, {"s4.listener.address": away}), running(copies(), settings):
        await until(lambda: len(keeper.seen) == 60)
    assert sorted(keeper.seen) == sorted([*range(30), *range(30)])


async def test_a_stop_keeps_untaken_output_events_and_does_not_report_them_lost(
    settings: dict[str, str],
) -> None:
    away = f"tcp://127.0.0.1:{free_port()}"
    settings |= {
        "s4.stream.copies.consumers": "keeper",
        "s4.cluster.keeper.address": away,
        "task.commit.ms": "10",
    }
    app = ForwardingApp(to="copies", key="user")
    with capture_logs() as logs:
        async with running(app, settings) as before, Client(before.address) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many(clicks_of(0, 30))
            assert await clicks.flush() == []
    assert [log for log in logs if log["log_level"] == "error"] == []
    seen, app = NotingApp("copies"), ForwardingApp(to="copies", key="user")
    async with running(seen, {"s4.listener.address": away}), running(app, settings):
        await until(lambda: len(seen.numbers) == 30)


# -- set-up ---------------------------------------------------------------------------------------


USERS = ["joe", "ann", "eve", "bob"]


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    return {
        "s4.stream.clicks.grade": "durable",
        "s4.state.folder": str(tmp_path / "state"),
        "s4.listener.address": f"tcp://127.0.0.1:{free_port()}",
        "s4.cluster.partitions": "2",
        "s4.watchdog.ms": "0",
        "task.commit.ms": "0",  # only when a test or a producer asks for it
    }
