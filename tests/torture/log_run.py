"""One run over a log: producers, the node that keeps it, containers that copy it, an adversary.

Rules
- What happens follows from the seed, but not when: a failure is repeated by its seed, often only
  after some attempts.
- All three kinds of processes are killed, stopped in order, and frozen for a while; they come back.
- The verdict is `log_ledger`'s, from what is in the log at the end, what processes noted, and what
  the progress was all the time.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import trio
from harness import free_port, run_s4, s4
from saved_state import saved_positions

from s4node import Client, Oldest
from s4node.errors import S4Error
from s4node.process import log_setup
from torture.apps import Tap
from torture.copying import WAYS
from torture.ledger import read
from torture.log_ledger import Saved, appended, copied
from torture.run import SESSION_SECONDS, SETTINGS, SHUTDOWN_SECONDS, Member, Torture

PRODUCERS = ("direct-1", "direct-2", "texts")
DEEDS = (
    ("kill", "producer"),
    ("stop", "producer"),
    ("pause", "producer"),
    ("kill", "log"),
    ("stop", "log"),
    ("pause", "log"),
    ("kill", "member"),
    ("kill", "member"),
    ("stop", "member"),
    ("pause", "member"),
    ("freeze", "member"),
    ("cut", "member"),
    ("add", "member"),
)
MOST = 4
PAUSES = (0.1, 0.5, 1.0, 3.0)
STOP_SECONDS = 90  # a producer stops when all that it has sent is settled


class LogTorture(Torture):
    """One run; ``complaints`` should be empty."""

    stop_seconds = SHUTDOWN_SECONDS + 5  # where its log is away, it cannot drain

    def __init__(
        self,
        folder: Path,
        seed: int,
        seconds: float,
        *,
        say: Callable[[str], None],
        deeds: Sequence[str] = (),
    ) -> None:
        super().__init__(folder, seed, seconds, deaths=True, say=say, deeds=deeds)
        self.of_log = {
            "s4.log.folder": str(folder / "log"),
            "s4.state.folder": str(folder / "state-of-node"),
        }
        chance = self._chance
        self.way = chance.choice(list(WAYS)) + chance.choice(["", "-keyed"])
        self.partitions = chance.choice([1, 4, 6])
        self.address = f"tcp://127.0.0.1:{free_port()}"
        tasks = chance.choice([4, 6, 9]) if self.way.endswith("-keyed") else self.partitions
        self.settings = (
            SETTINGS
            | WAYS[self.way.removesuffix("-keyed")][1]
            | {
                "s4.cluster.partitions": str(max(tasks, self.partitions)),
                "s4.state.folder": str(folder / "state"),
                "systems.log.address": self.address,
                "streams.taps.samza.offset.default": "oldest",
                "s4.stream.copies.consumers": "log",
                "s4.cluster.log.address": self.address,
                "task.commit.ms": chance.choice(["50", "300", "2000"]),
                "task.window.ms": chance.choice(["0", "20", "200"]),
            }
        )
        self.processes: dict[str, trio.Process] = {}
        self.busy: set[str] = set()  # down, or not running as it should
        self.saved: list[Saved] = []
        self.total = 0
        self.dead_at_the_end = False
        self._log_starts = 0

    async def _run(self) -> None:
        self.log(f"{self.way}, {self.partitions} partitions, {self.settings}")
        await self._start_log()
        for name, count in (("taps", self.partitions), ("copies", 3)):
            await self._s4("log", "create", name, "--partitions", str(count), "--key", "user")
        self._nursery.start_soon(self._watch_progress)
        await self._start_producer(PRODUCERS[0])
        async with trio.open_nursery() as starting:
            for _ in range(3):
                starting.start_soon(self._start, self.way, self._name(self.way), 3)
        for name in PRODUCERS[1:]:
            await self._start_producer(name)
        await self._torment_all()
        self.log("producers stop")
        for name in PRODUCERS:
            await self._stop_process(name)
        counts = await self._counts()
        self.log(f"the log has {counts}")
        await self._wait_for_copies(sum(counts["taps"]))
        await self._stop_members()
        await self._look_at_progress()
        kept = [self.saved[-1].offsets.get(f"Partition {n}", {}) for n in range(self.partitions)]
        for n, end in enumerate(counts["taps"]):
            if kept[n].get(n, 0) != end and not self.dead_at_the_end:
                self.complaints.append(f"after the stop taps[{n}] is at {kept[n]}, not {end}")
        await self._start_again()
        self.complaints += await self._judge()

    async def _judge(self) -> list[str]:
        counts = await self._counts()
        self.log(f"judge {counts}")
        taps = await self._read("taps", counts["taps"])
        copies = await self._read("copies", counts["copies"])
        self.total = sum(map(len, taps))
        notes = {name: self.folder / f"{name}.appended" for name in PRODUCERS}
        keyed = self.way.endswith("-keyed")
        return appended(taps, notes) + copied(
            taps, copies, read(self.folder), self.saved, keyed=keyed
        )

    def _complaints(self) -> list[str]:
        return []

    # -- what is looked at -------------------------------------------------------------------

    async def _s4(self, *arguments: str) -> str:
        done = await run_s4(*arguments, "--to", self.address, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def _counts(self) -> dict[str, list[int]]:
        told = json.loads(await self._s4("log", "describe", "--json"))
        streams = told["streams"] if isinstance(told, dict) else told
        return {each["stream"]: [p["upcoming"] for p in each["partitions"]] for each in streams}

    async def _read(self, stream: str, counts: list[int]) -> list[list[Tap]]:
        events: list[list[Tap]] = [[] for _ in counts]
        left = sum(counts)
        if not left:
            return events
        with trio.fail_after(30):
            async with (
                Client(self.address) as client,
                client.subscribe(stream, types=Tap, start=Oldest()) as taps,
            ):
                async for tap in taps:
                    place = taps.place
                    if place.offset != len(events[place.partition]):
                        self.complaints.append(f"{stream} has a hole at {place}")
                    events[place.partition].append(tap)
                    left -= 1
                    if not left:
                        break
        return events

    async def _wait_for_copies(self, total: int) -> None:
        seen: set[tuple[str, int]] = set()
        with trio.move_on_after(60) as patience:
            async with (
                Client(self.address) as client,
                client.subscribe("copies", types=Tap, start=Oldest()) as taps,
            ):
                async for tap in taps:
                    seen.add((tap.producer, tap.number))
                    if len(seen) == total:
                        break
        self.log(f"{len(seen)} of {total} copied")
        if patience.cancelled_caught:
            self.complaints.append(f"only {len(seen)} of {total} were copied within 60 s")

    async def _watch_progress(self) -> None:
        while True:
            await trio.sleep(0.3)
            await self._look_at_progress()

    async def _look_at_progress(self) -> None:
        for app in [path.parent for path in (self.folder / "state").glob("*/*/tasks")]:
            try:
                kept = await trio.to_thread.run_sync(saved_positions, app)
            except S4Error:  # a task is being taken over
                continue
            offsets = {
                task: {int(at[at.rindex("[") + 1 : -1]): offset for at, offset in places.items()}
                for task, places in kept.items()
            }
            self.saved.append(Saved(time.monotonic_ns(), offsets))

    # -- processes ---------------------------------------------------------------------------

    async def _start_log(self) -> None:
        command = [
            *s4("node", "torture", "--name", "keeper", "--folder", self.folder / "nodes"),
            "-p",
            f"s4.listener.address={self.address}",
            "-p",
            "s4.watchdog.ms=0",
            *(part for key, value in self.of_log.items() for part in ("-p", f"{key}={value}")),
        ]
        process = await self._open("log", command)
        await self._until_line(process, "log", " runs at ")
        self.busy.discard("log")

    async def _start_producer(self, name: str) -> None:
        notes = self.folder / f"{name}.appended"
        command = [
            sys.executable,
            "-m",
            "torture.log_producer",
            self.address,
            name,
            str(notes),
            str(self.partitions),
        ]
        await self._begin_producer(name, command, notes)

    async def _begin_producer(self, name: str, command: list[str], notes: Path) -> None:
        def lives() -> int:
            return notes.read_text().count("begins") if notes.exists() else 0

        before = lives()
        await self._open(name, command)
        with trio.move_on_after(60) as patience:
            while lives() == before:
                if self.processes[name].returncode is not None:
                    break
                await trio.sleep(0.01)
        if patience.cancelled_caught:
            self.complaints.append(f"{name} does not begin")
        self.busy.discard(name)

    async def _open(self, name: str, command: list[str]) -> trio.Process:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment_of(name),
            )
        self.processes[name] = process
        self.log(f"{name} is started")
        return process

    async def _until_line(self, process: trio.Process, name: str, wanted: str) -> None:
        path = self.folder / f"{name}.log"
        with trio.move_on_after(30) as patience:
            while path.read_text().count(wanted) <= self._log_starts:
                if process.returncode is not None:
                    died = process.returncode == -signal.SIGKILL and name in self.faults
                    if not died and not self._excused():
                        self.complaints.append(f"{name} does not start: {process.returncode}")
                    break
                await trio.sleep(0.01)
        if patience.cancelled_caught:
            self.complaints.append(f"{name} does not start within 30 s")
        self._log_starts = path.read_text().count(wanted)

    async def _start_process(self, name: str) -> None:
        await (self._start_log() if name == "log" else self._start_producer(name))

    async def _stop_process(self, name: str) -> None:
        process = self.processes[name]
        self.log(f"SIGTERM {name}")
        process.terminate()
        with trio.move_on_after(STOP_SECONDS) as patience:
            await process.wait()
        if patience.cancelled_caught:
            self.complaints.append(f"{name} does not stop within {STOP_SECONDS} s")
            process.kill()
            await process.wait()
        elif process.returncode != 0 and not self._excused():
            last = (self.folder / f"{name}.log").read_text().splitlines()[-1:]
            self.complaints.append(f"{name} stopped with {process.returncode}: {last}")
        self.log(f"{name} has ended")

    # -- the adversary -----------------------------------------------------------------------

    async def _torment_all(self) -> None:
        end = trio.current_time() + self.seconds
        async with trio.open_nursery() as under_way:
            while trio.current_time() < end:
                await trio.sleep(self._chance.choice([0.05, 0.3, 0.6, 1.2]))
                deed, what = self._chance.choice(DEEDS)
                if what == "member":
                    self._do_to_member(deed, under_way)
                else:
                    name = "log" if what == "log" else self._chance.choice(PRODUCERS)
                    pause = self._chance.choice(PAUSES)
                    if name in self.busy:
                        continue
                    self.busy.add(name)
                    under_way.start_soon(self._do_to_process, deed, name, pause)
                self.done[f"{deed} {what}"] += 1
        self.log("the adversary is done")
        while any(m.state in ("paused", "starting") for m in self.members.values()):
            await trio.sleep(0.05)
        while len(self._in("running")) < 2:
            await self._start(self.way, self._name(self.way))

    async def _do_to_process(self, deed: str, name: str, pause: float) -> None:
        process = self.processes[name]
        if process.returncode is not None:
            if not self._was_to_die(name) and not self._excused():
                self.complaints.append(f"{name} ended by itself: {process.returncode}")
        elif deed == "pause":
            self.log(f"SIGSTOP {name} for {pause:g} s")
            process.send_signal(signal.SIGSTOP)
            await trio.sleep(pause)
            process.send_signal(signal.SIGCONT)
            self.busy.discard(name)
            return
        elif deed == "kill":
            self.log(f"SIGKILL {name}")
            process.kill()
            await process.wait()
            self._was_slain(name)
        else:
            await self._stop_process(name)
        await trio.sleep(pause / 2)
        await self._start_process(name)

    def _do_to_member(self, deed: str, under_way: trio.Nursery) -> None:
        running = self._in("running")
        living = [m for m in self.members.values() if m.state not in ("over", "dead")]
        if deed == "add" or not running:
            if len(living) < MOST:
                under_way.start_soon(self._start, self.way, self._name(self.way))
            return
        victim = self._chance.choice(running)
        if deed == "kill":
            self.log(f"SIGKILL {victim.name}")
            victim.state = "dead"
            self.dead.add(victim.name)
            victim.signal(signal.SIGKILL)
        elif deed == "stop":
            under_way.start_soon(self._stop, victim)
        elif deed == "cut":
            self.log(f"cut {victim.name}")
            victim.signal(signal.SIGUSR1)
        elif deed == "pause":
            under_way.start_soon(self._pause, victim, SESSION_SECONDS * 0.3)
        else:
            under_way.start_soon(self._freeze, victim)
        if len(living) <= 2 and deed != "cut":
            under_way.start_soon(self._start, self.way, self._name(self.way))

    async def _freeze(self, member: Member) -> None:
        """Stop a member for longer than its session lasts; it ends, unless nobody was there to see
        that it was silent."""
        seconds = SESSION_SECONDS * 2 + 1
        self.log(f"SIGSTOP {member.name} for {seconds:g} s")
        member.state = "paused"
        member.signal(signal.SIGSTOP)
        await trio.sleep(seconds)
        member.signal(signal.SIGCONT)
        with trio.move_on_after(3):
            await member.process.wait()
            self.dead.add(member.name)
        if member.process.returncode is None:
            self.log(f"{member.name} goes on")
            member.state = "running"

    async def _stop_members(self) -> None:
        before = len(self.complaints)
        async with trio.open_nursery() as stopping:
            for member in self._in("running"):
                stopping.start_soon(self._stop, member)
        self.dead_at_the_end = len(self.complaints) > before

    async def _start_again(self) -> None:
        """What was stopped in order goes on, and has nothing to do."""
        await self._start(self.way, "again")
        await trio.sleep(1)
        await self._stop_members()
        replayed = (self.folder / "again.notes").read_text().splitlines()
        if replayed and not self.dead_at_the_end:
            self.complaints.append(f"a restart in order processes {len(replayed)}: {replayed[:3]}")

    async def _end(self) -> None:
        self.busy.update(self.processes)  # nobody starts them again
        with trio.CancelScope(shield=True):
            for process in self.processes.values():
                if process.returncode is None:
                    process.kill()
                await process.wait()
        await super()._end()


async def torture_log(
    folder: Path, seed: int, seconds: float, say: Callable[[str], None]
) -> LogTorture:
    """Run it once; ``complaints`` of what it returns should be empty."""
    run = LogTorture(folder, seed, seconds, say=say)
    await run.run()
    return run


def main(seed: int, seconds: float, folder: Path) -> bool:
    """Run it once, and print what happens; whether all claims held."""
    log_setup.configure("warning")
    print(f"LOG SEED={seed} SECONDS={seconds:g}  notes in {folder}", flush=True)
    run = trio.run(partial(torture_log, folder, seed, seconds, partial(print, flush=True)))
    print(f"{run.total} events; {dict(run.done)}; dead: {sorted(run.dead)}")
    for complaint in run.complaints:
        print(f"COMPLAINT {complaint}")
    return not run.complaints
