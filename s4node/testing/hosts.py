"""The hosts of a cluster in memory: their processes, their folders, and what goes wrong there.

Rules
- A host has processes, each in a run of its own. A process that has ended starts again a second
  later, as a node starts its containers. The processes of a host share its folder.
- A killed process goes on no more. The folder stays as it is at that moment: it is copied, all that
  the process has open there is closed, and the copy gets its place, except for what other
  processes have open. A process that is killed at a failpoint raises an exception there, once the
  folder is copied; nothing that it still does reaches the world.
- The coordination, the store and the network belong to no host.
- Of faults of one kind that overlap on a host, the last end counts.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from s4node import failpoints
from s4node.cluster.coordination.entries import AppId
from s4node.cluster.coordination.registry import Registry
from s4node.errors import ConfigError, GraphError, S4Error, leaves
from s4node.log.host import LogHost
from s4node.runtime.container.container import Container
from s4node.testing.faults import OF_PROCESSES, Fault, Kind, problem
from s4node.testing.memory_coordination import MemoryCoordination
from s4node.testing.runs import Run
from s4node.testing.world import World

CLUSTER = "default"
SESSION_SECONDS = 2.0
POINTS = [
    name
    for name in failpoints.POINTS
    if name.startswith(
        (
            *("startpoint.", "claim.", "commit.", "pieces.", "ship.", "outbox.", "checkpoint."),
            *("standby.", "log."),
        )
    )
]
"""The failpoints at which a process may be killed."""

_FIRST_PORT = 7000
_RESTART_SECONDS = 1.0
_COPY_TRIES = 5

Effect = Callable[[Fault], object]


class Killed(BaseException):
    """Ends what runs in a process that was killed at a failpoint."""


class DiskFullError(OSError, sqlite3.OperationalError):
    sqlite_errorcode = sqlite3.SQLITE_FULL


def _no() -> bool:
    return False


class Process:
    """A process on a host, which runs ``main``; ``run`` is None while it does not run."""

    def __init__(
        self, name: str, host: Host, port: int, main: Callable[[Process], Awaitable[None]]
    ) -> None:
        self.name = name
        self.host = host
        self.main = main
        self.address = f"tcp://{host.name}:{port}"
        self.run: Run | None = None
        self.container: Container | None = None
        self.log: LogHost | None = None
        self.ready: Callable[[], bool] = _no
        self.stop: Callable[[], object] | None = None
        """Ends it in order."""


class Host:
    """A host, and what runs there."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.processes: list[Process] = []
        self.ahead = 0.0
        """By how much its clock on the wall is ahead, in seconds."""
        self.away: list[Fault] = []
        """Kills of the host that have not ended: it does not start."""
        self.errors: list[Exception] = []
        """The errors that have ended its processes."""

    @property
    def runs(self) -> list[Run]:
        return [process.run for process in self.processes if process.run is not None]


