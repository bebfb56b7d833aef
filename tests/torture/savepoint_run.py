"""One run of savepoints: taken amid events and deaths, and gone back to, one after the other.

Rules
- Tokens come into ``circle`` from an input that can be read again and from two programs: one sends
  everything again after each restore, the other goes on and so loses what the savepoint lacks.
- A round takes savepoints at random moments, while ``circle``, ``ends`` or the command that takes
  the savepoint is killed at a random moment or at a point of a savepoint. Then ``circle`` ends, in
  order or not, and goes on from any of the savepoints that were ever taken; the command that
  restores is killed at a point as well, and started again.
- What goes on first gets no new events. Then every user has exactly what those tokens lead to that
  came into the savepoint; and ``ends`` has got exactly what the command has said that comes again.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio
from harness import ROOT, children, environment, free_port, s4
from judge import told, wrong_state

from s4node import Client
from s4node.errors import S4Error
from s4node.events.keys import Partitioner, crc32m
from s4node.failpoints import POINTS
from s4node.process import log_setup
from torture.circle import PARTITIONS, Token, Truth, token, truth_of
from torture.kept_circle import Arrivals, Kept, arrivals, kept_in, kept_now

AGAIN, GOING = "again", "going"
OF_COMMAND = ["savepoint.asked", "savepoint.cuts", "savepoint.manifest", "savepoint.named"]
OF_CONTAINER = ["savepoint.due", "savepoint.cut", "savepoint.kept", "commit.written"]
OF_RESTORE = [point for point in POINTS if point.startswith("restore.")]
PATIENCE_SECONDS = 120.0
TIMEOUT = "15"
"""Seconds that a savepoint may take, if containers die meanwhile."""

_KILLED = ": it was ended by SIGKILL"
"""What ``s4 run --nodes`` says if one of its containers is killed before all of them run."""

_route = Partitioner(PARTITIONS, crc32m).partition_of
T = TypeVar("T")
Gap = tuple[int, int, int]
"""Events of the program that goes on which are lost: partition, first, end."""


@dataclass
class Saved:
    """A savepoint: what is in it, the events that were lost before, how many arrivals more there
    are than tokens that ended, once all of them have arrived, and what was ``sent`` last."""

    name: str
    kept: Kept
    gaps: tuple[Gap, ...]
    extra: int
    sent: Mapping[str, tuple[str, int]]


class Program:
    """A program that sends tokens; ``sent`` are those of each partition, in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.total = 0
        self.sent: list[list[Token]] = [[] for _ in range(PARTITIONS)]

    def made(self, count: int) -> list[Token]:
        """The next tokens."""
        tokens = [token(self.name, n) for n in range(self.total, self.total + count)]
        self.total += count
        for one in tokens:
            self.sent[_route(one.user)].append(one)
        return tokens


