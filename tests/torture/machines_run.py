"""One run of a cluster on machines of its own: they die and are cut off, and all is exact.

Rules
- Three nodes and a log have a machine each, and three ZooKeepers have one; they share these and a
  store, nothing else. The store is an S3 server if one can be run here, or else a folder.
  Events take three hops, mostly between machines, and what comes out goes to the log.
- After each fault the cluster gets well by itself within half a minute: all nodes are ready, and
  own all partitions, and what a program sends then is committed.
- A killed node is started again, as whoever runs nodes does; a container is started by its node.
- With an odd seed the state of each task has a standby.
- In the end all is killed. What the log and the store have must be the truth: each event that a
  program was told is there counts once, came out once and in order, and each fence had one owner.
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import trio
from harness import ROOT, children, free_port, plain_errors, run_s4, s4
from judge import entries_in, wrong_log
from zookeeper_server import ZooKeeperEnsemble

from benchmarks import servers
from s4node import Client
from s4node.errors import S4Error
from s4node.events.keys import crc32m
from s4node.process import log_setup
from s4node.state.browse import StateReader
from s4node.state.database import Database
from s4node.state.job import task_of
from s4node.state.remote_job import RemoteJob
from s4node.state.task_state import TaskState
from torture import exact, machines
from torture.exact import Order, order
from torture.exact_run import STEPS, came_out, wrong, wrong_counts
from torture.machine_faults import (
    COMMANDS,
    FAULTS,
    OF_KEPT_STORE,
    OF_STORE,
    OF_ZOOKEEPER,
    SESSION_SECONDS,
)
from torture.machines import STORE, SWITCH, Machine
from torture.store_forwarder import StoreForwarder

PARTITIONS = (6, 4)
PROBE_SECONDS = 1.0
"""Each round has all tasks commit, which the S3 server has to keep up with."""

WELL_SECONDS = 30.0
START_SECONDS = 60.0
COMMAND_SECONDS = 240.0
NAMES = ("one", "two", "three")
PRODUCERS = ("call-1", "call-2")
PROBE = "call-probe"
SHORT = ("kill both", "freeze", "cut from ZooKeeper")
_LOG_PORT, _NODE_PORT, _HTTP_PORT = 13000, 12000, 9404


class Cluster:
    """One run; ``complaints`` should be empty at its end."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self.complaints: list[str] = []
        self.done: list[str] = []
        self.total = 0
        self._chance = random.Random(seed)
        self._standbys = seed % 2
        self._folder = folder
        self._say = say
        self._began = trio.current_time()
        self._store = folder / "store"
        self._url = self._store.as_uri()
        self._resources = ExitStack()
        self._processes: dict[str, trio.Process] = {}
        self.machines: dict[str, Machine] = {}
        self.zookeeper: ZooKeeperEnsemble
        self.s3: servers.Server
        self.forwarder: StoreForwarder
        self.partitions = PARTITIONS[0]
        self._versions = 0
        self._probed = 0
        self._slowest = 0.0
        self._over = trio.Event()
        self._nursery: trio.Nursery

    def log(self, text: str) -> None:
        """Say what happens, and when."""
        self._say(f"{trio.current_time() - self._began:7.2f} {text}")

    async def run(self, faults: Sequence[str], seconds: float) -> None:
        """Do these faults, then pairs of them until ``seconds`` are over, and judge."""
        with plain_errors(), self._resources:
            async with trio.open_nursery() as self._nursery:
                try:
                    await self._set_up()
                    async with trio.open_nursery() as probing:
                        probing.start_soon(self._probe)
                        await self._torment(list(faults), seconds)
                        self._over.set()
                    await self._judge()
                finally:
                    self._end()
                self._nursery.cancel_scope.cancel()

    # -- the machines ------------------------------------------------------------------------

    async def _set_up(self) -> None:
        machines.switch_on()
        disk = self._folder / "disk"
        for folder in (disk, self._store):
            folder.mkdir()
        if servers.can_run_s3():
            await self._forward_to_s3()
        for number, name in enumerate((*NAMES, "zookeeper"), 2):
            self.machines[name] = Machine(name, number, disk, self._store)
        keeper = self.machines["zookeeper"]
        self.zookeeper = ZooKeeperEnsemble(
            self._folder / "zookeeper", keeper.ip, keeper.inside("env")
        )
        await trio.to_thread.run_sync(self.zookeeper.start)
        await self._start_log()
        async with trio.open_nursery() as starting:
            for name in NAMES:
                starting.start_soon(self.start_node, name)
        told = await self.deploy()
        assert not told, told
        for name in PRODUCERS:
            notes = str(self._folder / f"{name}.sent")
            command = [sys.executable, "-m", "torture.exact_producer", ",".join(self._addresses)]
            await self._open(name, [*command, "calls", name, notes, "0.05"])
        await self._wait_well(0)
        self.log("all is well")

    async def _forward_to_s3(self) -> None:
        """Have an S3 server as the store, behind a forwarder."""
        port = free_port()
        self.s3 = self._resources.enter_context(servers.s3_server(self._folder, port))
        self._url = servers.s3_url(port)
        self.forwarder = StoreForwarder(port)
        os.environ["AWS_ENDPOINT_URL"] = await self._nursery.start(self.forwarder.run, STORE)

    @property
    def _addresses(self) -> list[str]:
        return [f"tcp://{self.machines[name].ip}:{_NODE_PORT}" for name in NAMES]

    async def _open(self, name: str, command: Sequence[str]) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        with self._file(name).open("ab") as file:
            self._processes[name] = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    async def _says(self, name: str, line: str, count: int) -> bool:
        """Return True once a process has said a line so often, False if it has ended."""
        while self._file(name).read_text().count(line) < count:
            if self._processes[name].returncode is not None:
                return False
            await trio.sleep(0.05)
        return True

    async def _start_log(self) -> None:
        settings = {
            "s4.listener.address": f"tcp://{SWITCH}:{_LOG_PORT}",
            "s4.access": "open",
            "s4.log.folder": str(self._folder / "log"),
            "s4.state.folder": str(self._folder / "state-of-log"),
        }
        node = s4("node", "outside", "--name", "log", "--folder", self._folder / "nodes")
        await self._open("log", [*node, *_options(settings)])
        with trio.fail_after(START_SECONDS):
            assert await self._says("log", " runs at ", 1), self._file("log").read_text()
        to = ("--to", f"tcp://{SWITCH}:{_LOG_PORT}")
        done = await run_s4(
            *("log", "create", "done", "--partitions", "2", "--key", "user"), *to, cwd=self._folder
        )
        assert not done.returncode, done.stderr

    async def start_node(self, name: str) -> None:
        """Start a node, and wait until it has joined."""
        machine = self.machines[name]
        settings = {
            "s4.listener.address": f"tcp://{machine.ip}:{_NODE_PORT}",
            "s4.http.address": f"tcp://{machine.ip}:{_HTTP_PORT}",
            "s4.access": "open",
            "s4.session.timeout": f"{SESSION_SECONDS * 1000:.0f}",
            "s4.state.folder": str(machine.disk / "state"),
            "s4.state.url": self._url,
            "s4.state.standby": str(self._standbys),
            "s4.container.pulseTimeout": "5000",
            "s4.container.restartDelay": "100",
            "task.shutdown.ms": "5000",
        }
        node = s4("node", "shop", "--name", name, "--folder", machine.disk / "s4")
        where = ("--coordination", self.zookeeper.url("s4"))
        runtime = ("env", f"XDG_RUNTIME_DIR={machine.disk}")
        command = machine.inside(*runtime, *node, *where, *_options(settings))
        ran = self._file(name).read_text().count(" runs at ") if self._file(name).exists() else 0
        with trio.fail_after(START_SECONDS):
            while True:
                await self._open(name, command)
                if await self._says(name, " runs at ", ran + 1):
                    return
                await trio.sleep(0.5)  # ZooKeeper may be away

    async def deploy(self) -> str:
        """Deploy the app of hops, or a new version of it, from no node's machine.

        Returns what went wrong, if anything did.
        """
        self._versions += 1
        file = self._folder / "hopping.py"
        version = f"VERSION = {self._versions}"
        file.write_text(f"{inspect.getsource(exact)}\n\n{version}\napp = hops()\n")
        settings = {
            "s4.stream.calls.grade": "durable",
            "s4.stream.done.consumers": "outside",
            "s4.cluster.outside.address": f"tcp://{SWITCH}:{_LOG_PORT}",
            "task.commit.ms": "500",
        }
        deploy = ("deploy", file.name, "--partitions", str(self.partitions))
        return await self._s4(*deploy, *_options(settings))

    async def drain(self, name: str) -> str:
        """Empty a node; returns what went wrong, if anything did."""
        return await self._s4("drain", name)

    async def savepoint(self) -> str:
        """Take a savepoint; returns what went wrong, if anything did."""
        return await self._s4("savepoint", "take", "exact")

    async def repartition(self) -> str:
        """Give the app another number of partitions; returns what went wrong, if anything did."""
        (wanted,) = set(PARTITIONS) - {self.partitions}
        told = await self._s4("repartition", "exact", str(wanted))
        if not told:
            self.partitions = wanted
        return told

    async def _s4(self, *command: str) -> str:
        settings = {
            "s4.coordination": self.zookeeper.url("s4"),
            "s4.coordination.folder": str(self._folder / "elsewhere"),
            "s4.state.folder": str(self._folder / "elsewhere" / "state"),
            "s4.state.url": self._url,
        }
        options = ("--cluster", "shop", *_options(settings))
        done = await run_s4(*command, *options, cwd=self._folder, deadline=COMMAND_SECONDS)
        return done.stderr if done.returncode else ""

    def _end(self) -> None:
        """Leave no process behind; the machines end with this process's namespaces."""
        for process in self._processes.values():
            for pid in (*children(process.pid), process.pid):
                _kill(pid, signal.SIGCONT)
                _kill(pid, signal.SIGKILL)

    # -- is it well? -------------------------------------------------------------------------

    async def _probe(self) -> None:
        """Send rounds to all keys, one when the one before is committed."""
        patience = 2 * (COMMAND_SECONDS + WELL_SECONDS)  # a repartition ends the app meanwhile
        async with Client(self._addresses, producer=PROBE, timeout=patience) as client:
            calls = await client.stream("calls", types=Order)
            while not self._over.is_set():
                began = trio.current_time()
                first = self._probed * exact.USERS
                await calls.send_many([order(PROBE, first + n) for n in range(exact.USERS)])
                for refusal in await calls.flush():
                    self.complaints.append(f"a probe is refused: {refusal}")
                self._probed += 1
                self._slowest = max(self._slowest, trio.current_time() - began)
                await trio.sleep(PROBE_SECONDS)

    async def _wait_well(self, rounds: int) -> None:
        """Return once all is well, and so many rounds were committed; raises AssertionError."""
        began, wanted, told = trio.current_time(), self._probed + rounds, "nothing was asked"
        while (took := trio.current_time() - began) < WELL_SECONDS:
            told = await self._ails() or ("" if self._probed >= wanted else "no round returns")
            if not told:
                return
            await trio.sleep(0.1)
        raise AssertionError(f"not well {took:.0f} s after the fault: {told}")

    async def _ails(self) -> str:
        """What is not well, as the nodes tell; empty if all is."""
        for name in NAMES:
            status, text = await self._get(name, "/readyz")
            if status != 200:
                return f"{name}: {text.strip()}"
        _, text = await self._get(NAMES[0], "/status")
        try:
            apps = json.loads(text)[0]["apps"]
        except ValueError:
            return text
        owners = apps[0]["owners"] if apps else []
        if len(owners) == self.partitions and set(owners) == set(NAMES):
            return ""
        return f"the owners are {owners}"

    async def _get(self, name: str, path: str) -> tuple[int, str]:
        url = f"http://{self.machines[name].ip}:{_HTTP_PORT}{path}"

        def get() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(url, timeout=3) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()
            except OSError as error:
                return 0, str(error)

        return await trio.to_thread.run_sync(get)

    # -- the adversary -----------------------------------------------------------------------

    async def _torment(self, faults: list[str], seconds: float) -> None:
        until = trio.current_time() + seconds
        while faults or trio.current_time() < until:
            names = [faults.pop(0)] if faults else self._pair()
            victims = self._chance.sample(NAMES, len(names))
            self.log(" and ".join(f"{n} ({v})" for n, v in zip(names, victims, strict=True)))
            self._slowest = 0.0
            async with trio.open_nursery() as under_way:
                for name, victim in zip(names, victims, strict=True):
                    under_way.start_soon(FAULTS[name], self, victim)
            began = trio.current_time()
            await self._wait_well(2)
            well = trio.current_time() - began
            self.log(f"   well after {well:.1f} s; the longest round took {self._slowest:.1f} s")
            self.done.append(" and ".join(names))

    def _pair(self) -> list[str]:
        """Two faults that can be at a time; in each other pair one of them amid a command."""
        while True:
            pair = self._chance.sample(possible(), 2)
            if len(self.done) % 2:
                pair[0] = self._chance.choice(COMMANDS)
            if pair[0] != pair[1] and not set(pair) <= set(OF_ZOOKEEPER):
                return pair

    def pids_of(self, name: str) -> tuple[int, list[int]]:
        """The process of a node, and those of its containers."""
        node = self._processes[name].pid
        return node, children(node)

    async def kill(self, name: str, *, node: bool, containers: bool) -> None:
        """Kill a node, or its containers, or both, at once."""
        pid, below = self.pids_of(name)
        for each in (*(below if containers else ()), *((pid,) if node else ())):
            _kill(each, signal.SIGKILL)
        if node:
            await self._processes[name].wait()

    async def restart(self, name: str) -> None:
        """Stop a node in order, as whoever updates it does, and start it again."""
        _kill(self._processes[name].pid, signal.SIGTERM)
        with trio.move_on_after(START_SECONDS):
            await self._processes[name].wait()
        await self.kill(name, node=True, containers=True)
        await self.start_node(name)

    async def stop_for(self, name: str, seconds: float) -> None:
        """Stop a node and its containers for a while."""
        pid, below = self.pids_of(name)
        for each in (pid, *below):
            _kill(each, signal.SIGSTOP)
        await trio.sleep(seconds)
        for each in (pid, *below):
            _kill(each, signal.SIGCONT)

    # -- the truth ---------------------------------------------------------------------------

    async def _judge(self) -> None:
        self.log("programs stop")
        sent = {PROBE: self._probed * exact.USERS}
        for name in PRODUCERS:
            self._processes[name].terminate()
        for name in PRODUCERS:
            with trio.move_on_after(90):
                await self._processes[name].wait()
            lines = (self._folder / f"{name}.sent").read_text().splitlines()
            self.complaints += [f"{name}: {line}" for line in lines if line.startswith("refused")]
            last = [int(line.split()[1]) for line in lines if line.startswith("sent")]
            if not last:
                self.complaints.append(f"{name} does not end: {lines[-1:]}")
                return
            sent[name] = last[-1]
        self.total = sum(sent.values())
        there = 0
        with trio.move_on_after(2 * WELL_SECONDS):
            while (there := await self._came()) < self.total:
                await trio.sleep(0.2)
        self.log(f"{there} of {self.total} came out; all is killed")
        for name in NAMES:
            await self.kill(name, node=True, containers=True)
            missed = [line for line in self._file(name).read_text().splitlines() if "wants" in line]
            self.complaints += missed[:5]
        self.complaints += wrong(sent, await came_out(f"tcp://{SWITCH}:{_LOG_PORT}", there))
        self.complaints += await trio.to_thread.run_sync(self._wrong_store, sent)

    async def _came(self) -> int:
        to = ("--to", f"tcp://{SWITCH}:{_LOG_PORT}")
        told = await run_s4("log", "describe", "--json", *to, cwd=self._folder)
        assert not told.returncode, told.stderr
        found = json.loads(told.stdout)
        streams = found["streams"] if isinstance(found, dict) else found
        return sum(p["upcoming"] for each in streams for p in each["partitions"])

    def _wrong_store(self, sent: dict[str, int]) -> list[str]:
        """What is not true of the store, which is all that is left."""
        kept: dict[str, dict[str, int]] = {step: {} for step in STEPS}
        found = []
        if not self._url.startswith("file:"):
            files = RemoteJob(self._url, Path("shop") / "exact").files
            files.fs.get(f"{files.root}/", f"{self._store}/shop/exact/", recursive=True)
        job = RemoteJob(self._store.as_uri(), Path("shop") / "exact")
        for name in job.tasks():
            folder = self._store / "shop" / "exact" / "tasks" / name / "log"
            found += [f"{name}: {text}" for text in wrong_log(entries_in(folder))]
            if int(task_of(name).removeprefix("Partition ")) >= self.partitions:
                continue  # of a former layout
            with tempfile.TemporaryDirectory(dir=self._folder) as own:
                try:
                    database = job.task(name).restored(Path(own), lambda: None, Database)
                except S4Error as error:
                    found.append(f"{name}: {error}")
                    continue
                reader = StateReader(TaskState(database, crc32m))
                for step in STEPS:
                    rows: list[tuple[Any, Any]] = list(reader.instances(step))
                    kept[step] |= {key: row["wanted"] for key, row in rows}
                database.close()
        return found + wrong_counts(sent, kept)


