"""One run of a cluster that is killed, cut off and given commands, and counts exactly.

Rules
- Three nodes run the app of ``exact``, whose events take three hops and mostly go between nodes.
  Programs send some of its events, a log has the others, and what comes out goes to the log. What
  the nodes share is up to the scene.
- After each fault the cluster gets well by itself: all nodes are ready, and own all partitions, and
  what a program sends then is committed.
- A killed node is started again, as whoever runs nodes does; a container is started by its node.
- A step of the app that misses an event, or sees it twice, raises. In the end all is killed. What
  the log and the state have must be the truth: each event that a program was told is there counts
  once, and came out in order, once more only for each time that the app has gone back.
"""

from __future__ import annotations

import inspect
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path

import trio
from harness import ROOT, children, free_port, plain_errors, run_s4, s4
from judge import by_key, counted, entries_in, in_lives, wrong_events, wrong_log, wrong_state
from power import Power
from zookeeper_server import ZooKeeperEnsemble

from benchmarks import servers
from s4node import Client, Oldest
from s4node.errors import S4Error
from s4node.events.keys import crc32m
from s4node.failpoints import VARIABLE
from s4node.process import log_setup
from s4node.state import epochs
from s4node.state.browse import StateReader
from s4node.state.database import Database
from s4node.state.job import task_of
from s4node.state.remote_job import RemoteJob
from s4node.state.task_state import TaskState
from torture import exact, machines, places
from torture.exact import Order, order
from torture.faults import COMMANDS, FAULTS, SESSION_SECONDS
from torture.machines import STORE, SWITCH, Machine
from torture.places import Place
from torture.producer import REPLACED_STATUS
from torture.store_forwarder import StoreForwarder

SCENES = {
    "folder": "nodes that share a folder of state, on one disk",
    "url": "nodes that share a URL, each with a folder of its own; standbys if the seed is odd",
    "power": "as folder; each commit waits for the disk, and the power may be cut",
    "machines": "nodes on machines of their own, over ZooKeeper and a store; only root has them",
}
PARTITIONS = {False: (6, 4), True: (3, 4)}
"""Partitions that repartitions choose; few if each write is followed by a copy of the disk."""

PROBE_SECONDS = 1.0
"""Each round has all tasks commit, which an S3 server has to keep up with."""

WELL_SECONDS = {"machines": 30.0, "folder": 90.0, "url": 90.0, "power": 180.0}
"""So soon a cluster is well after a fault. Only that of machines is a promise: the others have
a machine that does other things, too."""

START_SECONDS = 60.0
COMMAND_SECONDS = 240.0
NAMES = ("one", "two", "three")
STREAM_OF = {"call-1": "calls", "call-2": "calls", "log-1": "orders", "log-2": "orders"}
"""The programs, and where they send."""

STEPS = {"First": "", "Second": " again", "Third": " at last"}
"""The steps of the app, with what ends their keys."""

PROBE = "call-probe"
LOG = "log"
_MEGABYTES = 512


