"""The hosts of a cluster in memory: their processes, their folders, and what goes wrong there.

Rules
- A host runs one container, in a run of its own, and starts it again a second after it has ended,
  as a node does.
- A killed process goes on no more. Its folder stays as it is at that moment: it is copied, all that
  the process has open there is closed, and the copy gets its place. A process that is killed at a
  failpoint raises an exception there, once its folder is copied; nothing that it still does reaches
  the world.
- The coordination, the store and the network belong to no host.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import assert_never

from s4node import failpoints
from s4node.app.app import App
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.config.config import Config
from s4node.errors import ConfigError, GraphError, S4Error, leaves
from s4node.open_files import close_below
from s4node.runtime.container.container import Container
from s4node.testing.faults import Fault
from s4node.testing.memory_coordination import MemoryCoordination
from s4node.testing.memory_store import URL
from s4node.testing.runs import Run
from s4node.testing.world import World

SESSION_SECONDS = 2.0
POINTS = [
    name
    for name in failpoints.POINTS
    if name.startswith(
        (
            *("startpoint.", "claim.", "commit.", "pieces.", "ship.", "outbox.", "checkpoint."),
            "standby.",
        )
    )
]
"""The failpoints at which a process may be killed."""

_CLUSTER = "default"
_PORT = 7000
_RESTART_SECONDS = 1.0
_COPY_TRIES = 5


class Killed(BaseException):
    """Ends what runs in a process that was killed at a failpoint."""


class Host:
    """A host, and the process on it, if there is one."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.address = f"tcp://{name}:{_PORT}"
        self.run: Run | None = None
        self.container: Container | None = None
        self.ahead = 0.0
        self.away: list[Fault] = []
        """Kills of the host that have not ended: it does not start."""
        self.fatal: list[Fault] = []
        """Kills that wait for the process to pass a failpoint."""
        self.full = False
        """True while nothing can be written to its disk."""
        self.errors: list[Exception] = []
        """What has ended its containers."""

    @property
    def ready(self) -> bool:
        return self.container is not None and self.container.ready.is_set()


