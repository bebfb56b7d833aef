"""``s4 run APP --nodes N``: an app in several container processes on this machine.

Rules
- The containers find each other through a folder that exists as long as the command runs, and so do
  commands such as ``s4 status``. The next command removes the folder of a killed one.
- Clients use one address, the launcher's redirector, which sends them to the containers. The log,
  if there is one, is at that address, too: a single process owns its folder while containers come
  and go.
- A container that dies is restarted as a spare, because others then have its partitions. A
  container whose tasks are done is not restarted, and the command ends when all are done.
- An app that cannot start at all ends the command, with the reason.
- If there are more containers than partitions, the last ones are spares.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from s4node.cluster.node.node_status import NodeStatus
from s4node.cluster.node.own_folder import temporary_coordination
from s4node.cluster.node.redirector import Redirector
from s4node.cluster.node.running import Running, running_entry, settings_for_commands
from s4node.cluster.node.supervisor import (
    ContainerProcess,
    Supervisor,
    limits_of,
    status_of,
    supervising,
)
from s4node.cluster.node.supervisor_protocol import Begin, handed_on, log_of
from s4node.config import settings
from s4node.config.config import Config
from s4node.config.paths import check_travels
from s4node.errors import ContainerFailed
from s4node.process import log_setup
from s4node.process.exit_status import exit_status
from s4node.process.stand_in import StandIn
from s4node.process.stopping import stop_on_signals


@dataclass(frozen=True)
class Launched:
    """A running app. It has the address of its redirector, its input streams, its containers by
    name, and the folder through which they find each other."""

    app: str
    address: str
    inputs: tuple[str, ...]
    containers: Mapping[str, str]
    folder: Path


def launch(target: str, nodes: int, config: Config, on_ready: Callable[[Launched], None]) -> int:
    """Run until a signal or a failure; returns the exit status."""
    log_setup.configure_from(config)
    try:
        check_travels(target)
        with temporary_coordination("s4-run-") as folder:
            launcher = _Launcher(target, nodes, config, folder)
            return trio.run(launcher.run, on_ready)
    except BaseException as error:
        return exit_status(error)


async def _wait_ready(process: ContainerProcess) -> None:
    """Return when the process is ready, or when it was ready and is done."""
    try:
        await process.wait_ready()
    except ContainerFailed:
        if process.failure is not None:
            raise


class _Launcher:
    def __init__(self, target: str, nodes: int, config: Config, folder: Path) -> None:
        self._target = target
        self._nodes = nodes
        self._config = config
        self._folder = folder
        self._stopping = trio.Event()
        self._status = 0
        self._ran = False
        self._redirector: Redirector
        self._supervisor: Supervisor
        self._processes: Sequence[ContainerProcess] = ()

    async def run(self, on_ready: Callable[[Launched], None]) -> int:
        """Run the app; returns the exit status."""
        stopped = False
        async with trio.open_nursery() as nursery:
            with (
                stop_on_signals(self._stopping.set, nursery.cancel_scope),
                running_entry() as entry,
            ):
                redirector = Redirector(self._config, "redirector", self._lookup, self._status_of)
                self._redirector = redirector
                await nursery.start(redirector.run)
                entry.write(
                    Running(
                        pid=os.getpid(),
                        cluster=self._config[settings.CLUSTER_NAME],
                        node="redirector",
                        place=str(self._folder),
                        address=redirector.address,
                        log=bool(self._config[settings.LOG_FOLDER]),
                        settings=settings_for_commands(self._config, redirector.address),
                    )
                )
                async with supervising(limits_of(self._config)) as self._supervisor:
                    for number in range(1, self._nodes + 1):
                        self._supervisor.start(self._begin(f"node-{number}"))
                    nursery.start_soon(self._tell_redirector, redirector)
                    nursery.start_soon(self._announce, redirector, on_ready, nursery)
                    await self._stopping.wait()
                    failures = await self._supervisor.stop()
                    await redirector.finish()
                    stopped = True
                    if not self._status:
                        self._status = 1 if failures else 0
                        for failure in failures:
                            print(f"s4: {failure}", file=sys.stderr)
                nursery.cancel_scope.cancel()
        if self._status:
            return self._status
        if not self._ran:
            print("s4: stopped before it ran", file=sys.stderr)
        return 0 if stopped and self._ran else 130

    def _begin(self, name: str) -> Begin:
        given = handed_on(self._config, self._redirector.address)
        host = self._config[settings.LISTENER_ADDRESS].rpartition(":")[0]
        ours = {settings.LISTENER_ADDRESS.name: f"{host}:0"}
        return Begin(
            "",  # its processes report the name, once they have loaded the app
            name,
            given | ours,
            target=self._target,
            node=name,
            coordination=str(self._folder),
            redirector=self._redirector.address,
            log=log_of(self._config, self._redirector.address),
            expected=self._nodes,
            hold=True,
        )

    async def _announce(
        self, redirector: Redirector, on_ready: Callable[[Launched], None], nursery: trio.Nursery
    ) -> None:
        processes = self._processes = list(self._supervisor.processes)
        try:
            for process in processes:
                await process.wait_prepared()
            for process in processes:
                await process.go()
            for process in processes:
                await _wait_ready(process)
        except ContainerFailed as error:
            if self._stopping.is_set():
                return
            failure = process.failure
            said = failure is not None and not failure.silent
            print(f"{error.trace}s4: {error.reason if said else error}", file=sys.stderr)
            self._status = failure.status if failure is not None else 1
            self._stopping.set()
            return
        first = processes[0]
        app = first.begin.app
        stand_in = StandIn(self._config, self._folder, app, redirector.address, processes)
        await nursery.start(stand_in.run)
        if self._stopping.is_set():
            return
        inputs = tuple(first.prepared.inputs) if first.prepared is not None else ()
        containers = {each.begin.member: each.address for each in processes if each.address}
        self._ran = True
        on_ready(Launched(app, redirector.address, inputs, containers, self._folder))
        while self._supervisor.processes:
            await self._supervisor.changed.wait()
        self._stopping.set()

    async def _tell_redirector(self, redirector: Redirector) -> None:
        while True:
            changed = self._supervisor.changed
            redirector.news()
            await changed.wait()

    def _status_of(self, name: str) -> NodeStatus | None:
        """The status of the node that stands for a container."""
        processes = [each for each in self._processes if each.begin.member == name]
        cluster = self._config[settings.CLUSTER_NAME]
        address = self._redirector.address
        return status_of(name, cluster, address, processes) if processes else None

    def _lookup(self, stream: str, reads: bool) -> list[str] | str:
        """The containers if their app takes ``stream``, or with ``reads`` puts events on it."""
        prepared = [each.prepared for each in self._supervisor.processes if each.prepared]
        known = {name for each in prepared for name in each.inputs}
        if reads or stream in known or not known:  # no container has reported its inputs yet
            return [process.address for process in self._supervisor.processes if process.address]
        return (
            f"app {prepared[0].app!r} has no input stream {stream!r}; its input streams: "
            f"{', '.join(sorted(known))}"
        )