class Cluster:
    """One run; ``complaints`` should be empty at its end."""

    def __init__(self, folder: Path, scene: str, seed: int, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.complaints: list[str] = []
        self.done: list[str] = []
        self.missed: list[str] = []  # points at which nobody has died
        self.total = 0
        self.chance = random.Random(seed)
        self.scene = scene
        self._well = WELL_SECONDS[scene]
        self.features = {scene} | ({"url"} if scene == "machines" else set())
        if seed % 2 and "url" in self.features:
            self.features.add("standby")
        self._say = say
        self._began = trio.current_time()
        self._store = folder / "store"
        self._url = self._store.as_uri() if "url" in self.features else ""
        self._resources = ExitStack()
        self.processes: dict[str, trio.Process] = {}
        self.machines: dict[str, Machine | Place] = {}
        self.power: dict[str, Power] = {}  # of the log and of the nodes
        self.zookeeper: ZooKeeperEnsemble
        self.s3: servers.Server
        self.forwarder: StoreForwarder
        self._numbers = PARTITIONS[scene == "power"]
        self.partitions = self._numbers[0]
        self.savepoints: list[str] = []
        self._lives = 1
        self._versions = 0
        self._probed = 0
        self._slowest = 0.0
        self._enough, self._probe_over = trio.Event(), trio.Event()  # of the probe
        self._addresses: dict[str, str] = {}
        self._http: dict[str, str] = {}
        self.nursery: trio.Nursery

    def log(self, text: str) -> None:
        self._say(f"{trio.current_time() - self._began:7.2f} {text}")

    async def run(self, faults: Sequence[str], seconds: float) -> None:
        """Do these faults, or all that there can be, then pairs of them, until ``seconds`` are
        over, and judge. Faults that are given are all done."""
        with plain_errors(), self._resources:
            async with trio.open_nursery() as self.nursery:
                try:
                    await self._set_up()
                    await self._torment(list(faults), seconds)
                    await self._judge()
                finally:
                    await self._end()
                self.nursery.cancel_scope.cancel()

    # -- places ------------------------------------------------------------------------------

    async def _set_up(self) -> None:
        disk = self.folder / "disk"
        disk.mkdir()
        if "machines" in self.features:
            await self._make_machines(disk)
        else:
            self._make_places(disk)
        await self.start_log()
        for name, count in (("orders", 3), ("done", 2)):
            await self._s4_of_log(
                "log", "create", name, "--partitions", str(count), "--key", "user"
            )
        async with trio.open_nursery() as starting:
            for name in NAMES:
                starting.start_soon(self.start_node, name)
        told = await self.deploy()
        assert not told, told
        for name in STREAM_OF:
            await self.start_producer(name)
        self.nursery.start_soon(self._probe)
        await self._wait_well(0)
        self.log("all is well")

    async def _make_machines(self, disk: Path) -> None:
        machines.switch_on()
        self._store.mkdir()
        if servers.can_run_s3():
            self.features |= {"store"} | ({"kept"} if servers.s3_keeps() else set())
            port = free_port()
            self.s3 = self._resources.enter_context(servers.s3_server(self.folder, port))
            self._url = servers.s3_url(port)
            self.forwarder = StoreForwarder(port)
            os.environ["AWS_ENDPOINT_URL"] = await self.nursery.start(self.forwarder.run, STORE)
        for number, name in enumerate((*NAMES, "zookeeper"), 2):
            self.machines[name] = Machine(name, number, disk, self._store)
        keeper = self.machines["zookeeper"]
        where = keeper.inside("env")
        self.zookeeper = ZooKeeperEnsemble(self.folder / "zookeeper", keeper.ip, where)
        await trio.to_thread.run_sync(self.zookeeper.start)
        self.features |= {"points", "disk"}
        for name in NAMES:
            self._addresses[name] = f"tcp://{self.machines[name].ip}:12000"
            self._http[name] = f"{self.machines[name].ip}:9404"
        self._addresses[LOG] = f"tcp://{SWITCH}:13000"

    def _make_places(self, disk: Path) -> None:
        if "power" in self.features:
            (self.folder / "of-log").mkdir()
            self.power = {LOG: Power(self.folder / "of-log")} | dict.fromkeys(NAMES, Power(disk))
        else:
            self.features.add("points")
            if why := places.mount(disk, _MEGABYTES):
                self.log(f"SKIPPED: no disk is filled, as none can be mounted: {why}")
            else:
                self.features.add("disk")
                self._resources.callback(places.unmount, disk)
        self.machines |= {name: Place(name, disk) for name in NAMES}
        for name in (*NAMES, LOG):
            self._addresses[name] = f"tcp://127.0.0.1:{free_port()}"
            self._http[name] = f"127.0.0.1:{free_port()}"

    def _coordination(self, name: str) -> list[str | Path]:
        """The options of a node that say where the cluster is."""
        if self.scene == "machines":
            own = ("--folder", self.machines[name].disk / "s4")
            return [*own, "--coordination", self.zookeeper.url("s4")]
        return ["--folder", self._cluster_folder]

    @property
    def _cluster_folder(self) -> Path:
        return self.folder / ("disk" if self.power else "") / "cluster"

    def _state(self, name: str) -> dict[str, str]:
        """The settings of a node that say where state is."""
        if name == "visitor":
            return {"s4.state.folder": str(self.machines[name].disk / "state")}
        if not self._url:
            sync = {"s4.state.sync": "full"} if self.power else {}
            return {"s4.state.folder": str(self._shared_state)} | sync
        own = str(self.machines[name].disk / "state")
        standby = {"s4.state.standby": str(int("standby" in self.features))}
        return {"s4.state.folder": own, "s4.state.url": self._url} | standby

    @property
    def _shared_state(self) -> Path:
        return self.folder / "disk" / "state"

    def machine(self, name: str) -> Machine:
        found = self.machines[name]
        assert isinstance(found, Machine)
        return found

    # -- processes ---------------------------------------------------------------------------

    async def _open(self, name: str, command: Sequence[str], fault: str = "") -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        if name in self.power:
            fault = self.power[name].fault
        with self.file(name).open("ab") as file:
            self.processes[name] = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, "PYTHONPATH": path, VARIABLE: fault},
                start_new_session=True,
            )

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    async def _says(self, name: str, line: str, count: int) -> bool:
        """Return True once a process has said a line so often, False if it has ended."""
        while self.file(name).read_text().count(line) < count:
            if self.processes[name].returncode is not None:
                return False
            await trio.sleep(0.05)
        return True

    def _said(self, name: str, line: str) -> int:
        return self.file(name).read_text().count(line) if self.file(name).exists() else 0

    async def start_log(self, fault: str = "") -> None:
        folder = self.folder / "of-log"
        settings = {
            "s4.listener.address": self._addresses[LOG],
            "s4.access": "open",
            "s4.log.folder": str(folder / "log"),
            "s4.state.folder": str(folder / "state-of-log"),
            "s4.producer.expiry": "1000",
        }
        if self.power:
            settings["s4.log.sync"] = "full"
        node = s4("node", "outside", "--name", LOG, "--folder", folder / "nodes")
        await self._start(LOG, [*node, *_options(settings)], fault)

    async def start_node(self, name: str, fault: str = "") -> None:
        machine = self.machines[name]
        settings = {
            "s4.listener.address": self._addresses[name],
            "s4.http.address": f"tcp://{self._http[name]}",
            "s4.access": "open",
            "s4.session.timeout": f"{SESSION_SECONDS * 1000:.0f}",
            **self._state(name),
            "s4.container.pulseTimeout": "5000",
            "s4.container.restartDelay": "100",
            "task.shutdown.ms": "5000",
        }
        if self.power:  # each sign of life waits for the disk, and the disk is copied each time
            settings |= {"s4.session.timeout": "20000", "s4.container.pulseTimeout": "30000"}
            settings["s4.container.startTimeout"] = "180000"
        node = s4("node", "shop", "--name", name, *self._coordination(name))
        runtime = ("env", f"XDG_RUNTIME_DIR={machine.disk}")
        await self._start(name, machine.inside(*runtime, *node, *_options(settings)), fault)

    async def start_visitor(self) -> None:
        """Start a node that has another folder of state than the others."""
        self.machines["visitor"] = Place("visitor", self.folder)
        self._addresses["visitor"] = f"tcp://127.0.0.1:{free_port()}"
        self._http["visitor"] = f"127.0.0.1:{free_port()}"
        await self.start_node("visitor")

    async def _start(self, name: str, command: Sequence[str], fault: str) -> None:
        ran = self._said(name, " runs at ")
        with trio.fail_after(START_SECONDS):
            while True:
                await self._open(name, command, fault)
                if await self._says(name, " runs at ", ran + 1):
                    return
                await trio.sleep(0.5)  # what it needs may be away

    async def start_producer(self, name: str) -> None:
        stream, notes = STREAM_OF[name], self._notes(name)
        to = [self._addresses[LOG]] if stream == "orders" else [self._addresses[n] for n in NAMES]
        lives = notes.read_text().count("begins") if notes.exists() else 0
        command = [sys.executable, "-m", "torture.producer", ",".join(to), stream, name]
        await self._open(name, [*command, str(notes), "4" if self.power else "1"])
        with trio.fail_after(START_SECONDS):
            while not notes.exists() or notes.read_text().count("begins") == lives:
                await trio.sleep(0.05)

    def _notes(self, name: str) -> Path:
        return self.folder / f"{name}.sent"

    async def stop_producer(self, name: str) -> int:
        """Have a program flush and end; returns how many events it has sent."""
        process = self.processes[name]
        if await self.returned(process, 0) == REPLACED_STATUS:
            await self.start_producer(name)
            process = self.processes[name]
        process.terminate()
        await self.returned(process, 90)
        lines = self._notes(name).read_text().splitlines()
        self.complaints += [f"{name}: {line}" for line in lines if line.startswith("refused")]
        if not lines[-1].startswith("sent "):
            raise AssertionError(f"{name} does not end: {lines[-1:]}")
        return int(lines[-1].split()[1])

    async def returned(self, process: trio.Process, seconds: float) -> int | None:
        """The exit status of a process, if it ends within so many seconds."""
        with trio.move_on_after(seconds):
            await process.wait()
        return process.returncode

    # -- commands ----------------------------------------------------------------------------

    async def deploy(self, *options: str, fault: str = "") -> str:
        """Deploy the app, or a new version of it, from no node's place.

        Returns what went wrong, if anything did.
        """
        self._versions += 1
        file = self.folder / "hopping.py"
        version = f"VERSION = {self._versions}"
        file.write_text(f"{inspect.getsource(exact)}\n\n{version}\napp = exact()\n")
        settings = {
            "systems.log.address": self._addresses[LOG],
            "streams.orders.samza.offset.default": "oldest",
            "s4.stream.calls.grade": "durable",
            "s4.stream.done.consumers": "outside",
            "s4.cluster.outside.address": self._addresses[LOG],
            "s4.producer.expiry": "1000",
            "s4.state.checkpointInterval": "500",
            "task.commit.ms": {"machines": "500", "power": "1000"}.get(self.scene, "100"),
        }
        deploy = ("deploy", file.name, "--partitions", str(self.partitions))
        return await self.s4(*deploy, *_options(settings), *options, fault=fault)

    async def take_savepoint(self, fault: str = "") -> str:
        """Take a savepoint; returns what went wrong, if anything did."""
        name = f"savepoint-{self.chance.randrange(10**9)}"
        told = await self.s4("savepoint", "take", "exact", "--name", name, fault=fault)
        if not told:
            self.savepoints.append(name)
        return told

    async def go_back(self, name: str, fault: str = "") -> str:
        """Go back to a savepoint, while no program is here; returns what went wrong."""
        self._lives += 1  # which may have begun although it went wrong
        return await self.deploy("--from", name, "--outputs", "again", "--accept-loss", fault=fault)

    async def repartition(self, fault: str = "") -> str:
        """Give the app another number of partitions; returns what went wrong, if anything did."""
        (wanted,) = set(self._numbers) - {self.partitions}
        told = await self.s4("repartition", "exact", str(wanted), fault=fault)
        if not told:
            self.partitions = wanted
            self.savepoints.clear()  # which are of the former number
        return told

    async def s4(self, *command: str, fault: str = "") -> str:
        elsewhere = self.folder / "elsewhere"
        folder = elsewhere if self.scene == "machines" else self._cluster_folder
        settings = {"s4.coordination.folder": str(folder)}
        if command[0] != "deploy":  # with which each node would get this folder in place of its own
            state = elsewhere / "state" if self._url else self._shared_state
            settings["s4.state.folder"] = str(state)
        if self._url:
            settings["s4.state.url"] = self._url
        if self.scene == "machines":
            settings["s4.coordination"] = self.zookeeper.url("s4")
        options = ("--cluster", "shop", *_options(settings))
        done = await run_s4(
            *command, *options, cwd=self.folder, deadline=COMMAND_SECONDS, fault=fault
        )
        killed = "it was killed" if done.returncode == -signal.SIGKILL else ""
        return killed or (done.stderr if done.returncode else "")

    async def _s4_of_log(self, *command: str) -> str:
        done = await run_s4(*command, "--to", self._addresses[LOG], cwd=self.folder)
        assert not done.returncode, done.stderr
        return done.stdout

    async def _end(self) -> None:
        """Leave no process behind; the machines end with this process's namespaces."""
        for process in self.processes.values():
            for pid in (*children(process.pid), process.pid):
                _kill(pid, signal.SIGCONT)
                _kill(pid, signal.SIGKILL)
        with trio.CancelScope(shield=True):
            for process in self.processes.values():
                await process.wait()

    # -- is it well? -------------------------------------------------------------------------

    async def _probe(self) -> None:
        """Send rounds to all keys, one when the one before is committed, after those of before."""
        patience = 2 * (COMMAND_SECONDS + self._well)  # a repartition ends the app meanwhile
        addresses = [self._addresses[name] for name in NAMES]
        async with Client(addresses, producer=PROBE, timeout=patience) as client:
            calls = await client.stream("calls", types=Order, again=True)
            known = self._probed * exact.USERS
            await calls.send_many([order(PROBE, n) for n in range(known)])
            while not self._enough.is_set():
                began = trio.current_time()
                first = self._probed * exact.USERS
                await calls.send_many([order(PROBE, first + n) for n in range(exact.USERS)])
                for refusal in await calls.flush():
                    self.complaints.append(f"a probe is refused: {refusal}")
                self._probed += 1
                self._slowest = max(self._slowest, trio.current_time() - began)
                with trio.move_on_after(PROBE_SECONDS):
                    await self._enough.wait()
        self._probe_over.set()

    async def _stop_programs(self) -> dict[str, int]:
        sent = {name: await self.stop_producer(name) for name in STREAM_OF}
        self._enough.set()
        await self._probe_over.wait()
        return sent | {PROBE: self._probed * exact.USERS}

    @asynccontextmanager
    async def without_programs(self) -> AsyncIterator[None]:
        """Have no program here during the block, and all that they have sent committed."""
        await self._stop_programs()
        yield
        self._enough, self._probe_over = trio.Event(), trio.Event()
        for name in STREAM_OF:
            await self.start_producer(name)
        self.nursery.start_soon(self._probe)

    async def _wait_well(self, rounds: int) -> None:
        """Return once all is well, and so many rounds were committed; raises AssertionError."""
        began, wanted, told = trio.current_time(), self._probed + rounds, "nothing was asked"
        while (took := trio.current_time() - began) < self._well:
            told = await self._ails() or ("" if self._probed >= wanted else "no round returns")
            if not told:
                return
            await trio.sleep(0.1)
        raise AssertionError(f"not well {took:.0f} s after the fault: {told}")

    async def _ails(self) -> str:
        """The faults that the nodes report; empty if there is none."""
        for name in NAMES:
            status, text = await self._get(name, "/readyz")
            if status != 200:
                return f"{name}: {text.strip()}"
        owners = await self.owners()
        if len(owners) == self.partitions and set(owners) == set(NAMES):
            return ""
        return f"the owners are {owners}"

    async def owners(self) -> list[str]:
        _, text = await self._get(NAMES[0], "/status")
        try:
            apps = json.loads(text)[0]["apps"]
        except ValueError:
            return [text]
        return list(apps[0]["owners"]) if apps else []

    async def _get(self, name: str, path: str) -> tuple[int, str]:
        def get() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(f"http://{self._http[name]}{path}", timeout=3) as got:
                    return got.status, got.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()
            except OSError as error:
                return 0, str(error)

        return await trio.to_thread.run_sync(get)

    # -- the adversary -----------------------------------------------------------------------

    async def _torment(self, faults: list[str], seconds: float) -> None:
        until = trio.current_time() + seconds
        given = bool(faults)
        if not given:
            faults = self.possible()
            self.chance.shuffle(faults)
        while (given and faults) or trio.current_time() < until:
            names = [faults.pop(0)] if faults else self._pair()
            victims = self.chance.sample(NAMES, len(names))
            self.log(" and ".join(f"{n} ({v})" for n, v in zip(names, victims, strict=True)))
            self._slowest = 0.0
            began = trio.current_time()
            async with trio.open_nursery() as under_way:
                for name, victim in zip(names, victims, strict=True):
                    under_way.start_soon(FAULTS[name].do, self, victim)
            await self._wait_well(2)
            took = trio.current_time() - began
            self.log(f"   well after {took:.1f} s; the longest round took {self._slowest:.1f} s")
            self.done.append(" and ".join(names))

    def possible(self) -> list[str]:
        """The faults that there can be in this scene."""
        return [name for name, fault in FAULTS.items() if fault.needs <= self.features]

    def _pair(self) -> list[str]:
        """Two faults that can be at a time; in each other pair one of them amid a command."""
        names = [name for name in self.possible() if FAULTS[name].touches]
        while True:
            pair = self.chance.sample(names, 2)
            if len(self.done) % 2:
                pair[0] = self.chance.choice([name for name in COMMANDS if name in names])
            if pair[0] != pair[1] and FAULTS[pair[0]].touches != FAULTS[pair[1]].touches:
                return pair

    def pids_of(self, name: str) -> tuple[int, list[int]]:
        """The process of a node, and those of its containers."""
        node = self.processes[name].pid
        return node, children(node)

    async def kill(self, name: str, *, node: bool, containers: bool) -> None:
        pid, below = self.pids_of(name)
        for each in (*(below if containers else ()), *((pid,) if node else ())):
            _kill(each, signal.SIGKILL)
        if node:
            await self.processes[name].wait()

    async def restart(self, name: str, fault: str = "") -> None:
        """Stop a node in order, as whoever updates it does, and start it again."""
        _kill(self.processes[name].pid, signal.SIGTERM)
        with trio.move_on_after(START_SECONDS):
            await self.processes[name].wait()
        await self.kill(name, node=True, containers=True)
        await self.start_node(name, fault)

    async def stop_for(self, name: str, seconds: float) -> None:
        """Stop a process and those that it has started for a while."""
        pid, below = self.pids_of(name)
        for each in (pid, *below):
            _kill(each, signal.SIGSTOP)
        await trio.sleep(seconds)
        for each in (pid, *below):
            _kill(each, signal.SIGCONT)

    async def cut_power(self) -> None:
        """Kill all but the programs, leave what was on the disk for sure, and start all again."""
        for name in (*NAMES, LOG):
            await self.kill(name, node=True, containers=True)
        for power in set(self.power.values()):
            power.cut()
        await self.start_log()
        async with trio.open_nursery() as starting:
            for name in NAMES:
                starting.start_soon(self.start_node, name)

    # -- the truth ---------------------------------------------------------------------------

    async def _judge(self) -> None:
        self.log("programs stop")
        sent = await self._stop_programs()
        self.total = sum(sent.values())
        there = await self._came_out(self.total, 2 * self._well)
        self.log(f"{len({(o.user, o.ordinal) for o in there})} of {self.total} came out")
        for name in NAMES:
            await self.kill(name, node=True, containers=True)
            missed = [line for line in self.file(name).read_text().splitlines() if "wants" in line]
            self.complaints += missed[:5]
        self.complaints += wrong_output(sent, await self._came_out(None, 60), self._lives)
        with self._kept() as states:
            kept = {step: _counts(states, step) for step in STEPS}
        self.complaints += wrong_counts(sent, kept)

    async def _came_out(self, wanted: int | None, seconds: float) -> list[Order]:
        """The events that came out, in the order of each partition: all, or until there are so
        many different events."""
        told = json.loads(await self._s4_of_log("log", "describe", "--json"))
        streams = told["streams"] if isinstance(told, dict) else told
        (done,) = (each["partitions"] for each in streams if each["stream"] == "done")
        count = sum(each["upcoming"] for each in done)
        found: list[Order] = []
        different: set[tuple[str, int]] = set()
        with trio.move_on_after(seconds):
            async with (
                Client(self._addresses[LOG]) as client,
                client.subscribe("done", types=Order, start=Oldest()) as orders,
            ):
                async for one in orders:
                    found.append(one)
                    different.add((one.user, one.ordinal))
                    if len(found) == count if wanted is None else len(different) == wanted:
                        break
        return found

    @contextmanager
    def _kept(self) -> Iterator[list[StateReader]]:
        """The state of all tasks; what is not true of their logs at a URL is a complaint."""
        with ExitStack() as opened:
            if not self._url:
                folder = self._shared_state / "shop" / "exact" / "tasks"
                yield [
                    StateReader(TaskState(opened.enter_context(epochs.copied(place)), crc32m))
                    for place in sorted(folder.iterdir())
                ]
                return
            if not self._url.startswith("file:"):
                files = RemoteJob(self._url, Path("shop") / "exact").files
                files.fs.get(f"{files.root}/", f"{self._store}/shop/exact/", recursive=True)
            job = RemoteJob(self._store.as_uri(), Path("shop") / "exact")
            found = []
            for name in job.tasks():
                folder = self._store / "shop" / "exact" / "tasks" / name / "log"
                self.complaints += [f"{name}: {text}" for text in wrong_log(entries_in(folder))]
                if int(task_of(name).removeprefix("Partition ")) >= self.partitions:
                    continue  # of a former layout
                own = opened.enter_context(tempfile.TemporaryDirectory(dir=self.folder))
                try:
                    database = job.task(name).restored(Path(own), lambda: None, Database)
                except S4Error as error:
                    self.complaints.append(f"{name}: {error}")
                    continue
                opened.callback(database.close)
                found.append(StateReader(TaskState(database, crc32m)))
            yield found


