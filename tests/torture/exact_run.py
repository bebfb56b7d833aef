"""One run of exactly once: everything is killed, at random and at named points, and all is exact.

Rules
- Containers have one of a few addresses, which producers know. Containers, producers and the log's
  node are killed all the time, and come back; half of them are told at their start to die at a
  point of a commit, a claim, an outbox or an append.
- A container may come that has another folder than the others: it gets no task.
- A producer may be away for longer than programs are remembered, or wake up when another process
  has its name; several containers in a row are killed; the disk of all folders is full for a while,
  and what ends then comes back.
- A step of the app that misses or sees twice an event raises, and its container says so and ends.
- In the end everybody is left alone. What comes out, and the state that is left, must be the truth.
"""

from __future__ import annotations

import json
import math
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import trio
from harness import free_port, run_s4
from judge import by_key, counted, wrong_events, wrong_state

from s4node import Client, Oldest
from s4node.failpoints import POINTS
from s4node.process import log_setup
from torture.exact import Order, order
from torture.exact_producer import SHUT_OUT
from torture.log_run import LogTorture
from torture.run import SESSION_SECONDS, SETTINGS, Member
from torture.small_disk import SmallDisk

STEPS = {"First": "", "Second": " again", "Third": " at last"}
"""The steps, with what ends their keys."""
STREAM_OF = {"log-1": "orders", "log-2": "orders", "call-1": "calls", "call-2": "calls"}
DEEDS = (
    *("member", "member", "member", "member", "log", "producer", "stop", "pause", "freeze"),
    *("away", "wake", "row", "fill", "stranger"),
)
OF_CHANCE = ("member", "log", "row")
"""These kill what may be about to reach a point: they end when there were enough kills."""
MOST = 3
STRANGER = "stranger"
PARTITIONS = 4
OF_LOG = [point for point in POINTS if point.startswith("log.")]
OF_CONTAINERS = [
    point
    for point in POINTS
    if point.startswith(("claim.", "commit.", "pieces.", "outbox.", "checkpoint."))
]
PATIENCE_SECONDS = 1800.0
EXPIRY_SECONDS = 1.0
AWAY_SECONDS = 3.0
WAKE_SECONDS = 4.0
FULL_SECONDS = 2.0
VISIT_SECONDS = 2.0
NOTICED_SECONDS = 15.0
"""So long after a disk was full a process may end because of that."""
DISK_MEGABYTES = 1024
IN_A_ROW = 4
"""So many containers are killed one after the other, as soon as they run."""
FEW = 3
"""So often at most a container passes a point before it dies there."""


