"""Systems: the contract's kit over memory and the embedded log, and the registry of systems."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from harness import free_port, plain_errors
from shared_apps import Ignore, OnePE

pytest.register_assert_rewrite("conformance.systems")

from conformance.systems import RECORD_SETTINGS, Lab, Record, SystemConformance  # noqa: E402

from s4node.config.config import Config  # noqa: E402
from s4node.errors import ConfigError, StartpointError, UnknownStream  # noqa: E402
from s4node.offsets.startpoint import Oldest, Timestamp, Upcoming  # noqa: E402
from s4node.offsets.system import SystemStreamPartition  # noqa: E402
from s4node.runtime.container.container import Container  # noqa: E402
from s4node.systems.embedded_log import EmbeddedLog  # noqa: E402
from s4node.systems.live import LiveSource  # noqa: E402
from s4node.systems.memory import MemorySystem  # noqa: E402
from s4node.systems.registry import Systems  # noqa: E402


class TestMemory(SystemConformance):
    @asynccontextmanager
    async def lab(self) -> AsyncIterator[Lab]:
        lab = MemoryLab()
        with plain_errors():
            async with trio.open_nursery() as nursery:
                await nursery.start(lab.memory.run)
                yield lab
                nursery.cancel_scope.cancel()


class LogLab(Lab):
    """A log that a container serves, which stops and starts again at the same port."""

    def __init__(self, folder: Path, nursery: trio.Nursery) -> None:
        self._address = f"tcp://127.0.0.1:{free_port()}"
        self._settings = {
            "s4.log.folder": str(folder),
            "s4.listener.address": self._address,
            "s4.watchdog.ms": "0",
        }
        self._nursery = nursery
        self._ended = trio.Event()
        self.system = self.log = EmbeddedLog("log", self._address)

    async def serve(self) -> None:
        self._node = Container(OnePE(Ignore, "ignored"), Config.from_values(self._settings))
        self._ended = trio.Event()
        self._nursery.start_soon(self._run, self._node, self._ended)
        await self._node.ready.wait()

    async def _run(self, node: Container, ended: trio.Event) -> None:
        await node.run()
        ended.set()

    async def create(self, stream: str, partitions: int) -> None:
        await self.log.create(stream, partitions)

    async def drop(self, stream: str) -> None:
        await self.log.ask("drop", {"stream": stream})

    async def trim(self, stream: str, partition: int, below: int) -> None:
        await self.log.trim(stream, partition=partition, offset=below)

    async def go_away(self) -> None:
        self._node.stop()
        await self._ended.wait()

    async def come_back(self) -> None:
        await self.serve()


class TestEmbeddedLog(SystemConformance):
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path / "log"

    @pytest.fixture
    def open_lab(self, folder: Path) -> Callable[[], AbstractAsyncContextManager[Lab]]:
        @asynccontextmanager
        async def lab() -> AsyncIterator[Lab]:
            with plain_errors():
                async with trio.open_nursery() as nursery:
                    lab = LogLab(folder, nursery)
                    await lab.serve()
                    await nursery.start(partial(EmbeddedLog.run, lab.log))
                    yield lab
                    nursery.cancel_scope.cancel()

        return lab


async def test_live_sockets_begin_with_what_is_upcoming_and_nowhere_else() -> None:
    source = LiveSource(["clicks"], 4)
    ssp = SystemStreamPartition("live", "clicks", 0)
    assert await source.partitions("clicks") == 4
    assert await source.resolve(ssp, Upcoming()) == 0
    for startpoint in (Oldest(), Timestamp(0)):
        with pytest.raises(StartpointError, match="live sockets, which keep no events"):
            await source.resolve(ssp, startpoint)


def test_an_unknown_system_is_an_error_that_names_those_there_are() -> None:
    systems = Systems(
        Config.from_values({"systems.old.type": "log", "systems.old.address": "tcp://h:1"})
    )
    with pytest.raises(UnknownStream, match=r"no system 'log'; .*set systems\.log\.address to "):
        systems["log"]
    with pytest.raises(UnknownStream, match=r"'archive'; known .*: live, old.*systems\.archive"):
        systems["archive"]


def test_a_custom_system_is_made_once_with_its_name_and_configuration() -> None:
    systems = Systems(
        Config.from_values(
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
        ({"systems.a.b.type": "log"}, "use a name without dots"),
        ({"systems.live.type": "log"}, "use a name other than live, which is the sockets"),
        ({"systems.a.address": "tcp://h:1"}, "systems.a.type is not; set it"),
        ({"systems.a.type": "nowhere:Nothing"}, "cannot be imported"),
        ({"systems.a.type": "s4node.systems.live:LiveSource"}, "has no run, wait_reachable"),
        ({"systems.a.type": "log"}, "set systems.a.address"),
    ],
)
def test_what_is_wrong_with_a_system_s_settings_is_said(
    settings: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Systems(Config.from_values(settings))["a"]


def test_kafka_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    monkeypatch.delitem(sys.modules, "s4node.systems.kafka", raising=False)
    monkeypatch.delitem(sys.modules, "s4node.systems.kafka_reader", raising=False)
    settings = {"systems.orders.type": "kafka", "systems.orders.address": "h:9092"}
    with pytest.raises(ConfigError, match=r"orders\.type = kafka needs .*'s4node\[kafka\]'"):
        Systems(Config.from_values(settings))["orders"]


# -- set-up ---------------------------------------------------------------------------------------


class MemoryLab(Lab):
    ends = True

    def __init__(self) -> None:
        self.system = self.memory = MemorySystem(config=Config.from_values(RECORD_SETTINGS))

    async def create(self, stream: str, partitions: int) -> None:
        self.memory.create(stream, partitions, epochs=True)

    async def grow(self, stream: str, partitions: int) -> bool:
        self.memory.create(stream, partitions, epochs=True)
        return True

    async def lose_end(self, stream: str, partition: int, first: int) -> bool:
        self.memory.lose_end(stream, partition, first)
        return True

    async def drop(self, stream: str) -> None:
        self.memory.remove_stream(stream)

    async def put_records(self, stream: str, *records: Record) -> bool:
        self.memory.create(stream, 1, records=True)
        for key, value, time_ms, headers in records:
            self.memory.put_record(stream, 0, value, key=key, created_ms=time_ms, headers=headers)
        return True

    async def trim(self, stream: str, partition: int, below: int) -> None:
        self.memory.trim(stream, partition, below)

    async def remove(self, stream: str, partition: int, *offsets: int) -> bool:
        self.memory.remove(stream, partition, *offsets)
        return True

    async def go_away(self) -> None:
        self.memory.go_away()

    async def come_back(self) -> None:
        self.memory.come_back()

    async def end(self, stream: str, partition: int) -> None:
        self.memory.end_partition(stream, partition)
