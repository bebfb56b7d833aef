"""Systems: the contract's kit over the one in memory, and the registry that makes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from harness import plain_errors

pytest.register_assert_rewrite("conformance.systems")

from conformance.systems import Lab, SystemConformance  # noqa: E402

from s4node.config import Config  # noqa: E402
from s4node.errors import ConfigError, StartpointError, UnknownStream  # noqa: E402
from s4node.progress.startpoint import Oldest, Timestamp, Upcoming  # noqa: E402
from s4node.systems.live import LiveSource  # noqa: E402
from s4node.systems.memory import MemorySystem  # noqa: E402
from s4node.systems.registry import Systems  # noqa: E402
from s4node.systems.system import SystemStreamPartition  # noqa: E402


class MemoryLab(Lab):
    ends = True

    def __init__(self) -> None:
        self.system = self.memory = MemorySystem()

    async def create(self, stream: str, partitions: int) -> None:
        self.memory.create(stream, partitions)

    async def trim(self, stream: str, partition: int, below: int) -> None:
        self.memory.trim(stream, partition, below)

    async def go_away(self) -> None:
        self.memory.go_away()

    async def come_back(self) -> None:
        self.memory.come_back()

    async def end(self, stream: str, partition: int) -> None:
        self.memory.end(stream, partition)


class TestMemory(SystemConformance):
    """The kit's claims, in memory."""

    @asynccontextmanager
    async def lab(self) -> AsyncIterator[Lab]:
        lab = MemoryLab()
        with plain_errors():
            async with trio.open_nursery() as nursery:
                await nursery.start(lab.memory.run)
                yield lab
                nursery.cancel_scope.cancel()


async def test_live_sockets_begin_with_what_is_upcoming_and_nowhere_else() -> None:
    source = LiveSource(["clicks"], 4)
    ssp = SystemStreamPartition("live", "clicks", 0)
    assert await source.partitions("clicks") == 4
    assert await source.resolve(ssp, Upcoming()) == 0
    for startpoint in (Oldest(), Timestamp(0)):
        with pytest.raises(StartpointError, match="live sockets, which keep nothing"):
            await source.resolve(ssp, startpoint)


def test_an_unknown_system_is_an_error_that_names_those_there_are() -> None:
    systems = Systems(Config.of({"systems.old.type": "log", "systems.old.address": "tcp://h:1"}))
    with pytest.raises(UnknownStream, match=r"'archive'; known are live, old.*systems.archive.type"):
        systems["archive"]


def test_a_system_of_one_s_own_is_called_with_its_name_and_address_once() -> None:
    systems = Systems(
        Config.of(
            {
                "systems.mine.type": "s4node.systems.memory:MemorySystem",
                "systems.mine.address": "anywhere",
            }
        )
    )
    made = systems["mine"]
    assert isinstance(made, MemorySystem)
    assert (made.name, made.address) == ("mine", "anywhere")
    assert systems["mine"] is made


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"systems.a.b.type": "log"}, "leave the dots out"),
        ({"systems.live.type": "log"}, "live to the sockets"),
        ({"systems.a.address": "tcp://h:1"}, "systems.a.type is not; set it"),
        ({"systems.a.type": "nowhere:Nothing"}, "cannot be imported"),
        ({"systems.a.type": "s4node.systems.live:LiveSource"}, "has no run, wait_reachable"),
        ({"systems.a.type": "log"}, "set systems.a.address"),
    ],
)
def test_what_is_wrong_with_a_system_s_settings_is_said(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Systems(Config.of(settings))["a"]
