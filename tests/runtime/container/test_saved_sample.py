"""A version uses the state of the one before it, or its user has agreed that it does not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import running, until
from shared_apps import Click, counting

from s4node import App, Client, Config, Container, Event, ProcessingElement
from s4node.deploy.savepoint import savepoint_of
from s4node.deploy.savepoint_restore import check_readable
from s4node.errors import StateError
from s4node.events.event import LIVE
from s4node.runtime.container.hooks import declare
from s4node.runtime.event_time.state_use import unused_in
from s4node.savepoints.manifest import AS_IS, StateCheck
from s4node.savepoints.place import opened_task
from s4node.systems.memory import MemorySystem


class Wide(Event):
    event_name = "Click"
    user: str | int
    n: int = 0
    text: str = ""


def tell(pe: Any, event: Event) -> None:
    pe.app.seen.append(event)


COUNT, OLD = counting(Event, tell, name="Count"), counting(Event, tell, name="Old")


class Shop(App):
    def __init__(
        self,
        *pes: type[ProcessingElement],
        key: Any = "user",
        types: Any = Click,
        system: str = "memory",
    ) -> None:
        super().__init__("shop")
        self.seen: list[Event] = []
        self._pes, self._key, self._carried, self._system = pes, key, types, system

    def on_init(self) -> None:
        pes = [self.create_pe(pe) for pe in self._pes]
        self.create_input_stream(
            "clicks", *pes, key=self._key, types=self._carried, system=self._system
        )


class Lives:
    """Versions of an app that run one after the other on the same state."""

    def __init__(self, system: MemorySystem, settings: dict[str, str], partitions: int = 1) -> None:
        self._system = system
        self._partitions = partitions
        self.settings = settings
        system.create("clicks", partitions)

    @property
    def config(self) -> Config:
        return Config.from_values(
            {
                **self.settings,
                "s4.listener.address": "tcp://127.0.0.1:0",
                "s4.cluster.partitions": str(self._partitions),
            }
        )

    async def run(self, *pes: type[ProcessingElement]) -> None:
        self._system.put("clicks", 0, Click("joe"))
        app = Shop(*pes)
        async with running(app, self.settings, partitions=self._partitions):
            await until(lambda: len(app.seen) == len(pes))

    async def check(self, app: App, check: StateCheck = AS_IS) -> None:
        """Check a new version as a deployment does, beside the one that runs."""
        container = Container(app, self.config)
        await container.prepare()
        await container.check_saved_state(check)

    async def check_savepoint(self, app: App, name: str) -> list[str]:
        """Take a savepoint, and check that ``app`` may go on from it; returns what it ignores."""
        of = savepoint_of("shop", self.config)
        assert of is not None
        manifest = await trio.to_thread.run_sync(of.take_stopped, name)
        with of.place.opened(manifest) as saved:
            await declare(app, self.config, 1)
            await check_readable(app, self.config, manifest, saved)
            with opened_task(saved, "Partition 0") as state:
                assert state is not None
                return unused_in(state)


@pytest.fixture
def lives(system: MemorySystem, settings: dict[str, str]) -> Lives:
    return Lives(system, settings)


async def test_a_version_that_drops_a_pe_with_rows_is_refused_unless_it_is_named(
    lives: Lives,
) -> None:
    await lives.run(COUNT, OLD)
    with pytest.raises(StateError) as refused:
        await lives.check(Shop(COUNT))
    assert str(refused.value) == (
        "the app that runs has state that this version of app 'shop' has no place for: pe Old; "
        "keep their names, or leave it unused: s4 deploy --unused Old"
    )
    await lives.check(Shop(COUNT), StateCheck(unused=("Old",)))
    await lives.check(Shop(COUNT, OLD))


async def test_what_the_version_before_did_not_use_needs_no_consent_again(lives: Lives) -> None:
    await lives.run(COUNT, OLD)
    await lives.run(COUNT)
    await lives.check(Shop(COUNT))
    with pytest.raises(StateError, match=r"no place for: pe Count; .* --unused Count$"):
        await lives.check(Shop(OLD))


async def test_a_version_that_has_no_event_yet_is_the_one_that_the_next_is_checked_against(
    settings: dict[str, str], lives: Lives
) -> None:
    settings |= {"s4.stream.clicks.grade": "durable", "task.commit.ms": "1000000"}
    async with (
        running(Shop(COUNT, OLD, system=LIVE), settings) as node,
        Client(node.address) as client,
    ):
        clicks = await client.stream("clicks")
        await clicks.send(Click("joe"))
        assert await clicks.flush() == []
    async with running(Shop(COUNT, system=LIVE), settings) as node:
        await until(lambda: node.statistics().replay.commits == 1)  # type: ignore[union-attr]
        await lives.check(Shop(COUNT, system=LIVE))


async def test_a_version_goes_back_to_its_savepoint_which_has_the_rows_of_a_former_pe(
    lives: Lives,
) -> None:
    await lives.run(COUNT, OLD)
    with pytest.raises(StateError, match=r"savepoint 'both' has state .* no place for: pe Old"):
        await lives.check_savepoint(Shop(COUNT), "both")
    await lives.run(COUNT)
    assert await lives.check_savepoint(Shop(COUNT), "mine") == ["pe Old"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"key": "text"}, r"the key user \(str\) of stream 'clicks', .* by text \(str\)"),
        ({"key": ["user", "n"]}, r"the key user \(str\) .* by user\+n \(str,int\)"),
        ({"types": Wide}, r"the key user \(str\) .* by user \(int\|str\)"),
        ({"key": lambda event: event.user}, r"the key user \(str\) .* which has no name"),
    ],
)
async def test_a_stream_with_another_key_is_refused_unless_the_keys_are_the_same(
    lives: Lives, options: dict[str, Any], why: str
) -> None:
    await lives.run(COUNT)
    with pytest.raises(StateError, match=why):
        await lives.check(Shop(COUNT, **options))
    await lives.check(Shop(COUNT, **options), StateCheck(same_keys=True))


async def test_state_that_is_only_at_a_url_is_checked_too(
    tmp_path: Path, settings: dict[str, str], lives: Lives
) -> None:
    lives.settings |= {"s4.state.url": (tmp_path / "there").as_uri()}
    await lives.run(COUNT, OLD)
    shutil.rmtree(settings["s4.state.folder"])
    with pytest.raises(StateError, match=r"no place for: pe Old; .* --unused Old$"):
        await lives.check(Shop(COUNT))
    with pytest.raises(StateError, match=r"s4 deploy --same-keys$"):
        await lives.check(Shop(COUNT, OLD, key="text"))
    await lives.check(Shop(COUNT), StateCheck(unused=("Old",)))
    await lives.check(Shop(COUNT, OLD, key="text"), StateCheck(same_keys=True))


async def test_a_version_is_checked_against_the_state_at_a_url_if_that_here_is_of_a_former_owner(
    tmp_path: Path, lives: Lives
) -> None:
    lives.settings |= {"s4.state.url": (tmp_path / "there").as_uri()}
    await lives.run(COUNT, OLD)
    here = lives.settings["s4.state.folder"]
    lives.settings |= {"s4.state.folder": str(tmp_path / "another")}
    await lives.run(COUNT)
    lives.settings |= {"s4.state.folder": here}
    await lives.check(Shop(COUNT))


async def test_of_state_that_is_only_at_a_url_tasks_are_fetched_until_one_has_the_rows(
    tmp_path: Path, system: MemorySystem, settings: dict[str, str]
) -> None:
    settings |= {"s4.state.url": (tmp_path / "there").as_uri()}
    lives = Lives(system, settings, partitions=4)
    await lives.run(COUNT, OLD)  # of one key, in one task
    shutil.rmtree(settings["s4.state.folder"])
    with pytest.raises(StateError, match=r"no place for: pe Old"):
        await lives.check(Shop(COUNT))
