"""One run of repartitions: 4 partitions become 6, 3, and 4 again, amid deaths, and all is exact.

Rules
- The apps and the input that can be read again are those of the run of savepoints. One program goes
  on over everything, one sends everything again in each of its lives, one is away for some rounds.
- A round kills and stops processes at random moments, ends ``circle`` in order while programs send,
  and gives it another number of partitions. That command is killed at a point of it as well; then
  ``circle`` is as it was, or does not start before the command has been repeated.
- In some rounds, and in the end, everything is waited for. Then every user has exactly what the
  tokens of all sources lead to, and ``ends`` has got each of them once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio

from s4node import Client
from s4node.failpoints import POINTS
from s4node.process import log_setup
from torture.circle import Token, truth_of
from torture.savepoint_run import GOING, PATIENCE_SECONDS, Program, SavepointTorture

AWAY = "away"
NUMBERS = (4, 6, 3)
OF_REPARTITION = [point for point in POINTS if point.startswith("repartition.")]
UNDONE = ("repartition.moved", "repartition.made")
"""The points before which nothing is decided."""


class RepartitionTorture(SavepointTorture):
    """One run; ``complaints`` should be empty."""

    faults = ("commit.written", "outbox.release", "outbox.settled")

    def __init__(self, folder: Path, seed: int, rounds: int, *, say: Callable[[str], None]) -> None:
        super().__init__(folder, seed, rounds, say=say)
        self.partitions = NUMBERS[0]
        self._programs[AWAY] = Program(AWAY)

    async def _round(self, number: int) -> None:
        self.log(f"round {number}")
        sending = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send, sending)
            async with trio.open_nursery() as work:
                work.start_soon(self._torment)
                await trio.sleep(self._chance.uniform(0.2, 2.0))
                work.cancel_scope.cancel()
            self._resume("ends")
            if self._chance.random() < 0.4:
                await self._come_back()
            if self._chance.random() < 0.5:  # else it sends on over the change
                sending.cancel()
            flushed = trio.Event()
            with trio.move_on_after(PATIENCE_SECONDS):
                await self._flushes.send(flushed)
            await self._change(NUMBERS[(number + 1) % len(NUMBERS)])
            with trio.move_on_after(PATIENCE_SECONDS):
                await flushed.wait()
            if not flushed.is_set():
                self.complaints.append(f"{GOING} was not acknowledged in {PATIENCE_SECONDS:g} s")
            sending.cancel()
        if self._chance.random() < 0.3:
            await self._flush_again()
            await self._settle(truth_of(self._sent()), f"after round {number}")

    async def _send(self, scope: trio.CancelScope) -> None:
        """Have events come in until that is cancelled."""
        with scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._flow)
                nursery.start_soon(self._run_again)

    def _sent(self) -> list[Token]:
        """All tokens that were sent."""
        drops = dict(enumerate(self._told))
        clicks = {
            (program.name, q): len(sent)
            for program in self._programs.values()
            for q, sent in enumerate(program.sent)
        }
        return self._tokens(drops, clicks, ())

    async def _come_back(self) -> None:
        """Have the program that was away send more, and go away again."""
        program = self._programs[AWAY]
        async with Client(self._addresses["circle"], producer=AWAY, timeout=120) as client:
            clicks = await client.stream("clicks", types=Token)
            await clicks.send_many(program.made(self._chance.randrange(1, 200)))
            if refused := await clicks.flush():
                self.complaints.append(f"{AWAY}: {refused[:3]}")
        self.done["came back"] += 1

    async def _change(self, partitions: int) -> None:
        """End ``circle``, give it so many partitions, and start it."""
        while not self.complaints:
            await self._stop("circle")
            if await self._repartitioned(partitions):
                self.partitions = partitions
                self.done[f"{partitions} partitions"] += 1
                break
            await self._start("circle")  # for what was under way
            await trio.sleep(self._chance.uniform(0.5, 2.0))
        await self._start("circle")

    async def _repartitioned(self, partitions: int) -> bool:
        """Run the command, mostly with a death at one of its points; return False if it was
        refused, or undone and ``circle`` is to go on as it was."""
        words = ("repartition", "circle", str(partitions))
        if self._chance.random() < 0.7:
            point = self._chance.choice(OF_REPARTITION)
            often = self._chance.randint(1, partitions) if point == "repartition.moved" else 1
            status, said = await self._command(*words, fault=f"{point}:{often}")
            if self._refused(status, said):
                return False
            if status != -signal.SIGKILL:
                self.complaints.append(f"it did not die at {point}: {status} {said}")
            self.done[point] += 1
            if point in UNDONE:
                if self._chance.random() < 0.5:
                    return False
            else:
                status, said = await self._command("run", app="circle")
                if status != 1 or f"complete it: s4 repartition circle {partitions}" not in said:
                    self.complaints.append(f"killed at {point}, the app starts: {status} {said}")
        status, said = await self._command(*words)
        if self._refused(status, said):
            return False
        if status:
            self.complaints.append(f"{partitions} partitions: {status} {said}")
        return True

    def _refused(self, status: int, said: str) -> bool:
        """Return True if something was still under way."""
        refused = status == 1 and "the job keeps its" in said
        if refused:
            self.log(said.strip().replace("\n", " "))
            self.done["refused"] += 1
        return refused


async def torture_repartitions(
    folder: Path, seed: int, rounds: int, say: Callable[[str], None]
) -> RepartitionTorture:
    """Run it once; ``complaints`` of what it returns should be empty."""
    run = RepartitionTorture(folder, seed, rounds, say=say)
    await run.run()
    return run


def main(seed: int, rounds: int, folder: Path) -> bool:
    """Run it once, and print what happens; whether all claims held."""
    log_setup.configure("warning")
    print(f"REPARTITION SEED={seed} ROUNDS={rounds}  logs in {folder}", flush=True)
    run = trio.run(partial(torture_repartitions, folder, seed, rounds, partial(print, flush=True)))
    print(f"{run.total} tokens; {dict(run.done)}")
    for complaint in run.complaints:
        print(f"COMPLAINT {complaint}")
    print("exact" if not run.complaints else "NOT exact")
    return not run.complaints
