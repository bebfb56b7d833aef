"""State of PEs and tasks in real containers: it outlives them, and fits their offsets."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from harness import ANY_PORT, plain_errors, run_s4, running, until
from input_systems import dies
from saved_state import saved_positions
from shared_apps import Click, CountAndTell, CountingApp, Ignore
from structlog.testing import capture_logs

from s4node import App, Config, Container, GenericEvent, ProcessingElement, TaskApp
from s4node.errors import ConfigError, GraphError, ProcessingError, StateError, TaskFenced
from s4node.events.keys import crc32m
from s4node.process.exit_status import exit_status
from s4node.state import epochs, task_state
from s4node.state.job import task_folder
from s4node.state.key_value_store import KeyValueStore
from s4node.state.task_state import TaskState
from s4node.systems.memory import MemorySystem

SETTINGS = {"task.commit.ms": "0"}

# -- PEs ------------------------------------------------------------------------------------------


async def test_after_an_orderly_stop_pes_go_on_where_they_were_and_nothing_is_replayed(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, *(Click(user) for user in ("joe", "ann", "joe")))
    first = CountingApp(system="memory")
    async with running(first, settings):
        await until(lambda: first.counts == {"joe": 2, "ann": 1})
    system.put("clicks", 0, Click("joe"), Click("new"))
    second = CountingApp(system="memory")
    async with running(second, settings):
        await until(lambda: "new" in second.counts)
    assert second.counts == {"joe": 3, "new": 1}
    assert second.created == ["new"]  # joe was created in an earlier life
    assert saved_positions(Path(settings["s4.state.folder"]) / "default" / "counting") == {
        "Partition 0": {"memory.clicks[0]": 5}
    }


async def test_after_a_crash_state_and_offsets_are_those_of_the_last_commit(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, Click("joe"), Click("joe"))
    first = CountingApp(system="memory")
    async with crashing(first, settings) as container:
        await until(lambda: first.counts == {"joe": 2})
        await commit(container)
        system.put("clicks", 0, Click("joe"), Click("ann"))
        await until(lambda: first.counts == {"joe": 3, "ann": 1})
    second = CountingApp(system="memory")
    async with crashing(second, settings):
        await until(lambda: second.counts == {"joe": 3, "ann": 1})
    assert second.created == ["ann"]


async def test_state_goes_along_with_its_task_to_another_container(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    one, other = CountingApp(system="memory"), CountingApp(system="memory")
    often = {**settings, "task.commit.ms": "10"}
    with dies(TaskFenced, match="has taken over task 'Partition 0'"):
        async with running(one, often) as container:
            system.put("clicks", 0, Click("joe"), Click("ann"))
            await until(lambda: one.counts == {"joe": 1, "ann": 1})
            await commit(container)
            async with running(other, settings):
                system.put("clicks", 0, Click("joe"))
                await until(lambda: other.counts == {"joe": 2})
                await trio.sleep_forever()  # until the first one wants to commit
    assert other.created == []


async def test_instances_that_leave_a_full_cache_are_saved_and_removed_ones_are_not(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    app = CountingApp(system="memory", max_size=2)
    users = [f"user-{n}" for n in range(10)]
    async with running(app, settings) as container:
        system.put("clicks", 0, *map(Click, users))
        await until(lambda: len(app.counts) == 10)
        assert len(container.tasks[0].instances["CountAndTell"]) == 2
        await commit(container)
        system.put("clicks", 0, *map(Click, users))
        await until(lambda: set(app.counts.values()) == {2})
        assert app.gone == []
        assert app.created == users
        system.put("clicks", 0, Click("user-3", -1), Click("user-3"))
        await until(lambda: app.counts["user-3"] == 1)  # a new one, in the same slice
        assert app.gone == ["user-3"]
        system.put("clicks", 0, Click("user-4", -1))
        await until(lambda: app.counts["user-4"] == 3 and "user-4" in app.gone)
    again = CountingApp(system="memory", max_size=2)
    system.put("clicks", 0, *map(Click, users))
    async with running(again, settings):
        await until(lambda: len(again.counts) == 10)
    assert again.counts == {**dict.fromkeys(users, 3), "user-3": 2, "user-4": 1}
    assert again.created == ["user-4"]


class Third(Ignore):
    """Fires at each third event of a key; a singleton beside it counts all."""

    fired: int = 0

    def on_trigger(self, event: Click) -> None:
        self.fired += 1
        self.app.counts[self.key] = self.fired


class Total(ProcessingElement):
    total: int = 0

    def on_create(self) -> None:
        self.app.created.append(self.key)

    def on_event(self, event: Click) -> None:
        self.total += 1
        self.app.counts["total"] = self.total


class Triggered(CountingApp):
    def on_init(self) -> None:
        third, total = self.create_pe(Third), self.create_pe(Total)
        third.set_trigger(Click, events=3)
        total.set_singleton()
        self.create_input_stream("clicks", third, total, key="user", system="memory")


async def test_singletons_and_what_triggers_have_counted_are_kept_too(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, Click("joe"), Click("joe"), Click("ann"))
    first = Triggered()
    async with running(first, settings):
        await until(lambda: first.counts == {"total": 3})
    system.put("clicks", 0, Click("joe"), Click("ann"))
    second = Triggered()
    async with running(second, settings):
        await until(lambda: second.counts == {"joe": 1, "total": 5})
    assert (first.created, second.created) == ([None], [])


class Seldom(Third):
    """Fires at the first event that comes so long after the last firing."""


class Seldomly(CountingApp):
    def on_init(self) -> None:
        pe = self.create_pe(Seldom)
        pe.set_trigger(Click, seconds=0.5)
        pe.set_pe_cache(max_size=1)
        self.create_input_stream("clicks", pe, key="user", system="memory")


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_triggers_time_passes_while_its_instance_is_not_in_memory(
    system: MemorySystem, settings: dict[str, str], restarts: bool
) -> None:
    system.create("clicks", 1)
    app = Seldomly()
    async with running(app, settings) as container:
        system.put("clicks", 0, Click("joe"))
        await until(lambda: container.processed == 1)
        system.put("clicks", 0, Click("ann"))
        await until(lambda: container.processed == 2)
        if not restarts:
            await trio.sleep(0.6)
            system.put("clicks", 0, Click("joe"))
            await until(lambda: container.processed == 3)
    if restarts:
        await trio.sleep(0.6)
        app = Seldomly()
        system.put("clicks", 0, Click("joe"))
        async with running(app, settings) as container:
            await until(lambda: container.processed == 1)
    assert app.counts == {"joe": 1}


class Unsavable(Ignore):
    lock: trio.Lock = None  # type: ignore[assignment]


async def test_an_app_whose_state_cannot_be_saved_does_not_start(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    with dies(GraphError, match=r"PE class Unsavable: attribute lock is .*cannot be saved"):
        async with running(CountingApp(Unsavable, system="memory"), settings):
            pass


class Before(ProcessingElement):
    clicks: int = 0

    def on_event(self, event: Click) -> None:
        self.clicks += 1


class Misnamed(ProcessingElement):
    count: int = 0

    def on_event(self, event: Click) -> None:
        self.count += 1

    @staticmethod
    def migrate(saved: dict[str, Any]) -> dict[str, Any]:
        return saved


class Raising(Misnamed):
    @staticmethod
    def migrate(saved: dict[str, Any]) -> dict[str, Any]:
        return {"count": int(saved["clicks"] / 0)}


class Returning(Misnamed):
    @staticmethod
    def migrate(saved: dict[str, Any]) -> dict[str, Any]:
        saved["count"] = saved.pop("clicks")  # and forgets to return it
        return None  # type: ignore[return-value]


class Mistyped(Misnamed):
    @staticmethod
    def migrate(saved: dict[str, Any]) -> dict[str, Any]:
        return {"count": str(saved["clicks"])}


MIGRATES = {
    Misnamed: "returned an attribute 'clicks', which it does not have",
    Raising: "raised ZeroDivisionError: division by zero",
    Returning: "returned None instead of a dict of attributes",
    Mistyped: "returned an attribute 'count' that is not of its type: Expected `int`, got `str`",
}


class Migrating(CountingApp):
    def __init__(self, pe: type[ProcessingElement], *, singleton: bool, handlers: int) -> None:
        super().__init__(pe)
        self.singleton, self.handlers = singleton, handlers

    def on_init(self) -> None:
        pe = self.create_pe(self.pe, name="Clicks")
        if self.singleton:
            pe.set_singleton(True)
        stream = self.create_input_stream("clicks", pe, key="user", system="memory")
        if not self.singleton:
            stream.set_parallelism(self.handlers)


@pytest.mark.parametrize("how", ["alone", "parallel", "singleton"])
@pytest.mark.parametrize("cls", MIGRATES)
async def test_a_migrate_that_fails_is_reported_with_the_key_and_as_what_to_fix(
    system: MemorySystem,
    settings: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    cls: type[ProcessingElement],
    how: str,
) -> None:
    named: dict[str, Any] = {
        "singleton": how == "singleton",
        "handlers": 4 if how == "parallel" else 1,
    }
    system.create("clicks", 1)
    system.put("clicks", 0, Click("joe"))
    async with running(Migrating(Before, **named), settings) as container:
        await until(lambda: container.processed == 1)
    system.put("clicks", 0, Click("joe"))
    key = None if named["singleton"] else "joe"
    fact = f"migrate of {cls.__name__} {key!r} {MIGRATES[cls]}"
    with pytest.raises(ProcessingError if how == "alone" else StateError) as told:
        async with running(Migrating(cls, **named), settings):
            await trio.sleep_forever()
    if how == "alone":
        place = "(app 'counting', event at clicks[0]@1). The app stops here: fix migrate, or ha"
        assert str(told.value).startswith(f"{fact} {place}")
    else:  # it is read before there is an event, or before that has begun
        assert str(told.value) == f"{fact}; fix migrate"
    assert exit_status(told.value) == 1
    assert ('"count": int(saved["clicks"] / 0)' in capsys.readouterr().err) is (cls is Raising)


class Listing(ProcessingElement):
    seen: dict[str, int] = {}  # noqa: RUF012

    def on_event(self, event: Click) -> None:
        self.seen[event.user] += 1


async def test_a_default_that_the_prototype_was_given_is_checked_as_that_of_the_class(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    class Lists(App):
        def on_init(self) -> None:
            listing = self.create_pe(Listing)
            listing.seen = Counter()
            self.create_input_stream("clicks", listing, key="user", system="memory")

    system.create("clicks", 1)
    with dies(GraphError, match=r"PE class Listing: attribute seen is a Counter, .* plain dict"):
        async with running(Lists("lists"), settings):
            pass


class Timed(Ignore):
    ticks: int = 0

    def on_time(self) -> None:
        self.ticks += 1
        self.app.counts[self.key] = self.ticks


class Ticking(CountingApp):
    def on_init(self) -> None:
        pe = self.create_pe(Timed)
        pe.set_timer_interval(0.01)
        self.create_input_stream("clicks", pe, key="user", system="memory")


async def test_changes_of_on_time_are_saved(system: MemorySystem, settings: dict[str, str]) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, Click("joe"))
    first = Ticking(Timed)
    async with running(first, settings):
        await until(lambda: first.counts.get("joe", 0) >= 3)
    system.put("clicks", 0, Click("joe"))
    second = Ticking(Timed)
    async with running(second, settings):
        await until(lambda: "joe" in second.counts)
        assert second.counts["joe"] > first.counts["joe"]


class Slow(ProcessingElement):
    """Its handlers overlap, and each takes a moment."""

    count: int = 0

    async def on_event(self, event: Click) -> None:
        count = self.count
        await trio.sleep(0.001)
        self.count = count + 1
        self.app.counts[self.key] = self.count


@pytest.mark.parametrize(
    "more", [{}, {"task.async.commit": "true"}], ids=["drained", "async commit"]
)
async def test_handlers_that_overlap_lose_nothing(
    system: MemorySystem, settings: dict[str, str], more: dict[str, str]
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, *(Click(f"user-{n % 7}") for n in range(210)))
    often = {**settings, **more, "task.commit.ms": "5", "s4.stream.clicks.parallelism": "4"}
    first = CountingApp(Slow, system="memory")
    async with running(first, often):
        await until(lambda: sum(first.counts.values()) == 210)
    system.put("clicks", 0, *(Click(f"user-{n}") for n in range(7)))
    second = CountingApp(Slow, system="memory")
    async with running(second, often):
        await until(lambda: second.counts == {f"user-{n}": 31 for n in range(7)})


class SlowInThreads(CountAndTell):
    """As Slow, in threads."""

    def on_event(self, event: Click) -> None:
        count = self.count
        time.sleep(0.0001)
        self.count = count + 1
        self.app.counts[self.key] = self.count


@pytest.mark.parametrize("pe", [Slow, SlowInThreads])
@pytest.mark.parametrize("more", [{}, {"task.async.commit": "true"}], ids=["drained", "async"])
async def test_a_cache_is_bounded_beside_handlers_that_overlap_and_loses_nothing(
    system: MemorySystem, settings: dict[str, str], pe: type[CountAndTell], more: dict[str, str]
) -> None:
    most = 0

    async def watch(container: Container) -> None:
        nonlocal most
        (task,) = container.tasks.values()
        while container.processed < 1500:
            most = max(most, len(task.instances[pe.__name__]))
            await trio.lowlevel.checkpoint()

    system.create("clicks", 1)
    system.put("clicks", 0, *(Click(f"user-{n * 7 % 300}") for n in range(1500)))
    often = {**settings, **more, "task.commit.ms": "20", "s4.stream.clicks.parallelism": "4"}
    app = CountingApp(pe, system="memory", max_size=5)
    async with running(app, often) as container:
        await watch(container)
    assert app.counts == {f"user-{n}": 5 for n in range(300)}
    assert most < 90  # the size, those in use, and a slice beyond


class Waits(CountAndTell):
    """As Count; the handler of an event with a negative number waits for the door."""

    door = trio.Event()

    async def on_event(self, event: Click) -> None:
        if event.n < 0:
            await self.door.wait()
        self.count += 1
        self.app.counts[self.key] = self.count


async def test_an_instance_that_leaves_the_cache_keeps_what_its_last_handler_did_after_a_commit(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, Click("slow", -1), Click("a"), Click("b"))
    more = {**settings, "task.async.commit": "true", "s4.stream.clicks.parallelism": "2"}
    app = CountingApp(Waits, system="memory", max_size=1)
    async with running(app, more) as container:
        await until(lambda: app.counts == {"a": 1, "b": 1})
        await commit(container)  # while the handler waits
        Waits.door.set()
        await until(lambda: app.counts == {"a": 1, "b": 1, "slow": 1})
        system.put("clicks", 0, Click("slow"))
        await until(lambda: container.processed == 4)
        assert app.counts["slow"] == 2


@pytest.mark.parametrize("below", [".", "below/it"])
async def test_a_file_in_place_of_the_state_folder_is_told_once(
    system: MemorySystem, settings: dict[str, str], tmp_path: Path, below: str
) -> None:
    system.create("clicks", 2)
    file = tmp_path / "file"
    file.touch()
    folder = {"s4.state.folder": str(file / below)}
    with pytest.raises(ConfigError) as told, plain_errors():
        async with running(CountingApp(system="memory"), settings | folder):
            pass
    assert str(told.value) == (
        f"{file} is a file, where a folder for state has to be; set s4.state.folder to another "
        f"folder, or move the file away"
    )


# -- tasks ----------------------------------------------------------------------------------------


class Tally:
    """Counts in a store; commits when told to."""

    def init(self, config: Any, context: Any) -> None:
        self.counts = context.store("counts")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        word = envelope.message.get("word")
        self.counts.put(word, self.counts.get(word, 0) + 1)
        if envelope.message.get("commit"):
            coordinator.commit()


def tallying(make: Any = Tally, ttl: float = 0) -> TaskApp:
    app = TaskApp("tally", make, inputs=["memory.words"])
    app.create_store("counts", key=str, value=int, ttl=ttl)
    return app


def words(*words: str, commit: bool = False) -> list[GenericEvent]:
    return [GenericEvent(word=word, commit=commit) for word in words]


def stored(settings: dict[str, str], ttl: float = 0) -> dict[str, int]:
    folder = task_folder(Path(settings["s4.state.folder"]) / "default" / "tally", "Partition 0")
    with epochs.copied(folder) as database:
        state = TaskState(database, crc32m)
        return dict(state.store(tallying(ttl=ttl).stores["counts"]).all())


@pytest.mark.parametrize("threads", ["0", "2"])
async def test_stores_go_back_to_the_last_commit_with_the_offsets(
    system: MemorySystem, settings: dict[str, str], threads: str
) -> None:
    system.create("words", 1)
    threaded = {**settings, "job.container.thread.pool.size": threads}
    async with crashing(tallying(), threaded) as container:
        system.put("words", 0, *words("a", "b"), *words("a", commit=True), *words("a", "c"))
        await until(lambda: container.processed == 5)
        await until(lambda: container.replay.committer.commits >= 2)  # the first before any event
        assert stored(settings) == {"a": 2, "b": 1}
    async with running(tallying(), threaded) as container:
        await until(lambda: container.processed == 2)
    assert stored(settings) == {"a": 3, "b": 1, "c": 1}


async def test_a_store_goes_on_when_its_time_to_live_is_given_and_taken_away(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("words", 1)

    async def live(word: str, ttl: float) -> dict[str, int]:
        async with running(tallying(ttl=ttl), settings) as container:
            committer, progress = container.replay.committer, container.replay.consumers.progress
            await until(lambda: any(each.committed is not None for each in progress[0].values()))
            for each in ("a", word):
                before = committer.commits
                system.put("words", 0, *words(each, commit=True))
                await until(lambda before=before: committer.commits > before)
        return stored(settings, ttl)

    assert await live("x", 0) == {"a": 1, "x": 1}
    assert await live("y", 3600) == {"a": 2, "x": 1, "y": 1}
    assert await live("z", 0) == {"a": 3, "x": 1, "y": 1, "z": 1}


async def test_a_task_commits_early_when_much_has_changed(
    system: MemorySystem, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    system.create("words", 1)
    monkeypatch.setattr(task_state, "CHANGES_BYTES", 1024)
    async with crashing(tallying(), settings) as container:
        system.put("words", 0, *words(*("x" * 100 + str(n) for n in range(100))))
        await until(lambda: container.replay.committer.commits >= 2)  # the first before any event
        assert len(stored(settings)) >= 9


class Keeping:
    """Has stores whose values are kept for an hour."""

    NAMES = tuple(f"short-{n}" for n in range(6))

    def init(self, config: Any, context: Any) -> None:
        self.stores = [context.store(name) for name in self.NAMES]

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        for store in self.stores:
            store.put(envelope.message.get("word"), 1)


async def test_a_task_is_given_up_when_all_of_its_stores_were_looked_through(
    system: MemorySystem, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def slowly(store: KeyValueStore[Any, Any], limit: int, start: bytes = b"") -> bytes:
        found = expire(store, limit, start)
        time.sleep(0.01)  # the database may be closed meanwhile, in a thread
        looked.append(store.spec.name)
        return found

    expire = KeyValueStore.expire
    monkeypatch.setattr(KeyValueStore, "expire", slowly)
    app = TaskApp("tally", Keeping, inputs=["memory.words"])
    for name in Keeping.NAMES:
        app.create_store(name, key=str, value=int, ttl=3600)
    system.create("words", 1)
    async with crashing(app, settings) as container:
        committer, task = container.replay.committer, container.tasks[0]
        await until(lambda: committer.commits == 1 and not committer.writes(task))  # its beginning
        looked.clear()
        system.put("words", 0, *words("a"))
        await until(lambda: container.processed == 1)
        assert committer.commit(task)
        await until(lambda: looked)
        await committer.release(task)
        assert tuple(looked) == Keeping.NAMES
        await trio.testing.wait_all_tasks_blocked()


async def test_shipping_may_stop_only_if_nobody_has_resumed_from_the_url(
    system: MemorySystem, settings: dict[str, str], tmp_path: Path
) -> None:
    system.create("words", 1)

    def at(folder: str) -> dict[str, str]:
        return {**settings, "s4.state.folder": str(tmp_path / folder)}

    async def count(settings: dict[str, str], *some: str) -> None:
        async with running(tallying(), settings) as container:
            system.put("words", 0, *words(*some))
            await until(lambda: container.processed == len(some))

    shipped = {"s4.state.url": f"file://{tmp_path}/remote_job"}
    await count(at("one") | shipped, "a", "a")
    await count(at("two") | shipped, "b")
    with dies(StateError, match=r"task folder 'Partition%200' .* until now, has commit"):
        await count(at("one"), "c")
    await count(at("two"), "c")
    assert stored(at("two")) == {"a": 2, "b": 1, "c": 1}
    with dies(
        StateError, match="which was written without s4.state.url, or with another one, and never"
    ):
        await count(at("two") | shipped, "d")


async def test_shipping_stops_with_a_warning_if_the_url_cannot_be_read(
    system: MemorySystem, settings: dict[str, str], tmp_path: Path
) -> None:
    system.create("words", 1)
    system.put("words", 0, *words("a"))
    remote_job = tmp_path / "remote_job"
    async with running(
        tallying(), settings | {"s4.state.url": f"file://{remote_job}"}
    ) as container:
        await until(lambda: container.processed == 1)
    shutil.rmtree(remote_job)
    remote_job.write_text("no folder any more")
    with capture_logs() as logs:
        async with running(tallying(), settings):
            pass
    (told,) = [log for log in logs if log["event"].startswith("a task was shipped until now")]
    assert str(remote_job) in told["reason"]
    assert stored(settings) == {"a": 1}


async def test_stores_without_an_input_that_can_be_read_again_are_refused() -> None:
    app = TaskApp("tally", Tally)
    app.create_input_stream("words")
    app.create_store("counts", key=str, value=int)
    with dies(GraphError, match="has the stores 'counts' but no replayable input"):
        async with running(app, {"s4.stream.words.grade": "fast"}):
            pass


def test_a_store_that_cannot_be_is_refused_with_the_graph() -> None:
    app = TaskApp("tally", Tally, inputs=["memory.words"])
    app.create_store("counts", key=str, value=int)
    with pytest.raises(GraphError, match="has a store 'counts' already"):
        app.create_store("counts", value=str)


# -- state that is there and is not used ----------------------------------------------------------


async def test_an_app_that_has_kept_state_by_other_settings_says_that_it_begins_without(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def told(**more: str) -> list[Any]:
        with capture_logs() as logs:
            async with running(CountingApp(), settings | more):
                pass
        return [log for log in logs if log["log_level"] == "warning"]

    durable = {"s4.stream.clicks.grade": "durable"}
    assert await told() == []  # nothing was ever kept
    assert await told(**durable) == []
    (warning,) = await told()
    assert "keeps no state with these settings, but has saved state with others" in warning["event"]
    assert warning["app"] == "counting"
    assert warning["folder"] == str(Path(settings["s4.state.folder"]) / "default" / "counting")
    assert warning["fix"] == (
        "set s4.stream.clicks.grade = durable as before, or remove the folder"
    )
    assert await told(**durable) == []
    # who keeps nothing needs no folder that can be looked at
    assert await told(**{"s4.state.folder": "~nobody-of-this-name/x"}) == []
    looked = []

    def denied(path: Path) -> bool:
        looked.append(path.name)
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "is_dir", denied)
        assert await told() == []
    assert "tasks" in looked


class Renamed(CountAndTell):
    """Another class than that of which there is state."""


async def test_state_of_a_pe_class_that_is_gone_is_told_once_at_the_start(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 2)
    for partition in range(2):
        system.put("clicks", partition, Click("joe"), Click("ann"))
    first = CountingApp(system="memory")
    async with running(first, settings, partitions=2):
        await until(lambda: set(first.counts) == {"joe", "ann"})
    for pe, gone in ((CountAndTell, []), (Renamed, ["CountAndTell"]), (CountAndTell, ["Renamed"])):
        with capture_logs() as logs:
            async with running(CountingApp(pe, system="memory"), settings, partitions=2):
                pass
        said = [log["pes"] for log in logs if "no longer has is kept but not used" in log["event"]]
        assert said == ([gone] if gone else [])


# -- s4 state -------------------------------------------------------------------------------------


async def test_the_state_of_a_running_app_can_be_shown(
    system: MemorySystem, settings: dict[str, str], tmp_path: Path
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, Click("joe", 4), Click("ann", 5), Click("joe", 6))
    app = CountingApp(system="memory")
    state = ("-p", f"s4.state.folder={settings['s4.state.folder']}")
    async with running(app, settings) as container:
        await until(lambda: app.counts == {"joe": 2, "ann": 1})
        await commit(container)
        done = await run_s4("state", "get", "counting", "joe", *state, cwd=tmp_path)
        assert done.stdout == 'Partition 0  CountAndTell  joe  {"count": 2, "seen": [4, 6]}\n'
        done = await run_s4("state", "scan", "counting", "--json", *state, cwd=tmp_path)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert {row["key"]: row["value"]["count"] for row in rows} == {"joe": 2, "ann": 1}
        done = await run_s4("state", "scan", "counting", "--table", "Sum", *state, cwd=tmp_path)
        assert done.returncode == 1
        assert "has no 'Sum'; it has: CountAndTell" in done.stderr


# -- real processes, killed at any moment ----------------------------------------------------------


# -- set-up ---------------------------------------------------------------------------------------


@asynccontextmanager
async def crashing(app: App, settings: dict[str, str]) -> AsyncIterator[Container]:
    """A container that ends at once, without a last commit."""
    values = {
        "s4.listener.address": ANY_PORT,
        "s4.cluster.partitions": "1",
        "s4.watchdog.ms": "0",
        **settings,
    }
    container = Container(app, Config.from_values(values))
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(container.run)
            await container.ready.wait()
            yield container
            nursery.cancel_scope.cancel()


async def commit(container: Container) -> None:
    committer, tasks = container.replay.committer, container.tasks.values()
    for task in tasks:
        task.want_commit()
        container.parts.loop.wake(task)
    await until(lambda: not any(t.gate.commit_due or committer.changed(t) for t in tasks))