class ExactTorture(LogTorture):
    """One run; ``complaints`` should be empty. It ends after so many ``kills``, and not before."""

    pause = 0.05
    """How long a producer pauses at most."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        kills: int,
        hits: int,
        *,
        say: Callable[[str], None],
        deeds: Sequence[str] = DEEDS,
    ) -> None:
        super().__init__(folder, seed, 0, say=say, deeds=deeds)
        self.kills = kills
        self.disk = SmallDisk(folder / "disk", DISK_MEGABYTES)
        self.machine = self.disk.folder / "machine"
        self.machine.mkdir()
        self.state = self.machine / "state"
        self._no_room_until = -math.inf  # who ends before may have found no room
        if not self.disk.mounted:
            self._deeds = [deed for deed in self._deeds if deed != "fill"]
            self.log(f"SKIPPED: no disk is filled, as none can be mounted: {self.disk.why}")
        self.first = MOST  # containers at the beginning
        self.hits: Counter[str] = Counter()
        self.killed: Counter[str] = Counter()  # what, or at which point
        self._wanted = hits
        self.addresses = {f"tcp://127.0.0.1:{free_port()}": "" for _ in range(MOST + 2)}
        self.settings = SETTINGS | {
            "s4.cluster.partitions": str(PARTITIONS),
            "s4.producer.expiry": f"{EXPIRY_SECONDS * 1000:.0f}",
            "systems.log.address": self.address,
            "streams.orders.samza.offset.default": "oldest",
            "s4.stream.done.consumers": "log",
            "s4.cluster.log.address": self.address,
            "s4.stream.calls.grade": "durable",
            "s4.state.checkpointInterval": "500",
            "task.commit.ms": self._chance.choice(["20", "50", "200"]),
        }
        self.of_log = {
            "s4.log.folder": str(self.machine / "log"),
            "s4.state.folder": str(self.machine / "state-of-node"),
            "s4.producer.expiry": self.settings["s4.producer.expiry"],
        }

    async def _run(self) -> None:
        self.log(f"{self.settings}")
        await self._start_log()
        self._nursery.start_soon(self._revive_log)
        for name, count in (("orders", 3), ("done", 2)):
            await self._s4("log", "create", name, "--partitions", str(count), "--key", "user")
        async with trio.open_nursery() as starting:
            for _ in range(self.first):
                starting.start_soon(self._start, "exact", self._name("exact"), self.first)
        async with trio.open_nursery() as starting:
            for name in STREAM_OF:
                starting.start_soon(self._start_producer, name)
        await self._torment_all()
        self.log("producers stop")
        for name in STREAM_OF:
            if self.processes[name].returncode == SHUT_OUT:
                await self._start_producer(name)
            await self._stop_process(name)
        sent = self._sent()
        await self._wait_done(sum(sent.values()))
        await self._stop_members()
        done = await came_out(self.address, sum((await self._counts())["done"]))
        self.total = len(done)
        self.complaints += wrong(sent, done)
        self.complaints += await self._wrong_state(sent)

    # -- the truth ---------------------------------------------------------------------------

    def _sent(self) -> dict[str, int]:
        sent = {}
        for name in STREAM_OF:
            lines = self._notes(name).read_text().splitlines()
            self.complaints += [f"{name}: {line}" for line in lines if line.startswith("refused")]
            last = [int(line.split()[1]) for line in lines if line.startswith("sent")]
            if last:
                sent[name] = last[-1]
            else:
                self.complaints.append(f"{name} has not said what it sent")
        return sent

    def _notes(self, name: str) -> Path:
        return self.folder / f"{name}.sent"

    async def _wait_done(self, total: int) -> None:
        with trio.move_on_after(90) as patience:
            while (there := sum((await self._counts())["done"])) < total:
                if not self._in("running"):
                    break
                await trio.sleep(0.1)
        self.log(f"{there} of {total} came out")
        if patience.cancelled_caught:
            self.complaints.append(f"only {there} of {total} came out within 90 s")

    async def _wrong_state(self, sent: dict[str, int]) -> list[str]:
        """What the steps have counted, compared with what was sent."""
        folder = ["-p", f"s4.state.folder={self.state}"]
        kept = {}
        for step in STEPS:
            told = await run_s4(
                "state", "scan", "exact", "--table", step, "--json", *folder, cwd=self.folder
            )
            if told.returncode:
                return [f"s4 state scan {step}: {told.stderr}"]
            rows = [json.loads(line) for line in told.stdout.splitlines()]
            kept[step] = {row["key"]: row["value"]["wanted"] for row in rows}
        return wrong_counts(sent, kept)

    # -- processes ---------------------------------------------------------------------------

    async def _start_producer(self, name: str) -> None:
        stream = STREAM_OF[name]
        to = self.address if stream == "orders" else ",".join(self.addresses)
        command = [
            sys.executable,
            "-m",
            "torture.exact_producer",
            to,
            stream,
            name,
            str(self._notes(name)),
            str(self.pause),
        ]
        await self._begin_producer(name, command, self._notes(name))

    def _environment_of(self, name: str) -> dict[str, str]:
        """Most containers and nodes of the log die at a point that is most wanted; after enough
        kills, all do."""
        found = super()._environment_of(name)
        points = OF_LOG if name == "log" else OF_CONTAINERS
        fewest = min(self.hits[point] for point in points)
        often = self.kills <= 0 and fewest >= self._wanted
        by_chance = self.kills > 0 and self._chance.random() < 0.4
        if name in STREAM_OF or often or by_chance:
            return found
        point = self._chance.choice([p for p in points if self.hits[p] <= fewest + 1])
        self.faults[name] = point
        return found | {"S4_FAULT": f"{point}:{self._chance.randint(1, FEW)}"}

    def _settings_of(self, name: str) -> dict[str, str]:
        """With an address that nobody has any more."""
        living = self._living()
        free = [place for place, holder in self.addresses.items() if holder not in living]
        self.addresses[free[0]] = name
        folder = self.machine / "elsewhere" if name.startswith(STRANGER) else self.state
        return self.settings | {"s4.listener.address": free[0], "s4.state.folder": str(folder)}

    def _was_to_die(self, name: str) -> bool:
        if name in STREAM_OF and self.processes[name].returncode == SHUT_OUT:
            return True  # the one that woke up had connected last
        point = self.faults.pop(name, "")
        if not point:
            return False
        self.log(f"{name} has died at {point}")
        self.hits[point] += 1
        self._killed(point)
        return True

    def _was_slain(self, name: str) -> None:
        """Not by what it was told at its start, which is over; it may have died of that before."""
        self.faults.pop(name, None)
        self._killed("log" if name == "log" else "producer")

    def _killed(self, where: str) -> None:
        self.kills -= 1
        self.killed[where] += 1

    @property
    def _enough(self) -> bool:
        """Whether there were enough."""
        return self.kills <= 0 and all(
            self.hits[point] >= self._wanted for point in OF_CONTAINERS + OF_LOG
        )

    async def _revive_log(self) -> None:
        """Start the log's node again when it has died at a point."""
        while True:
            await trio.sleep(0.05)
            if self.processes["log"].returncode is not None and "log" not in self.busy:
                self.busy.add("log")
                await self._do_to_process("kill", "log", 0.0)

    # -- the adversary -----------------------------------------------------------------------

    async def _torment_all(self) -> None:
        async with trio.open_nursery() as under_way:
            until = trio.current_time() + PATIENCE_SECONDS
            while not self._enough and trio.current_time() < until:
                await trio.sleep(self._chance.choice([0.1, 0.3, 0.6]))
                strangers = [name for name in self._living() if name.startswith(STRANGER)]
                if len(self._living()) - len(strangers) < MOST:
                    under_way.start_soon(self._start, "exact", self._name("exact"))
                deeds = [d for d in self._deeds if self.kills > 0 or d not in OF_CHANCE]
                self._do(self._chance.choice(deeds), under_way)
        if not self._enough:
            self.complaints.append(f"{self.kills} kills or some points are still missing")
        self.log("the adversary is done")
        while any(m.state in ("paused", "starting") for m in self.members.values()):
            await trio.sleep(0.05)
        for name in [name for name in self.faults if name == "log" or name in self.members]:
            if name == "log":  # none may be left that is yet to die
                self.busy.add("log")
                await self._stop_process("log")
                await self._start_log()
            elif self.members[name].state == "running":
                await self._stop(self.members[name])
        while len(self._in("running")) < 2:
            await self._start("exact", self._name("exact"))

    def _do(self, deed: str, under_way: trio.Nursery) -> None:
        running = self._in("running")
        if deed in ("log", "producer", "away", "wake"):
            name = "log" if deed == "log" else self._chance.choice(list(STREAM_OF))
            if name in self.busy:
                return
            self.busy.add(name)
            if deed == "wake":
                under_way.start_soon(self._wake, name)
            else:
                pause = AWAY_SECONDS * 2 if deed == "away" else 0.1
                under_way.start_soon(self._do_to_process, "kill", name, pause)
        elif deed == "fill":
            if self._no_room_until < trio.current_time():
                under_way.start_soon(self._fill)
        elif deed == STRANGER:
            if not any(name.startswith(STRANGER) for name in self._living()):
                under_way.start_soon(self._send_stranger)
        elif deed == "row":
            under_way.start_soon(self._kill_in_a_row)
        elif running and deed == "member":
            self._kill(self._chance.choice(running))
        elif len(running) > 1:
            victim = self._chance.choice(running)
            if deed == "stop":
                under_way.start_soon(self._stop, victim)
            elif deed == "pause":
                under_way.start_soon(self._pause, victim, SESSION_SECONDS * 0.3)
            else:
                under_way.start_soon(self._freeze, victim)

    def _living(self) -> list[str]:
        """The containers that have an address, also while they are about to start."""
        ended = {m.name for m in self.members.values() if m.process.returncode is not None} | {""}
        return [name for name in self.addresses.values() if name not in ended]

    async def _send_stranger(self) -> None:
        """Have a container come for a while that has not the state of the app."""
        name = self._name(STRANGER)
        await self._start("exact", name)
        await trio.sleep(VISIT_SECONDS)
        if self.members[name].state == "running":
            await self._stop(self.members[name])
        self._killed(STRANGER)

    def _kill(self, victim: Member) -> None:
        self.log(f"SIGKILL {victim.name}")
        victim.state = "dead"
        self.faults.pop(victim.name, None)
        self._killed("member")
        victim.signal(signal.SIGKILL)

    async def _kill_in_a_row(self) -> None:
        """Kill containers as soon as they run: what they process then is not to blame."""
        for _ in range(IN_A_ROW):
            while not self._in("running"):
                if self._enough:  # and no more are started
                    return
                await trio.sleep(0.02)
            self._kill(self._in("running")[-1])

    async def _wake(self, name: str) -> None:
        """Stop a producer, start another process of its name, and have the first go on."""
        first = self.processes[name]
        self.log(f"SIGSTOP {name}, which is started once more")
        first.send_signal(signal.SIGSTOP)
        await trio.sleep(0.2)
        await self._start_producer(name)
        self.busy.add(name)
        await trio.sleep(1)
        first.send_signal(signal.SIGCONT)
        with trio.move_on_after(WAKE_SECONDS):
            await first.wait()
        first.kill()
        await first.wait()
        self._killed("wake")
        second = self.processes[name]
        with trio.move_on_after(WAKE_SECONDS):
            await second.wait()  # if it was the first that has connected last
        if second.returncode == SHUT_OUT:
            await self._start_producer(name)
        self.busy.discard(name)

    async def _fill(self) -> None:
        """Leave no room for a while."""
        self.log("the disk is full")
        self._no_room_until = math.inf
        self.disk.fill()
        await trio.sleep(FULL_SECONDS)
        self.disk.empty()
        self._no_room_until = trio.current_time() + NOTICED_SECONDS
        self.log("the disk has room")
        self._killed("fill")

    def _excused(self) -> bool:
        return trio.current_time() < self._no_room_until

    async def _end(self) -> None:
        await super()._end()
        self.disk.unmount()


