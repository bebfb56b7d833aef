"""The torture: clients send without end, an adversary does to the nodes what its seed says.

Rules
- Each app keeps one member at least that nobody touches at the moment.
- Unless the ``deeds`` are given: processes stop in order, come new, and lose connections; with
  ``deaths`` they are killed, too, and stopped for longer than their session's timeout.
- In the end everybody is left alone; then all that was sent has to be settled, and all to stop.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio
from harness import ROOT, Proxy, environment, in_thread, plain_errors, proxy, until

from s4node import Client, SyncClient
from s4node.events.schema import JsonText
from s4node.process import log_setup
from torture.apps import GROUPS, USERS, Tap
from torture.ledger import Sent, complaints, read

SESSION_SECONDS = 2.0
SHUTDOWN_SECONDS = 10.0
SETTINGS = {
    "s4.cluster.partitions": "8",
    "s4.session.timeout": f"{SESSION_SECONDS * 1000:.0f}",
    "task.shutdown.ms": f"{SHUTDOWN_SECONDS * 1000:.0f}",
    "s4.watchdog.ms": "0",
}
DEEDS = ("stop", "add", "cut", "cut", "cut client", "move client")
DEADLY = ("kill", "kill", "pause", "freeze")
MOST = {"first": 4, "second": 3}

HEARD_SECONDS = 1.0
"""Who has run for so long is known to clients."""


class Member:
    """A container process."""

    def __init__(self, name: str, app: str, process: trio.Process) -> None:
        self.name, self.app, self.process = name, app, process
        self.address = ""
        self.state = "starting"  # running, stopping, paused, dead, over
        self.since = 0.0  # when it began to run

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has died meanwhile, by itself at a point of its own."""
        self.process.send_signal(number)