class Hosts:
    def __init__(self, folder: Path, seed: int) -> None:
        world = self.world = World(lambda chance: chance.uniform(0.0002, 0.003), seed)
        world.on_point = self._passed
        network = world.network
        world.call_seconds = network.delay
        self.coordination = MemoryCoordination(
            world.runs, folder, network.delay, session_timeout=SESSION_SECONDS
        )
        world.coordination = lambda: self.coordination
        with suppress(ImportError):  # without fsspec, the setting of a URL says what to install
            from s4node.testing import memory_file_system  # noqa: F401
        self.each: dict[str, Host] = {}
        self.processes: dict[str, Process] = {}
        self.held: set[Process] = set()
        """Processes that are not started: a command needs them stopped."""
        self._folder = folder
        self._closed = False
        self._lasting: list[Fault] = []
        self._fatal: list[Fault] = []  # kills that wait for a process to pass a failpoint
        self._full: set[str] = set()
        self._effects: dict[Kind, tuple[Effect, Effect]] = {
            "stop": (self._stop, lambda _: None),
            "kill process": (self._strike, self._spare),
            "kill host": (self._strike, self._spare),
            "lose host": (self._strike, self._spare),
            "pause": (self._pause, self._resume),
            "cut off": self._on_path(network.cut, network.heal),
            "cut apart": self._on_path(network.cut, network.heal),
            "hold": self._on_path(network.hold, network.let_go),
            "slow": self._within(network.slow),
            "full disk": self._within(self._full),
            "lose coordination": self._within(self.coordination.lost),
            "lose store": self._within(world.store.lost),
            "doubt store": self._within(world.store.doubtful),
            "set clock": (self._set_clock, self._set_clock),
            "drain": self._on_path(
                lambda host, _: self._change_drain(Registry.add_drained, host),
                lambda host, _: self._change_drain(Registry.remove_drained, host),
            ),
        }

    def add(self, name: str, host: str, main: Callable[[Process], Awaitable[None]]) -> Process:
        if host not in self.each:
            self.each[host] = Host(host, self._folder / host)
            self.each[host].folder.mkdir()
        home = self.each[host]
        process = Process(name, home, _FIRST_PORT + len(home.processes), main)
        home.processes.append(process)
        self.processes[name] = process
        return process

    def start(self, process: Process) -> None:
        """Start a process, unless it runs or is to stay down."""
        down = process.host.away or process in self.held or self._closed
        if process.run is None and not down:
            process.run = self.world.add(process.host.name, partial(self._live, process))
            process.run.label = process.name
            process.run.ahead = process.host.ahead

    def close(self) -> None:
        self._closed = True
        self.world.close()
        self.coordination.tree.close()

    async def _live(self, process: Process, run: Run) -> None:
        try:
            await process.main(process)
        except BaseException as error:
            found = [one for one in leaves(error) if isinstance(one, Exception)]
            process.host.errors += found
            if not found or any(isinstance(one, (ConfigError, GraphError)) for one in found):
                raise
        finally:
            if process.run is run:
                self._ended(process)
                self._start_later(process)

    def _ended(self, process: Process) -> None:
        process.run = process.container = process.log = process.stop = None
        process.ready = _no

    def _start_later(self, process: Process) -> None:
        runs = self.world.runs
        runs.after(runs.now + _RESTART_SECONDS, None, partial(self.start, process))

    # -- faults ------------------------------------------------------------------------------

    def plan(self, fault: Fault) -> None:
        """Have a fault happen; raises S4Error for one that cannot."""
        known = dict.fromkeys([*self.each, *(self.processes if fault.kind in OF_PROCESSES else ())])
        wrong = problem(fault, known)
        if wrong:
            raise S4Error(f"{fault}: {wrong}")
        self.world.runs.after(fault.at, None, partial(self._inflict, fault))
        self.world.runs.after(fault.until, None, partial(self._undo, fault))

    def _inflict(self, fault: Fault) -> None:
        self._lasting.append(fault)
        begin, _ = self._effects[fault.kind]
        begin(fault)

    def _undo(self, fault: Fault) -> None:
        self._lasting.remove(fault)
        _, end = self._effects[fault.kind]
        end(fault)

    def _on_path(
        self, begin: Callable[[str, str], object], end: Callable[[str, str], object]
    ) -> tuple[Effect, Effect]:
        """An effect on what a host sends to another one, or to all, until the last such fault."""

        def end_last(fault: Fault) -> None:
            if _ground(fault) not in map(_ground, self._lasting):
                end(fault.host, fault.other)

        return lambda fault: begin(fault.host, fault.other), end_last

    def _within(self, hosts: set[str]) -> tuple[Effect, Effect]:
        """A host is in the set for as long as a fault lasts."""
        return self._on_path(lambda host, _: hosts.add(host), lambda host, _: hosts.discard(host))

    def _hit(self, fault: Fault) -> list[Process]:
        if fault.host in self.each:
            return self.each[fault.host].processes
        return [self.processes[fault.host]]

    def _stop(self, fault: Fault) -> None:
        for process in self._hit(fault):
            if process.run is not None and process.stop is not None:
                self.world.runs.soon(process.run, process.stop)

    def _pause(self, fault: Fault) -> None:
        for process in self._hit(fault):
            if process.run is not None:
                self.world.runs.pause(process.run)

    def _resume(self, fault: Fault) -> None:
        pauses = [each for each in self._lasting if each.kind == "pause"]
        for process in self._hit(fault):
            held = any(process in self._hit(pause) for pause in pauses)
            if process.run is not None and not held:
                self.world.runs.resume(process.run)

    def _set_clock(self, fault: Fault) -> None:
        host = self.each[fault.host]
        lasting = (each for each in self._lasting if each.kind == "set clock")
        host.ahead = sum(each.seconds for each in lasting if each.host == host.name)
        for run in host.runs:
            run.ahead = host.ahead

    def _change_drain(
        self, change: Callable[[Registry, AppId, str], Awaitable[None]], host: str
    ) -> None:
        """Change whether the containers of a host are to hand over their partitions."""
        containers = (each.container for each in self.processes.values())
        apps = sorted({each.app.name for each in containers if each is not None})

        async def report() -> None:
            async with self.coordination.session("drain") as session:
                for app in apps:
                    await change(Registry(session), AppId(CLUSTER, app), host)

        self.world.start_soon(report)

    def _strike(self, fault: Fault) -> None:
        if fault.point:
            self._fatal.append(fault)
        else:
            self._kill(fault)

    def _spare(self, fault: Fault) -> None:
        """End a kill: one that has not happened does not, and a killed host comes back."""
        if fault in self._fatal:
            self._fatal.remove(fault)
        host = self._hit(fault)[0].host
        if fault in host.away:
            host.away.remove(fault)
            for process in host.processes:
                self.start(process)

    def _passed(self, run: Run, point: str) -> None:
        """Kill a process that passes its failpoint, and refuse what a full disk refuses."""
        process = next((each for each in self.processes.values() if each.run is run), None)
        if process is None:
            return
        if point == "disk.write" and process.host.name in self._full:
            raise DiskFullError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for fault in self._fatal:
            if fault.point == point and process in self._hit(fault):
                self._fatal.remove(fault)
                self._kill(fault, process)
                raise Killed

    def _kill(self, fault: Fault, at_point: Process | None = None) -> None:
        hit = self._hit(fault)
        host = hit[0].host
        if fault.kind != "kill process":
            host.away.append(fault)
        elif at_point is not None:
            hit = [at_point]
        killed = [process.run for process in hit if process.run is not None]
        copy = host.folder.with_suffix(".copy")
        if killed:
            _copy(host.folder, copy)
        for process in hit:
            if process.run is not None:
                self._end_run(process, process.run)
            self._ended(process)
            if fault.kind == "kill process":
                self._start_later(process)
        if not killed:
            return

        def replace_folder() -> None:
            for run in killed:
                run.close_files()
            if fault.kind == "lose host":
                shutil.rmtree(copy)
                copy.mkdir()
            _replace(host.folder, copy, {path for run in host.runs for path in run.files.values()})

        runs = self.world.runs
        runs.after(runs.now, None, replace_folder)  # after the step in which it dies

    def _end_run(self, process: Process, run: Run) -> None:
        self.world.runs.kill(run)
        self.world.network.killed(run)
        if process.container is not None:
            process.container.abandon()  # what runs when it is freed is not the app's
        if not process.host.away:
            self.coordination.process_died(run)
        run.close_files()


def _ground(fault: Fault) -> tuple[str, ...]:
    """The key that is equal for faults whose last end counts."""
    ends = (fault.host, fault.other)
    return fault.kind, *(sorted(ends) if fault.kind == "cut apart" else ends)


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


def _replace(folder: Path, copy: Path, kept: Iterable[Path]) -> None:
    kept = [path for path in kept if path.is_relative_to(folder)]
    if not kept:
        shutil.rmtree(folder)
        copy.rename(folder)
        return
    for name in sorted({each.name for each in (*folder.iterdir(), *copy.iterdir())}):
        there, new = folder / name, copy / name
        beside = [path for path in kept if there.parent == path.parent]
        if any(name in (path.name, f"{path.name}-wal", f"{path.name}-shm") for path in beside):
            continue
        below = [path for path in kept if there in path.parents]
        if below and new.is_dir():
            _replace(there, new, below)
            continue
        if there.is_dir():
            shutil.rmtree(there)
        else:
            there.unlink(missing_ok=True)
        if new.exists():
            new.rename(there)
    shutil.rmtree(copy)