def _options(settings: Mapping[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in ("-p", f"{key}={value}")]


def _kill(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def possible() -> list[str]:
    """The faults that can be made here."""
    left_out = {
        *(() if servers.can_run_s3() else (*OF_STORE, *OF_KEPT_STORE)),
        *(() if servers.s3_keeps() else OF_KEPT_STORE),
    }
    return [name for name in FAULTS if name not in left_out]


def main(seed: int, seconds: float, folder: Path, faults: Sequence[str] = ()) -> bool:
    """Do all faults once and then pairs, on machines, and print what happens; whether all held."""
    if why := machines.impossible():
        print(f"SKIPPED: no machines can be made here: {why}", flush=True)
        return True
    chosen = list(faults) or possible()
    if not faults:
        random.Random(seed).shuffle(chosen)
    print(f"MACHINES SEED={seed}  logs in {folder}", flush=True)
    arguments = (str(seed), str(seconds), str(folder), ",".join(chosen))
    return not machines.python_apart("-m", "torture.machines_run", *arguments)


async def _run(seed: int, seconds: float, folder: Path, faults: Sequence[str]) -> int:
    run = Cluster(folder, seed, partial(print, flush=True))
    try:
        await run.run(faults, seconds)
    except (AssertionError, S4Error, trio.TooSlowError) as error:
        run.complaints.append(f"{type(error).__name__}: {error}")
    print(f"{run.total} events, {len(run.done)} faults")
    for complaint in run.complaints:
        print(f"COMPLAINT {complaint}")
    print("exact" if not run.complaints else "NOT exact", flush=True)
    return int(bool(run.complaints))


if __name__ == "__main__":
    log_setup.configure("error")
    _, number, long, place, names = sys.argv
    sys.exit(trio.run(_run, int(number), float(long), Path(place), names.split(",")))
