"""ClusterTest: an app on several hosts in one process, which are killed, cut and paused by a seed.

Rules
- The seed decides all that happens: the same seed gives the same trace.
- Programs that send, and the log, are each on a host of their own. Only faults that are planned by
  name happen there.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, overload

from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import InputStream
from s4node.errors import S4Error
from s4node.events.keys import Key
from s4node.net.egress.refusal import Refusal
from s4node.runtime.container.container import Container
from s4node.runtime.inputs.binding import replayable
from s4node.runtime.task.gate import Phase
from s4node.runtime.task.pe_processor import PeProcessor
from s4node.runtime.task.task import Task
from s4node.testing.app_test import prototype_of
from s4node.testing.faults import LOG, Fault, schedule
from s4node.testing.hosts import POINTS, SESSION_SECONDS, Host, Hosts, Process
from s4node.testing.memory_network import Message
from s4node.testing.processes import (
    Commands,
    Place,
    Program,
    config_of,
    container_of,
    ends_of,
    is_busy,
    read_to,
    run_log,
    waiting_in,
)
from s4node.testing.runtime import shared_folder
from s4node.testing.seeds import recorded

P = TypeVar("P", bound=ProcessingElement)

_START_SECONDS = 60.0
"""For how long a command waits for a container of its app."""


class Usage(NamedTuple):
    """Counts of what a cluster holds on to.

    They are the ``sessions`` of its coordination, the ``objects`` at the URL and their bytes, the
    ``files`` in the folders of its hosts and those that are open, and the ``producers`` that
    containers know, each once for each stream and partition. In memory it has the ``tasks`` of trio
    in its processes, their ``connections``, and the ``waiting`` events: in stages, and on their way
    to other tasks and apps.
    """

    sessions: int
    objects: int
    object_bytes: int
    files: int
    open_files: int
    producers: int
    tasks: int
    connections: int
    waiting: int


class ClusterTest:
    """Runs an app on several hosts inside a test, with faults.

    ::

        with ClusterTest(Game, hosts=3, seed=7) as test:
            test.faults(2, seconds=5)
            for n in range(50):
                test.send("hits", Hit(f"player-{n % 5}"))
                test.advance(seconds=0.1)
            test.settle()
            assert test.state(Player, "player-0").points == 10

    ``app`` makes the app of each container: its class, or a function. Several apps run beside each
    other, and take each other's output streams. Each host has so many ``containers`` of an app,
    which are processes of their own and share its folder. With a ``log``, apps read inputs of the
    system ``log`` from a host of this name.

    Live inputs are durable only if the ``settings`` say so, which are those of all apps, or a list
    with those of each. State is in a folder of each host and at a URL, both in memory.
    ``parameters`` become ``app.parameters``. A container that ends with an error starts again a
    second later. If the block ends with an error, the seed and the faults are added to it.
    """

    def __init__(
        self,
        app: Callable[[], App] | Sequence[Callable[[], App]],
        *,
        hosts: int = 2,
        containers: int = 1,
        partitions: int = 4,
        log: bool = False,
        seed: int = 0,
        parameters: Mapping[str, object] | None = None,
        settings: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
    ) -> None:
        self._apps = list(app) if isinstance(app, Sequence) else [app]
        if not (self._apps and hosts > 0 and containers > 0):
            raise S4Error("a ClusterTest needs at least one app, one host and one container")
        self._containers = containers
        each = settings if isinstance(settings, Sequence) else [settings or {}] * len(self._apps)
        values = {f"s4.app.{name}": str(value) for name, value in (parameters or {}).items()}
        values["s4.cluster.partitions"] = str(partitions)
        self._values = [{**values, **one} for one in each]
        self._partitions = [partitions] * len(self._apps)
        self._has_log = log
        self._seed = seed
        self._names = [f"host{number}" for number in range(1, hosts + 1)]
        self.refused: list[Refusal] = []
        """Events that will not be processed, and why."""
        self.planned: list[Fault] = []
        """The faults, in the order of their planning."""
        self._schedules = 0
        self._members: list[list[Process]] = []  # the containers of each app
        self._programs: dict[str, Program] = {}
        self._takers: dict[str, list[str]] = {}  # the addresses to which a stream is sent
        self._folder: tempfile.TemporaryDirectory[str]
        self._hosts: Hosts

    def __enter__(self) -> ClusterTest:
        self._folder = tempfile.TemporaryDirectory(prefix="s4-test-", dir=shared_folder())
        self._hosts = Hosts(Path(self._folder.name), self._seed)
        run = recorded.get()
        if run is not None:
            run.traces.append(self.trace)
        try:
            self._add_processes()
            self.settle()
            self._find_takers()
            self.add_program("program")
        except BaseException:
            self._close()
            raise
        return self

    def _add_processes(self) -> None:
        hosts, log = self._hosts, ""
        if self._has_log:
            log = hosts.add(LOG, LOG, run_log).address
        count = self._containers * len(self._names)
        for make, values in zip(self._apps, self._values, strict=True):
            main = container_of(hosts, make, values, of=count, log=log)
            members: list[Process] = []
            for host in self._names:
                for _ in range(self._containers):
                    number = len(hosts.each[host].processes) + 1 if host in hosts.each else 1
                    several = self._containers * len(self._apps) > 1
                    name = f"{host}-{number}" if several else host
                    members.append(hosts.add(name, host, main))
            self._members.append(members)
        for process in hosts.processes.values():
            hosts.start(process)

    def _find_takers(self) -> None:
        for members in self._members:
            container = members[0].container
            assert container is not None
            for stream in container.app.streams.values():
                if isinstance(stream, InputStream):
                    live = stream.is_live
                    takers = members if live else [self._hosts.processes[stream.system]]
                    self._takers[stream.name] = [each.address for each in takers]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            faults = "".join(f"\n    {fault}," for fault in self.planned)
            error.add_note(f"ClusterTest: seed={self._seed}, faults: [{faults}]")
        self._close()

    def _close(self) -> None:
        try:
            self._hosts.close()
        finally:
            self._folder.cleanup()

    # -- what a test does --------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The time in seconds; it begins at 0, and is what ``app.clock()`` returns."""
        return self._hosts.world.now

    def add_program(self, name: str, *, keeps_id: bool = True) -> None:
        """Add a program that sends, on a host of this name.

        If faults kill it, it starts again. With its id it sends all again, from the first event
        on; one that does not keep an id sends what has no verdict.
        """
        program = Program(name, self._takers.__getitem__, self.refused, keeps_id=keeps_id)
        program.process = self._hosts.add(name, name, program.run)
        self._programs[name] = program
        self._hosts.start(program.process)

    def send(self, stream: str, *events: Any, program: str = "program") -> None:
        """Have a program send events to an input, in order. It resends what has no verdict."""
        if stream not in self._takers:
            known = ", ".join(self._takers) or "none"
            raise LookupError(f"no app has an input {stream!r}; known: {known}")
        if program not in self._programs:
            raise LookupError(f"no program {program!r}; known: {', '.join(self._programs)}")
        self._programs[program].send(stream, events, self._hosts.world.runs)
        self._hosts.world.wait_idle()
        self._raise_failure()

    def take_savepoint(self, name: str) -> None:
        """Take a savepoint of the first app, as ``s4 savepoint take``; faults happen meanwhile."""
        self._commands.take_savepoint(name)

    def go_back(self, savepoint: str) -> None:
        """Have the first app go on from a savepoint; what came after it is lost.

        Its containers stop in order, and start again.
        """
        self._commands.go_back(savepoint)

    def repartition(self, partitions: int) -> None:
        """Give the first app another number of partitions; its containers stop and start again."""
        self._commands.repartition(partitions)
        self._values[0]["s4.cluster.partitions"] = str(partitions)
        self._partitions[0] = partitions

    @property
    def _commands(self) -> Commands:
        folder = Path(self._folder.name) / "commands"
        folder.mkdir(exist_ok=True)
        members = self._members[0]
        config = config_of(folder, self._values[0])
        return Commands(self._hosts, self._app_name(members), config, members)

    def _app_name(self, members: Sequence[Process]) -> str:
        def running() -> list[Container]:
            return [each.container for each in members if each.container is not None]

        self._hosts.world.pass_time(
            _START_SECONDS, lambda: bool(running())
        )  # faults may have ended all of them
        self._raise_failure()
        if not running():
            raise S4Error(f"no container of the app has run for {_START_SECONDS:g} s")
        return running()[0].app.name

    def advance(self, seconds: float) -> None:
        """Move the clock, and run what falls due on the way; faults, too."""
        self._hosts.world.pass_time(seconds)
        self._raise_failure()

    def plan(self, *faults: Fault) -> None:
        """Have these faults happen. Raises S4Error for an unknown host."""
        for fault in faults:
            self._hosts.plan(fault)
            self.planned.append(fault)

    def faults(
        self, count: int, *, seconds: float, hosts: Sequence[str] | None = None
    ) -> list[Fault]:
        """Plan so many faults, chosen by the seed, that begin within ``seconds`` from now.

        They happen to ``hosts``, which may also be ``log`` and programs; without them, to all that
        run apps.
        """
        again = f" {self._schedules}" if self._schedules else ""
        self._schedules += 1
        found = schedule(
            f"faults {self._seed}{again}",
            self._names if hosts is None else hosts,
            others=self._names,
            count=count,
            start=self.now,
            seconds=seconds,
            session_seconds=SESSION_SECONDS,
            points=POINTS,
        )
        run = recorded.get()
        if run is not None:
            first = len(run.chosen)
            run.chosen.extend(found)
            found = [f for number, f in enumerate(found, first) if number not in run.left_out]
        self.plan(*found)
        return found

    def settle(self, seconds: float = 30) -> None:
        """Wait until all faults have ended, and then until the cluster is healthy by itself.

        It is healthy if each host runs, each partition runs on one, all that was sent is
        committed, and no event is on its way. Raises S4Error if that takes more than ``seconds`` of
        the clock; it says what is missing, and where each task waits.
        """
        self.advance(max([0.0, *(fault.until - self.now for fault in self.planned)]))
        self._hosts.world.pass_time(seconds, lambda: next(self._missing(), None) is None)
        self._raise_failure()
        missing = [*self._missing()]
        if missing:
            raise self._hosts.world.hangs(
                f"not healthy {seconds:g} s after the last fault: {'; '.join(missing)}"
            )

    # -- what a test looks at ----------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """The number of events that were sent and have no verdict: in a durable stream, those that
        are not committed."""
        return sum(sum(program.unanswered.values()) for program in self._programs.values())

    @property
    def trace(self) -> list[Message]:
        """Every message that has arrived, and every commit that was put at the URL."""
        return self._hosts.world.network.trace

    @property
    def usage(self) -> Usage:
        """The resources that the cluster holds now, which may not grow for ever."""
        hosts, world = self._hosts, self._hosts.world
        containers = [each.container for members in self._members for each in members]
        lanes = [
            lane
            for container in containers
            if container is not None
            for port in container.ports.values()
            for lane in port.admission.lanes
        ]
        folder = Path(self._folder.name)
        opened = (os.path.realpath(each) for each in Path("/proc/self/fd").glob("*"))
        return Usage(
            sessions=len(hosts.coordination.sessions),
            objects=len(world.store.objects),
            object_bytes=sum(map(len, world.store.objects.values())),
            files=sum(1 for each in folder.rglob("*") if each.is_file()),
            open_files=sum(Path(each).is_relative_to(folder) for each in opened),
            producers=len(lanes),
            tasks=sum(len(run.runner.tasks) for run in world.runs.all),
            connections=world.network.connections,
            waiting=sum(map(waiting_in, filter(None, containers))),
        )

    @property
    def errors(self) -> dict[str, list[Exception]]:
        """The errors that have ended containers, by host."""
        return {name: self._hosts.each[name].errors for name in self._names}

    @overload
    def state(self, pe: type[P], key: Key | None = None) -> P: ...

    @overload
    def state(self, pe: str, key: Key | None = None) -> Any: ...

    def state(self, pe: str | type[ProcessingElement], key: Key | None = None) -> Any:
        """The PE's instance of ``key``, or a copy of the saved one if it is not in memory.

        Name the PE by its class, or by its name if several have that class. Raises LookupError if
        there is no instance.
        """
        known: set[str] = set()
        tasks: list[tuple[str, Task]] = []
        for members in self._members:
            containers = [each.container for each in members if each.container is not None]
            for container in containers:
                try:
                    name = prototype_of(container.app, pe).name
                except LookupError as error:
                    known.add(str(error))
                    break
                tasks += [(name, task) for task in container.tasks.values()]
        running = lambda each: each[1].gate.phase is Phase.RUNNING  # noqa: E731
        for name, task in sorted(tasks, key=running, reverse=True):  # a former owner has it, too
            if isinstance(task.processor, PeProcessor):
                found = task.processor.instance_of(name, key)
                if found is not None:
                    return found
        if len(known) == len(self._members):
            raise LookupError("; ".join(sorted(known)))
        raise LookupError(f"{pe} has no instance of key {key!r} on any host")

    # -- inside ------------------------------------------------------------------------------

    def _missing(self) -> Iterator[str]:
        """The faults that keep the cluster from being healthy; the quick checks come first."""
        for process in self._hosts.processes.values():
            if not process.ready():
                yield f"{process.name} does not run{_last(process.host)}"
        for program in self._programs.values():
            for name, count in program.unanswered.items():
                if count:
                    yield f"{count} events to {name!r} are not committed"
        read: dict[Place, int] = {}
        inputs: set[str] = set()
        for members, partitions in zip(self._members, self._partitions, strict=True):
            owned: Counter[int] = Counter()
            for process in members:
                container = process.container
                if container is None or not process.ready():
                    continue
                owned.update(
                    partition
                    for partition, task in container.tasks.items()
                    if task.gate.phase is Phase.RUNNING
                )
                if is_busy(container):
                    yield f"events are on their way on {process.name}"
                for place, offset in read_to(container).items():
                    read[place] = max(offset, read.get(place, offset))
                inputs |= {each.name for each in replayable(container.app)}
            for partition in range(partitions):
                if owned[partition] != 1:
                    yield f"partition {partition} runs on {owned[partition]} hosts"
        log = self._hosts.processes[LOG].log if self._has_log else None
        for place, end in ({} if log is None else ends_of(log)).items():
            if place[0] in inputs and read.get(place, -1) < end:
                yield f"{place} of the log is not read to {end}"

    def _raise_failure(self) -> None:
        if self._hosts.world.failures:
            raise self._hosts.world.failures[0]


def _last(host: Host) -> str:
    return f" ({host.errors[-1]})" if host.errors else ""