class Hosts:
    """The hosts of a world with ``folder``; ``make`` makes the app for each container."""

    def __init__(
        self,
        folder: Path,
        names: list[str],
        make: Callable[[], App],
        values: Mapping[str, str],
        seed: int,
    ) -> None:
        self.world = World(_delay, seed, "program")
        self.world.on_point = self._passed
        network = self.world.network
        self.world.call_seconds = network.delay
        self.coordination = MemoryCoordination(
            self.world.runs, folder, network.delay, session_timeout=SESSION_SECONDS
        )
        with suppress(ImportError):  # without fsspec, the setting of a URL says what to install
            from s4node.testing import memory_file_system  # noqa: F401
        self.each = {name: Host(name, folder / name) for name in names}
        self._folder = folder
        self._make = make
        self._values = values
        self._closed = False
        for host in self.each.values():
            host.folder.mkdir()

    def start(self, host: Host) -> None:
        """Start the container of a host, unless it runs or is to stay down."""
        if host.run is None and not host.away and not self._closed:
            host.run = self.world.add(host.name, partial(self._live, host))
            host.run.ahead = host.ahead

    def close(self) -> None:
        self._closed = True
        self.world.close()
        close_below(self._folder)
        self.coordination.tree.close()

    async def _live(self, host: Host, run: Run) -> None:
        """Run a container; note what ends it."""
        try:
            async with self.coordination.session(host.name) as session:
                app = self._make()
                app.clock = lambda: self.world.now
                enrolment = Enrolment(
                    session, _CLUSTER, app.name, host.name, len(self.each), node=host.name
                )
                host.container = Container(
                    app, self._config(host), node=host.name, enrolment=enrolment
                )
                await host.container.run()
        except BaseException as error:
            found = [one for one in leaves(error) if isinstance(one, Exception)]
            host.errors += found
            if not found or any(isinstance(one, (ConfigError, GraphError)) for one in found):
                raise
        finally:
            if host.run is run:
                host.run = host.container = None
                self._start_later(host)

    def _config(self, host: Host) -> Config:
        return Config.from_values(
            {
                "s4.coordination.folder": str(self._folder / "none"),
                "s4.state.url": URL,
                **self._values,
                "s4.listener.address": host.address,
                "s4.state.folder": str(host.folder),
                "s4.watchdog.ms": "0",  # time stands still during a step
                "job.container.thread.pool.size": "0",
            }
        )

    def _start_later(self, host: Host) -> None:
        runs = self.world.runs
        runs.after(runs.now + _RESTART_SECONDS, None, partial(self.start, host))

    # -- faults ------------------------------------------------------------------------------

    def plan(self, fault: Fault) -> None:
        """Have a fault happen; raises S4Error if there is no such host."""
        for name in (fault.host, fault.other):
            if name and name not in self.each:
                raise S4Error(f"{fault}: no host {name!r}; the hosts are {', '.join(self.each)}")
        host, runs = self.each[fault.host], self.world.runs
        runs.after(fault.at, None, partial(self._inflict, host, fault))
        runs.after(fault.until, None, partial(self._undo, host, fault))

    def _inflict(self, host: Host, fault: Fault) -> None:
        network = self.world.network
        match fault.kind:
            case "stop":
                if host.run is not None and host.container is not None:
                    self.world.runs.soon(host.run, host.container.stop)
            case "kill process" | "kill host" | "lose host":
                if fault.point:
                    host.fatal.append(fault)
                else:
                    self._kill(host, fault)
            case "pause":
                if host.run is not None:
                    self.world.runs.pause(host.run)
            case "cut off":
                network.cut(host.name)
            case "cut apart":
                network.cut(host.name, fault.other)
            case "hold":
                network.hold(host.name, fault.other)
            case "slow":
                network.slow.add(host.name)
            case "full disk":
                host.full = True
            case "lose coordination":
                self.coordination.lost.add(host.name)
            case "lose store":
                self.world.store.lost.add(host.name)
            case "doubt store":
                self.world.store.doubtful.add(host.name)
            case "set clock":
                self._set_clock(host, fault.seconds)
            case _:
                assert_never(fault.kind)

    def _undo(self, host: Host, fault: Fault) -> None:
        network = self.world.network
        match fault.kind:
            case "kill process":
                host.fatal = [each for each in host.fatal if each is not fault]
            case "kill host" | "lose host":
                if fault in host.fatal:
                    host.fatal.remove(fault)
                elif fault in host.away:
                    host.away.remove(fault)
                    self.start(host)
            case "pause":
                if host.run is not None:
                    self.world.runs.resume(host.run)
            case "cut off":
                network.heal(host.name)
            case "cut apart":
                network.heal(host.name, fault.other)
            case "hold":
                network.let_go(host.name, fault.other)
            case "slow":
                network.slow.discard(host.name)
            case "full disk":
                host.full = False
            case "lose coordination":
                self.coordination.lost.discard(host.name)
            case "lose store":
                self.world.store.lost.discard(host.name)
            case "doubt store":
                self.world.store.doubtful.discard(host.name)
            case "set clock":
                self._set_clock(host, -fault.seconds)

    def _set_clock(self, host: Host, seconds: float) -> None:
        host.ahead += seconds
        if host.run is not None:
            host.run.ahead = host.ahead

    def _passed(self, run: Run, point: str) -> None:
        """Kill a process that passes its failpoint, and refuse what a full disk refuses."""
        host = self.each.get(run.name)
        if host is None or host.run is not run:
            return
        if host.full and point == "rows.write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for fault in host.fatal:
            if fault.point == point:
                host.fatal.remove(fault)
                self._kill(host, fault)
                raise Killed

    def _kill(self, host: Host, fault: Fault) -> None:
        run, container = host.run, host.container
        host.run = host.container = None
        if fault.kind == "kill process":
            self._start_later(host)
        else:
            host.away.append(fault)
        if run is None:
            return
        copy = host.folder.with_suffix(".copy")
        _copy(host.folder, copy)
        runs = self.world.runs
        runs.kill(run)
        self.world.network.killed(run)
        if container is not None:
            container.abandon()  # what runs when it is freed is not the app's
        if fault.kind == "kill process":
            self.coordination.process_died(run)

        def replace_folder() -> None:
            close_below(host.folder)
            shutil.rmtree(host.folder)
            if fault.kind == "lose host":
                shutil.rmtree(copy)
                host.folder.mkdir()
            else:
                copy.rename(host.folder)

        close_below(host.folder)
        runs.after(runs.now, None, replace_folder)  # after the step in which it dies


def _copy(folder: Path, copy: Path) -> None:
    for left in range(_COPY_TRIES, -1, -1):
        try:
            shutil.copytree(folder, copy)
        except (shutil.Error, FileNotFoundError):  # RocksDB removes files in a thread of its own
            shutil.rmtree(copy, ignore_errors=True)
            if not left:
                raise
        else:
            return


def _delay(chance: Random) -> float:
    return chance.uniform(0.0002, 0.003)