class SavepointTorture:
    """One run; ``complaints`` should be empty."""

    faults: Sequence[str] = OF_CONTAINER
    """The points at which ``circle`` may die."""
    partitions = PARTITIONS
    """How many ``circle`` has."""

    def __init__(self, folder: Path, seed: int, rounds: int, *, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.rounds = rounds
        self.complaints: list[str] = []
        self.done: Counter[str] = Counter()
        self.saved: list[Saved] = []
        self.total = 0
        self._chance = random.Random(seed)
        self._say = say
        self._began = 0.0
        self._processes: dict[str, trio.Process] = {}
        self._addresses = {app: f"tcp://127.0.0.1:{free_port()}" for app in ("circle", "ends")}
        self._wanted: dict[str, Sequence[str]] = {}  # the apps that are to run, with their options
        self._began_at: dict[str, int] = {}  # where in its log an app has begun the last time
        self._marks: dict[str, Path] = {}  # what an app makes when it dies at its point
        self._busy: set[str] = set()
        self._gaps: tuple[Gap, ...] = ()
        self._extra = 0
        self._latest: Mapping[str, tuple[str, int]] = {}  # by each task, before circle went back
        self._unsure = 0  # events that were not acknowledged when circle was killed
        self._programs = {name: Program(name) for name in (AGAIN, GOING)}
        self._nodes = self._chance.choice([0, 0, 2])
        self._commit_ms = self._chance.choice(["20", "50", "200"])

    # -- places --------------------------------------------------------------------------------

    @property
    def job(self) -> Path:
        """The folder of ``circle``."""
        return self.folder / "state" / "default" / "circle"

    def _settings_of(self, app: str) -> list[str]:
        values = {
            "s4.coordination.folder": "coordination",
            "s4.watchdog.ms": "0",
            "s4.container.restartDelay": "50",
            "task.commit.ms": self._commit_ms,
            "task.shutdown.ms": "10000",
        } | {
            "circle": {
                "s4.state.folder": "state",
                "s4.cluster.partitions": str(self.partitions),
                "s4.stream.clicks.grade": "durable",
                "s4.stream.done.consumers": "end",
                "s4.cluster.end.address": self._addresses["ends"],
                "systems.drops.type": "torture.circle:Drops",
                "systems.drops.address": str(self.folder / "limits"),
                "systems.drops.samza.offset.default": "oldest",
            },
            "ends": {
                "s4.state.folder": "state-of-ends",
                "s4.cluster.name": "end",
                "s4.cluster.partitions": "2",
                "s4.stream.done.grade": "durable",
            },
        }[app]
        return [part for key, value in values.items() for part in ("-p", f"{key}={value}")]

    def log(self, text: str) -> None:
        """Say what happens."""
        self._say(f"{trio.current_time() - self._began:7.2f} {text}")

    # -- the run ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Do everything, and leave no process behind."""
        self._began = trio.current_time()
        self.log(f"{self._nodes or 'no'} nodes, commits each {self._commit_ms} ms")
        self._write_limits([0] * PARTITIONS)
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._revive)
                await self._start("ends")
                await self._start("circle")
                await self._begin_going()
                for number in range(self.rounds):
                    await self._round(number)
                    if self.complaints:
                        break
                    self.done["round"] += 1
                else:
                    await self._finish()
                self._nursery.cancel_scope.cancel()
        finally:
            for process in self._processes.values():
                _kill_all(process)

    async def _round(self, number: int) -> None:
        self.log(f"round {number}")
        async with trio.open_nursery() as flowing:
            flowing.start_soon(self._flow)
            flowing.start_soon(self._run_again)
            async with trio.open_nursery() as work:
                work.start_soon(self._torment)
                for each in range(self._chance.randint(1, 2)):
                    await trio.sleep(self._chance.uniform(0, 0.8))
                    await self._take(f"savepoint-{number}-{each}", faulty=True)
                work.cancel_scope.cancel()
            self._resume("ends")
            if not self.saved:
                await self._take(f"savepoint-{number}-sure", faulty=False)
            await trio.sleep(self._chance.uniform(0, 0.5))
            flowing.cancel_scope.cancel()
        await self._flush_going()
        await self._go_back(self._chance.choice(self.saved))

    async def _finish(self) -> None:
        """Send everything, wait until it is done, stop in order, and compare."""
        self.log("finish")
        async with trio.open_nursery() as flowing:
            flowing.start_soon(self._run_again)
            with trio.move_on_after(1):
                await self._flow()
            await self._flush_going()
            flowing.cancel_scope.cancel()
        await self._flush_again()
        tokens = self._tokens(
            dict(enumerate(self._told)),
            {
                (p.name, q): len(p.sent[q])
                for p in self._programs.values()
                for q in range(PARTITIONS)
            },
            self._gaps,
        )
        self.total = len(tokens)
        await self._settle(truth_of(tokens), "at the end")
        await self._stop("circle")
        await self._stop("ends")
        self._compare(
            truth_of(tokens), kept_now(self.job), self._arrivals(), "when all has stopped"
        )

    # -- the truth ---------------------------------------------------------------------------------

    def _tokens(
        self,
        drops: Mapping[int, int],
        clicks: Mapping[tuple[str, int], int],
        gaps: Sequence[Gap],
    ) -> list[Token]:
        found = [token(f"drops {q}", n) for q, end in drops.items() for n in range(end)]
        for program in self._programs.values():
            for q, sent in enumerate(program.sent):
                lost = {
                    n
                    for partition, first, end in gaps
                    if program.name == GOING and partition == q
                    for n in range(first, end)
                }
                end = clicks.get((program.name, q), 0)
                found += [one for n, one in enumerate(sent[:end]) if n not in lost]
        return found

    async def _settle(self, truth: Truth, when: str) -> None:
        """Wait until all that came in is done."""
        kept, there = Kept(), Arrivals()
        with trio.move_on_after(PATIENCE_SECONDS) as patience:
            while True:
                kept = await _looked(kept_now, self.job)
                there = await _looked(arrivals, self._ends)
                if not self._differences(truth, kept, there):
                    break
                await trio.sleep(0.1)
        if patience.cancelled_caught:
            self._compare(truth, kept, there, f"{when}, after {PATIENCE_SECONDS:g} s")
        else:
            self.log(f"{len(truth.names)} tokens have arrived {when}, as they should")

    def _compare(self, truth: Truth, kept: Kept, there: Arrivals, when: str) -> None:
        self.complaints += [f"{when}: {each}" for each in self._differences(truth, kept, there)[:8]]

    def _differences(self, truth: Truth, kept: Kept, there: Arrivals) -> list[str]:
        found = wrong_state(truth.users, kept.users)
        found += told("have not arrived", sorted(truth.names.keys() - there.names.keys()))
        wanted = truth.names.total() + self._extra
        if there.names.total() != wanted:
            found.append(f"{there.names.total()} have arrived, and not {wanted}")
        return found

    @property
    def _ends(self) -> Path:
        return self.folder / "state-of-ends" / "end" / "ends"

    def _arrivals(self) -> Arrivals:
        return arrivals(self._ends)

    # -- going back ----------------------------------------------------------------------------

    async def _go_back(self, saved: Saved) -> None:
        """Restore a savepoint, and compare with a run that stopped there."""
        if self._chance.random() < 0.5:
            await self._stop("circle")
        else:
            await self._kill_for_good("circle")
        there = await self._quiet_arrivals()
        newest = kept_now(self.job)
        self.log(f"go back to {saved.name}")
        self._latest = {**self._latest, **newest.sent}
        on = {sent[0] for task, sent in saved.sent.items() if self._latest[task] == sent}
        anew = sum(each for producer, each in saved.kept.waiting.items() if producer not in on)
        self.done["tasks that had sent nothing since"] += len(on)
        self._unsure += newest.waiting.total()
        rest = there.lacks(saved.kept.ends, on) + anew + saved.kept.unnumbered
        since = there.names.total() + rest - saved.kept.ended - saved.extra
        lost = self._lost(saved.kept, newest)
        self._write_limits([saved.kept.drops[q] for q in range(PARTITIONS)])
        if since or lost:
            await self._read_refusal(saved, since, lost)
        options = ["--from", saved.name, "--outputs", "again", "--accept-loss"]
        if self._chance.random() < 0.7:
            await self._die_at(self._chance.choice(OF_RESTORE), options)
        self._extra = there.names.total() + rest - saved.kept.ended
        self._gaps = (
            *saved.gaps,
            *((q, saved.kept.clicks.get((GOING, q), 0), len(sent))  # all of which is acknowledged
              for q, sent in enumerate(self._programs[GOING].sent)),
        )  # fmt: skip
        await self._start("circle", options)
        self._wanted["circle"] = ()  # whoever starts it once more does not go back again
        self.done["restored"] += 1
        truth = truth_of(self._tokens(saved.kept.drops, saved.kept.clicks, saved.gaps))
        await self._settle(truth, f"as of {saved.name}")

    def _lost(self, saved: Kept, newest: Kept) -> Counter[str]:
        """The events that were acknowledged since, by program."""
        found: Counter[str] = Counter()
        for (program, q), end in newest.clicks.items():
            found[program] += max(0, end - saved.clicks.get((program, q), 0))
        return +found

    async def _read_refusal(self, saved: Saved, since: int, lost: Counter[str]) -> None:
        """Compare what the command says with what has happened."""
        status, said = await self._command("run", "--from", saved.name, app="circle")
        if status != 1:
            self.complaints.append(f"going back to {saved.name} ended with {status}: {said}")
        again = sum(int(n) for n in re.findall(r"done to end: (\d+) events come again", said))
        if not since <= again <= since + self._unsure:
            self.complaints.append(
                f"{saved.name}: {again} are to come again, and {since} have arrived since "
                f"({self._unsure} may have arrived before a death): {said}"
            )
        losses = {
            name: int(n) for name, n in re.findall(r"clicks from '(\w+)': (\d+) events", said)
        }
        if losses != dict(lost):
            self.complaints.append(f"{saved.name}: {losses} are said to be lost, and not {lost}")

    async def _die_at(self, point: str, options: Sequence[str]) -> None:
        """Have the restore die at a point; then the app does not start without one."""
        once = point in ("restore.begun", "restore.done")
        fault = point if once else f"{point}:{self._chance.randint(1, PARTITIONS)}"
        status, said = await self._command("run", *options, app="circle", fault=fault)
        if status != -signal.SIGKILL:
            self.complaints.append(f"the restore did not die at {point}: {status} {said}")
        self.done[point] += 1
        status, said = await self._command("run", app="circle")
        if status != 1 or "start again with --from" not in said:
            self.complaints.append(f"killed at {point}, the app starts: {status} {said}")

    async def _quiet_arrivals(self) -> Arrivals:
        """What has arrived, once nothing more does."""
        self._resume("ends")
        found, same = Arrivals(), 0
        while same < 4:
            await trio.sleep(0.15)
            now = await _looked(arrivals, self._ends)
            same = same + 1 if now.lanes == found.lanes and self._runs("ends") else 0
            found = now
        return found

    # -- savepoints ------------------------------------------------------------------------------

    async def _take(self, name: str, *, faulty: bool) -> None:
        """Take a savepoint, mostly with somebody dying meanwhile."""
        fault = ""
        if faulty and self._chance.random() < 0.4:
            fault = self._chance.choice(OF_COMMAND)
        words = ["savepoint", "take", "circle", "--name", name, "--timeout", TIMEOUT]
        gaps, extra, sent = self._gaps, self._extra, self._latest
        status, said = await self._command(*words, fault=fault)
        there = (self.job / "savepoints" / name / "manifest.json").exists()
        self.log(f"{name}: {status} {fault}")
        self.done[fault or ("taken" if there else "not taken")] += 1
        if (status == 0) != there and fault != "savepoint.named":
            self.complaints.append(f"{name}: the command ended with {status}, there: {there}")
        if status not in (0, 1, -signal.SIGKILL) or (not faulty and status):
            self.complaints.append(f"{name}: {status} {said}")
        if there:
            kept = await _looked(lambda _: kept_in(self.job, name), self.job)
            self.saved.append(Saved(name, kept, gaps, extra, {**sent, **kept.sent}))

    async def _torment(self) -> None:
        """Kill and stop processes at random moments."""
        while True:
            await trio.sleep(self._chance.uniform(0.1, 1.5))
            deed = self._chance.choice(["kill circle", "kill circle", "kill ends", "stop ends"])
            app = deed.split()[1]
            if not self._runs(app) or app in self._busy:
                continue
            self.done[deed] += 1
            self.log(deed)
            if deed == "stop ends":
                self._processes[app].send_signal(signal.SIGSTOP)
                await trio.sleep(self._chance.uniform(0.2, 2.5))
                self._resume(app)
            else:
                await self._kill_one(app)

    # -- programs --------------------------------------------------------------------------------

    async def _flow(self) -> None:
        """Let the input that can be read again go on."""
        while True:
            self._write_limits([each + self._chance.randrange(20) for each in self._told])
            await trio.sleep(self._chance.uniform(0.02, 0.2))

    async def _run_again(self) -> None:
        """Send everything again, and then more."""
        program = self._programs[AGAIN]
        async with Client(self._addresses["circle"], producer=AGAIN, timeout=120) as client:
            clicks = await client.stream("clicks", types=Token, again=True)
            known = [token(AGAIN, n) for n in range(program.total)]
            await clicks.send_many(known)
            while True:
                await clicks.send_many(program.made(self._chance.choice([1, 10, 60])))
                await trio.sleep(self._chance.uniform(0.02, 0.2))

    async def _flush_again(self) -> None:
        program = self._programs[AGAIN]
        async with Client(self._addresses["circle"], producer=AGAIN, timeout=120) as client:
            clicks = await client.stream("clicks", types=Token, again=True)
            await clicks.send_many([token(AGAIN, n) for n in range(program.total)])
            if refused := await clicks.flush():
                self.complaints.append(f"{AGAIN}: {refused[:3]}")

    async def _begin_going(self) -> None:
        """Open the program that goes on over everything."""
        opened = trio.Event()
        asked, given = trio.open_memory_channel[trio.Event](0)
        self._flushes = asked

        async def go_on() -> None:
            program = self._programs[GOING]
            async with Client(self._addresses["circle"], producer=GOING, timeout=120) as client:
                clicks = await client.stream("clicks", types=Token)
                opened.set()
                async for flushed in given:
                    await clicks.send_many(program.made(self._chance.randrange(300)))
                    if refused := await clicks.flush():
                        self.complaints.append(f"{GOING}: {refused[:3]}")
                    flushed.set()

        self._nursery.start_soon(go_on)
        await opened.wait()

    async def _flush_going(self) -> None:
        """Have the program that goes on send some, and wait until they are committed."""
        flushed = trio.Event()
        with trio.move_on_after(PATIENCE_SECONDS) as patience:
            await self._flushes.send(flushed)
            await flushed.wait()
        if patience.cancelled_caught:
            self.complaints.append(f"{GOING} was not acknowledged in {PATIENCE_SECONDS:g} s")

    def _write_limits(self, ends: Sequence[int]) -> None:
        self._told = list(ends)
        new = self.folder / "limits.new"
        new.write_text(json.dumps(self._told))
        new.replace(self.folder / "limits")

    # -- processes -------------------------------------------------------------------------------

    def _runs(self, app: str) -> bool:
        return app in self._processes and self._processes[app].returncode is None

    def _resume(self, app: str) -> None:
        with suppress(ProcessLookupError):
            self._processes[app].send_signal(signal.SIGCONT)

    def _environment(self, fault: str) -> dict[str, str]:
        return environment(PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}", S4_FAULT=fault)

    async def _start(self, app: str, options: Sequence[str] = ()) -> None:
        """Start an app, and wait until it runs. Half of the time ``circle`` is to die at a point
        of a savepoint, once."""
        self._busy.add(app)
        fault = ""
        mark = self._marks[app] = self.folder / f"died-{self.done['start']}"
        if app == "circle" and self._chance.random() < 0.5:
            fault = f"{self._chance.choice(self.faults)}:{self._chance.randint(1, 4)}@{mark}"
        self.done["start"] += 1
        nodes = ["--nodes", str(self._nodes)] if self._nodes and app == "circle" else []
        command = s4("run", f"torture.circle:{app}", "--listen", self._addresses[app], *nodes)
        place = self.folder / f"{app}.log"
        self._began_at[app] = len(place.read_text()) if place.exists() else 0
        self.log(f"{app} starts {' '.join(options)} {fault}")
        with place.open("ab") as out:
            process = await trio.lowlevel.open_process(
                [*command, *options, *self._settings_of(app)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.folder,
                env=self._environment(fault),
            )
        self._processes[app] = process
        self._wanted[app] = options
        with trio.move_on_after(PATIENCE_SECONDS) as patience:
            while process.returncode is None:
                if " runs at " in place.read_text()[self._began_at[app] :]:
                    break
                await trio.sleep(0.02)
        if patience.cancelled_caught:
            self.complaints.append(f"{app} does not start in {PATIENCE_SECONDS:g} s")
        self._busy.discard(app)

    async def _revive(self) -> None:
        """Start what has died, unless it is not wanted."""
        while True:
            await trio.sleep(0.05)
            for app in list(self._wanted):
                if app not in self._wanted or app in self._busy or self._runs(app):
                    continue
                status = self._processes[app].returncode
                said = (self.folder / f"{app}.log").read_text()[self._began_at[app] :]
                killed_at_start = " runs at " not in said and _KILLED in said
                if status != -signal.SIGKILL and not (self._nodes and killed_at_start):
                    last = said.splitlines()[-3:]
                    self.complaints.append(f"{app} ended by itself: {status} {last}")
                    del self._wanted[app]
                    continue
                self.done[f"{app} died"] += 1
                await self._start(app, self._wanted[app])

    async def _kill_one(self, app: str) -> None:
        """Kill an app, or one of its containers, and wait until it is gone."""
        process = self._processes[app]
        below = children(process.pid)
        victim = self._chance.choice(below) if below else process.pid
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        with trio.CancelScope(shield=True):
            while process.returncode is None and victim in (process.pid, *children(process.pid)):
                await trio.sleep(0.01)

    async def _kill_for_good(self, app: str) -> None:
        await self._not_wanted(app)
        self.log(f"kill {app}")
        process = self._processes[app]
        _kill_all(process)
        await process.wait()

    async def _stop(self, app: str) -> None:
        """Stop an app in order; start and stop it again if it dies at its point meanwhile."""
        options = await self._not_wanted(app)
        self.log(f"stop {app}")
        process = self._processes[app]
        process.terminate()
        with trio.move_on_after(PATIENCE_SECONDS) as patience:
            await process.wait()
        if process.returncode == -signal.SIGKILL and self._marks[app].exists():
            self.done[f"{app} died"] += 1
            await self._start(app, options)
            await self._stop(app)
        elif patience.cancelled_caught or process.returncode:
            last = (self.folder / f"{app}.log").read_text().splitlines()[-3:]
            self.complaints.append(f"{app} stopped with {process.returncode}: {last}")
            _kill_all(process)
            await process.wait()

    async def _not_wanted(self, app: str) -> Sequence[str]:
        """Have an app that runs not started again; returns its options."""
        while app in self._busy or not self._runs(app):
            await trio.sleep(0.02)
        return self._wanted.pop(app)

    async def _command(self, *words: str, app: str = "", fault: str = "") -> tuple[int, str]:
        """Run a command to its end; its status, and what it said."""
        if app:
            words = (
                words[0],
                f"torture.circle:{app}",
                "--listen",
                self._addresses[app],
                *words[1:],
            )
            if self._nodes:
                words = (*words, "--nodes", str(self._nodes))
        with trio.fail_after(PATIENCE_SECONDS * 2):
            done = await trio.run_process(
                s4(*words, *self._settings_of("circle")),
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                cwd=self.folder,
                env=self._environment(fault),
            )
        return done.returncode, done.stderr.decode()


def _kill_all(process: trio.Process) -> None:
    """Kill a process, with those that it has started."""
    if process.returncode is None:
        for pid in (*children(process.pid), process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def _looked(look: Callable[[Path], T], job: Path) -> T:
    """What is on disk, once it can be read: a task may be taken over just now."""
    while True:
        try:
            return await trio.to_thread.run_sync(look, job)
        except (S4Error, FileNotFoundError):
            await trio.sleep(0.05)


async def torture_savepoints(
    folder: Path, seed: int, rounds: int, say: Callable[[str], None]
) -> SavepointTorture:
    """Run it once; ``complaints`` of what it returns should be empty."""
    run = SavepointTorture(folder, seed, rounds, say=say)
    await run.run()
    return run


def main(seed: int, rounds: int, folder: Path) -> bool:
    """Run it once, and print what happens; whether all claims held."""
    log_setup.configure("warning")
    print(f"SAVEPOINT SEED={seed} ROUNDS={rounds}  logs in {folder}", flush=True)
    run = trio.run(partial(torture_savepoints, folder, seed, rounds, partial(print, flush=True)))
    print(f"{run.total} tokens; {dict(run.done)}")
    for complaint in run.complaints:
        print(f"COMPLAINT {complaint}")
    print("exact" if not run.complaints else "NOT exact")
    return not run.complaints