async def came_out(address: str, count: int) -> list[Order]:
    """So many events that came out to the log, in the order of each partition."""
    found: list[Order] = []
    if not count:
        return found
    with trio.fail_after(60):
        async with (
            Client(address) as client,
            client.subscribe("done", types=Order, start=Oldest()) as orders,
        ):
            async for one in orders:
                found.append(one)
                if len(found) == count:
                    break
    return found


def wrong_counts(sent: dict[str, int], kept: dict[str, dict[str, int]]) -> list[str]:
    """What is not true of what the steps have counted, by step and key."""
    users = {user: len(numbers) for user, numbers in ordinals(sent).items()}
    return [
        f"{step} {line}"
        for step, behind in STEPS.items()
        for line in wrong_state({f"{user}{behind}": users[user] for user in users}, kept[step])
    ]


def wrong(sent: dict[str, int], done: list[Order]) -> list[str]:
    """What is not true of what came out: each user's orders once each, in order."""
    truth = ordinals(sent)
    return wrong_events(by_key((one.user, one.ordinal) for one in done), truth, truth)


def ordinals(sent: dict[str, int]) -> dict[str, range]:
    """The orders of each user, of producers that have sent so many."""
    return counted(order(name, n).user for name, count in sent.items() for n in range(count))


async def torture_exact(
    folder: Path,
    seed: int,
    kills: int,
    hits: int,
    say: Callable[[str], None],
    deeds: Sequence[str] = DEEDS,
) -> ExactTorture:
    """Run it once; ``complaints`` of what it returns should be empty.

    It goes on until there were so many ``kills``, and each point of ``faults`` was hit so often.
    """
    run = ExactTorture(folder, seed, kills, hits, say=say, deeds=deeds)
    await run.run()
    return run


def main(seed: int, kills: int, hits: int, folder: Path, deeds: Sequence[str] = DEEDS) -> bool:
    """Run it once, and print what happens; whether all claims held."""
    log_setup.configure("warning")
    print(f"EXACT SEED={seed} KILLS={kills} HITS={hits}  logs in {folder}", flush=True)
    say = partial(print, flush=True)
    run = trio.run(partial(torture_exact, folder, seed, kills, hits, say, deeds))
    missed = [point for point in OF_CONTAINERS + OF_LOG if run.hits[point] < hits]
    if missed:
        print(f"hit less than {hits} times: {', '.join(missed)}")
    print(f"{run.total} events came out; {run.killed.total()} kills:")
    for where, count in sorted(run.killed.items()):
        print(f"  {count:4} {where}")
    for complaint in run.complaints:
        print(f"COMPLAINT {complaint}")
    print("exact" if not run.complaints else "NOT exact")
    return not run.complaints