def _counts(states: Sequence[StateReader], step: str) -> dict[str, int]:
    return {
        str(key): row["wanted"]
        for reader in states
        if step in reader.elements
        for key, row in reader.instances(step)
    }


def wrong_output(sent: Mapping[str, int], done: Sequence[Order], lives: int) -> list[str]:
    """Errors in the output: each user's orders come once and in order, and again from some order
    on in each further life of the app."""
    truth = _ordinals(sent)
    came = by_key((one.user, one.ordinal) for one in done)
    return wrong_events(in_lives(came, lives), truth, truth)


def wrong_counts(sent: Mapping[str, int], kept: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The errors in the counts of the steps, by step and key."""
    users = {user: len(numbers) for user, numbers in _ordinals(sent).items()}
    return [
        f"{step} {line}"
        for step, behind in STEPS.items()
        for line in wrong_state({f"{user}{behind}": users[user] for user in users}, kept[step])
    ]


def _ordinals(sent: Mapping[str, int]) -> dict[str, range]:
    """The orders of each user, of programs that have sent so many."""
    return counted(order(name, n).user for name, count in sent.items() for n in range(count))


def _options(settings: Mapping[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in ("-p", f"{key}={value}")]


def _kill(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


async def torture(
    folder: Path, scene: str, seed: int, seconds: float = 0.0, faults: Sequence[str] = ()
) -> Cluster:
    run = Cluster(folder, scene, seed, partial(print, flush=True))
    try:
        await run.run(faults, seconds)
    except (AssertionError, S4Error, trio.TooSlowError) as error:
        run.complaints.append(f"{type(error).__name__}: {error}")
    print(f"{run.total} events, {len(run.done)} faults")
    if run.missed:
        print(f"nobody died at {', '.join(run.missed)}")
    for complaint in run.complaints:
        print(f"COMPLAINT {complaint}")
    print("exact" if not run.complaints else "NOT exact", flush=True)
    return run


def main(folder: Path, scene: str, seed: int, seconds: float, faults: Sequence[str] = ()) -> bool:
    """Run a cluster once, on machines if that is the scene, and print what happens; returns whether
    all held."""
    print(f"SCENE={scene} SEED={seed}  logs in {folder}", flush=True)
    if scene != "machines":
        log_setup.configure("error")
        return not trio.run(torture, folder, scene, seed, seconds, faults).complaints
    if why := machines.impossible():
        print(f"SKIPPED: no machines can be made here: {why}", flush=True)
        return True
    arguments = (str(folder), str(seed), str(seconds), ",".join(faults))
    return not machines.python_apart("-m", "torture.cluster", *arguments)


if __name__ == "__main__":  # in namespaces of its own
    log_setup.configure("error")
    _, place, number, long, names = sys.argv
    given = [name for name in names.split(",") if name]
    done = trio.run(torture, Path(place), "machines", int(number), float(long), given)
    sys.exit(bool(done.complaints))