class Torture:
    """One run, all of whose chances come from ``seed``."""

    stop_seconds = SHUTDOWN_SECONDS * 0.8
    """How long a member may take to stop in order."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        seconds: float,
        *,
        deaths: bool,
        say: Callable[[str], None],
        deeds: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.seconds = seconds
        self.members: dict[str, Member] = {}
        self.sent: dict[str, Sent] = {}
        self.dead: set[str] = set()
        self.woken: dict[str, int] = {}  # when (ns) those went on whose session was over
        self.faults: dict[str, str] = {}  # who was told at its start to die, and at which point
        self.done: Counter[str] = Counter()
        self.settings: dict[str, str] = SETTINGS
        self.complaints: list[str] = []
        self._chance = random.Random(seed)
        self.coordination = folder / "cluster"
        self._say = say
        self._deeds = deeds or DEEDS + (DEADLY if deaths else ())
        self._began = trio.current_time()
        self._over = False
        self._names: Counter[str] = Counter()
        self._nursery: trio.Nursery

    async def run(self) -> None:
        """Torture, and judge."""
        with plain_errors():
            async with trio.open_nursery() as self._nursery:
                try:
                    await self._run()
                finally:
                    await self._end()
                self._nursery.cancel_scope.cancel()
        self.complaints += self._complaints()

    def _complaints(self) -> list[str]:
        return complaints(read(self.folder), self.sent, self.dead, ["texts"], self.woken)

    async def _end(self) -> None:
        """Leave no process behind."""
        with trio.CancelScope(shield=True):
            for member in self.members.values():
                if member.process.returncode is None:
                    member.process.kill()
                await member.process.wait()
                if member.process.stdout is not None:
                    await member.process.stdout.aclose()

    async def _run(self) -> None:
        for app, count in (("second", 2), ("first", 2)):
            async with trio.open_nursery() as starting:
                for _ in range(count):
                    starting.start_soon(self._start, app, self._name(app), count)
        async with proxy(self._one("first").address) as between, trio.open_nursery() as clients:
            for client in (self._direct, self._texts, self._sync):
                clients.start_soon(client, self._one("first").address)
            clients.start_soon(self._behind, between)
            await until(lambda: all(one.number for one in self.sent.values()), "clients send")
            await self._torment(between)
            self.log("clients finish")
            self._over = True
            with trio.move_on_after(60) as patience:
                while clients.child_tasks:
                    await trio.sleep(0.01)
            if patience.cancelled_caught:
                self.complaints.append(f"clients hang: {self._hanging()}")
                clients.cancel_scope.cancel()
        self.log("nodes stop")
        for app in ("first", "second"):
            async with trio.open_nursery() as stopping:
                for member in self._in("running", app):
                    stopping.start_soon(self._stop, member)

    def _hanging(self) -> str:
        return ", ".join(
            f"{name} sent {one.number}, settled {one.settled[-1:]}"
            for name, one in self.sent.items()
            if not one.settled or one.settled[-1][1] < one.number
        )

    def log(self, text: str) -> None:
        """Say what happens, and when."""
        self._say(f"{trio.current_time() - self._began:7.2f} {text}")

    # -- members -----------------------------------------------------------------------------

    def _in(self, state: str, app: str = "") -> list[Member]:
        return [m for m in self.members.values() if m.state == state and m.app in (app or m.app)]

    def _one(self, app: str) -> Member:
        running = self._in("running", app)
        assert running, f"all members of {app!r} have ended: {self.complaints}"
        return self._chance.choice(running)

    def _name(self, app: str) -> str:
        self._names[app] += 1
        return f"{app}-{self._names[app]}"

    async def _start(self, app: str, name: str, expected: int = 1) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = await trio.lowlevel.open_process(
                [
                    sys.executable,
                    "-m",
                    "torture.member",
                    str(self.coordination),
                    app,
                    name,
                    str(expected),
                    str(self.folder / f"{name}.notes"),
                    *(f"{key}={value}" for key, value in self._settings_of(name).items()),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment_of(name),
            )
        member = self.members[name] = Member(name, app, process)
        self._nursery.start_soon(self._watch, member)
        assert process.stdout is not None
        with trio.move_on_after(30) as patience:
            member.address = (await process.stdout.receive_some(200)).decode().strip()
        if patience.cancelled_caught or not member.address:
            with trio.move_on_after(1):  # what has become of it is about to be seen
                while member.state == "starting":
                    await trio.sleep(0.01)
            if member.state not in ("dead", "over"):  # which was told
                self.complaints.append(f"{name} does not start")
            return
        if member.state == "starting":
            member.state, member.since = "running", trio.current_time()
            self.log(f"{name} runs at {member.address}")

    def _environment_of(self, name: str) -> dict[str, str]:
        """Of a process that is to start."""
        return environment(PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}")

    def _settings_of(self, name: str) -> dict[str, str]:
        """Of a member that is to start."""
        return self.settings

    def _was_to_die(self, name: str) -> bool:
        """Whether a process that was killed has been told to at its start; asked once."""
        return False

    def _excused(self) -> bool:
        """Whether a process may end by itself now."""
        return False

    def _was_slain(self, name: str) -> None:
        """A process that ran was killed by the adversary."""

    async def _watch(self, member: Member) -> None:
        status = await member.process.wait()
        if status == -signal.SIGKILL and member.state != "dead" and self._was_to_die(member.name):
            member.state = "dead"
            self.dead.add(member.name)
        if member.state in ("starting", "running") and not self._excused():
            last = (self.folder / f"{member.name}.log").read_text().splitlines()[-1:]
            self.complaints.append(f"{member.name} ended by itself: {status}, {last}")
            self.dead.add(member.name)
        self.log(f"{member.name} has ended: {status}")
        member.state = "over"

    async def _stop(self, member: Member) -> None:
        self.log(f"SIGTERM {member.name}")
        member.state = "stopping"
        began = trio.current_time()
        member.signal(signal.SIGTERM)
        with trio.move_on_after(self.stop_seconds * 2):
            await member.process.wait()
        took = trio.current_time() - began
        if member.name in self.dead or self._excused():
            return
        if member.process.returncode != 0 or took > self.stop_seconds:
            self.complaints.append(
                f"{member.name} stopped with {member.process.returncode} after {took:.1f} s"
            )
            self.dead.add(member.name)

    # -- the adversary -----------------------------------------------------------------------

    async def _torment(self, between: Proxy) -> None:
        end = trio.current_time() + self.seconds
        while trio.current_time() < end:
            await trio.sleep(self._chance.choice([0.05, 0.3, 0.6, 1.2]))
            deed = self._chance.choice(self._deeds)
            app = self._chance.choice(["first", "first", "second"])
            victim = self._one(app)  # there is always one
            others = [m for m in self._in("running", app) if m is not victim]
            heard_of = trio.current_time() - HEARD_SECONDS  # clients know no node but by another
            spare = any(member.since <= heard_of for member in others)
            if deed == "add" or (deed in ("stop", "kill", "freeze", "pause") and not spare):
                living = [m for m in self.members.values() if m.app == app and m.state != "over"]
                if len(living) < MOST[app]:
                    deed = "add"
                    self._nursery.start_soon(self._start, app, self._name(app))
            elif deed == "stop":
                self._nursery.start_soon(self._stop, victim)
            elif deed == "cut":
                self.log(f"cut {victim.name}")
                victim.signal(signal.SIGUSR1)
            elif deed == "cut client":
                self.log(deed)
                between.cut()
            elif deed == "move client":
                between.redirect(self._one("first").address)
            elif deed == "kill":
                self.log(f"SIGKILL {victim.name}")
                victim.state = "dead"
                self.dead.add(victim.name)
                victim.signal(signal.SIGKILL)
            elif deed == "pause":
                self._nursery.start_soon(self._pause, victim, SESSION_SECONDS * 0.3)
            elif deed == "freeze":
                self._nursery.start_soon(self._pause, victim, SESSION_SECONDS * 2 + 1)
            self.done[deed] += 1
        while len(self.members) < self._names.total() or any(
            m.state in ("paused", "starting", "dead") for m in self.members.values()
        ):
            await trio.sleep(0.05)

    async def _pause(self, member: Member, seconds: float) -> None:
        frozen = seconds > SESSION_SECONDS
        self.log(f"SIGSTOP {member.name} for {seconds:g} s")
        member.state = "paused"
        member.signal(signal.SIGSTOP)
        await trio.sleep(seconds)
        if member.state != "paused":  # it had come to the point at which it was to die
            return
        if frozen:
            self.woken[member.name] = time.monotonic_ns()
            self.log(f"SIGCONT {member.name} at {self.woken[member.name]}")
        member.signal(signal.SIGCONT)
        if not frozen:
            member.state = "running"
            return
        self.dead.add(member.name)
        with trio.move_on_after(5) as patience:
            await member.process.wait()
        if patience.cancelled_caught:
            self.complaints.append(f"{member.name} goes on after its session was over")
            member.process.kill()

    # -- clients -----------------------------------------------------------------------------

    def _taps(self, name: str, chance: random.Random) -> list[Tap]:
        sent = self.sent[name]
        count = chance.choice([1, 1, 5, 40])
        taps = [
            Tap(name, f"u{n * 7919 % USERS}", f"g{n * 31 % GROUPS}", n)
            for n in range(sent.number, sent.number + count)
        ]
        sent.number += count
        return taps

    def _settled(self, name: str, number: int, refused: list[Any]) -> None:
        self.sent[name].settled.append((time.monotonic_ns(), number))
        if refused:
            self.complaints.append(f"{name}: {len(refused)} refused: {refused[0]}")

    async def _direct(self, address: str) -> None:
        await self._client("direct", address, lambda taps: taps)

    async def _behind(self, between: Proxy) -> None:
        await self._client("behind", between.address, lambda taps: taps)

    async def _texts(self, address: str) -> None:
        def texts(taps: list[Tap]) -> list[Any]:
            return [JsonText(msgspec.json.encode(msgspec.structs.asdict(tap))) for tap in taps]

        await self._client("texts", address, texts)

    async def _client(
        self, name: str, address: str, made: Callable[[list[Tap]], list[Any]]
    ) -> None:
        chance = random.Random(self._chance.random())
        self.sent[name] = Sent()
        async with Client(address, producer=name, timeout=40) as client:
            stream = await client.stream("taps")
            if name == "texts":
                stream.read_as()
            while not self._over:
                await stream.send_many(made(self._taps(name, chance)))
                await trio.sleep(chance.choice([0.002, 0.01, 0.05]))
                if chance.random() < 0.02:
                    number = self.sent[name].number
                    self._settled(name, number, await stream.flush())
            self._settled(name, self.sent[name].number, await stream.flush())
        self.log(f"client {name} is done")

    async def _sync(self, address: str) -> None:
        self.sent["sync"] = Sent()
        chance = random.Random(self._chance.random())

        def send() -> None:
            with SyncClient(address, producer="sync", timeout=40) as client:
                stream = client.stream("taps")
                while not self._over:
                    for tap in self._taps("sync", chance):
                        stream.send(tap)
                    time.sleep(chance.choice([0.002, 0.01, 0.05]))
                    if chance.random() < 0.02:
                        number = self.sent["sync"].number
                        self._settled("sync", number, stream.flush())
                self._settled("sync", self.sent["sync"].number, stream.flush())

        await in_thread(send)
        self.log("client sync is done")


async def torture(
    folder: Path,
    seed: int,
    seconds: float,
    deaths: bool,
    say: Callable[[str], None],
    deeds: Sequence[str] = (),
) -> Torture:
    """Run it once; ``complaints`` of what it returns should be empty."""
    run = Torture(folder, seed, seconds, deaths=deaths, say=say, deeds=deeds)
    await run.run()
    return run


def main(seed: int, seconds: float, deaths: bool, folder: Path) -> bool:
    """Run it once, and print what happens; whether all claims held."""
    log_setup.configure("warning")
    print(f"SEED={seed} SECONDS={seconds:g} DEATHS={int(deaths)}  notes in {folder}", flush=True)
    run = trio.run(partial(torture, folder, seed, seconds, deaths, partial(print, flush=True)))
    total = sum(one.number for one in run.sent.values())
    print(f"{total} events; {dict(run.done)}; dead: {sorted(run.dead)}")
    for complaint in run.complaints:
        print(f"COMPLAINT {complaint}")
    return not run.complaints
