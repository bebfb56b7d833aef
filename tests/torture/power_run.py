"""One run of exactly once on a machine that loses its power: what was waited for is there.

Rules
- Every commit waits for the disk. At each wait the processes copy what is on their disk, the log's
  node its own and the containers theirs; a power cut kills all of them and leaves the last copies.
- Producers are on another machine: they know what they have sent, and start again with the others.
- One thing happens after the other, for a cut takes everybody.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio
from harness import ROOT, environment
from power import Power

from s4node.failpoints import VARIABLE
from s4node.process import log_setup
from torture.exact_run import PATIENCE_SECONDS, STREAM_OF, ExactTorture

CONTAINERS = 2
DEEDS = ("power", "power", "member", "log", "producer")


class PowerTorture(ExactTorture):
    """One run; ``complaints`` should be empty. It ends after so many ``cuts``."""

    stop_seconds = 60.0  # each commit copies a folder, which stays small
    pause = 2.0

    def __init__(self, folder: Path, seed: int, cuts: int, *, say: Callable[[str], None]) -> None:
        super().__init__(folder, seed, cuts, 0, say=say, deeds=DEEDS)
        of_log, of_containers = self.machine / "of-log", self.machine / "of-containers"
        self.power = {"log": Power(of_log), "exact": Power(of_containers)}
        self.coordination = of_containers / "cluster"
        self.state = of_containers / "state"
        self.first = CONTAINERS
        self.settings |= {
            "s4.state.sync": "full",
            "s4.cluster.partitions": "2",
        }
        self.of_log |= {
            "s4.log.folder": str(of_log / "log"),
            "s4.state.folder": str(of_log / "state"),
            "s4.log.sync": "full",
        }

    def _environment_of(self, name: str) -> dict[str, str]:
        power = self.power.get(name.partition("-")[0])
        fault = {VARIABLE: power.fault} if power and name not in STREAM_OF else {}
        return environment(PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}", **fault)

    @property
    def _enough(self) -> bool:
        return self.kills <= 0

    async def _torment_all(self) -> None:
        until = trio.current_time() + PATIENCE_SECONDS
        while not self._enough and trio.current_time() < until:
            await trio.sleep(self._chance.uniform(0.5, 3.0))
            deed = self._chance.choice(self._deeds)
            if deed == "power":
                await self._cut_power()
            elif deed == "member":
                self._kill(self._one("exact"))
                await self._start("exact", self._name("exact"))
            else:
                name = "log" if deed == "log" else self._chance.choice(list(STREAM_OF))
                self.busy.add(name)
                await self._do_to_process("kill", name, 0.1)
        self.log("the adversary is done")

    async def _cut_power(self) -> None:
        self.log("the power is cut")
        self.busy.update(self.processes)
        living = [m for m in self.members.values() if m.process.returncode is None]
        for member in living:
            member.state = "dead"
            self.dead.add(member.name)
        for process in [*(m.process for m in living), *self.processes.values()]:
            process.kill()
        for process in [*(m.process for m in living), *self.processes.values()]:
            await process.wait()
        for power in self.power.values():
            power.cut()
        self.killed["power"] += 1
        self.kills -= 1
        await self._start_log()
        async with trio.open_nursery() as starting:
            for _ in range(CONTAINERS):
                starting.start_soon(self._start, "exact", self._name("exact"))
        async with trio.open_nursery() as starting:
            for name in STREAM_OF:
                starting.start_soon(self._start_producer, name)

    def _killed(self, where: str) -> None:
        self.killed[where] += 1


async def torture_power(
    folder: Path, seed: int, cuts: int, say: Callable[[str], None]
) -> PowerTorture:
    """Run it once; ``complaints`` of what it returns should be empty."""
    run = PowerTorture(folder, seed, cuts, say=say)
    await run.run()
    return run


def main(seed: int, cuts: int, folder: Path) -> bool:
    """Run it once, and print what happens; whether all claims held."""
    log_setup.configure("warning")
    print(f"POWER SEED={seed} CUTS={cuts}  logs in {folder}", flush=True)
    run = trio.run(partial(torture_power, folder, seed, cuts, partial(print, flush=True)))
    print(f"{run.total} events came out; {dict(run.killed)}")
    for complaint in run.complaints:
        print(f"COMPLAINT {complaint}")
    print("exact" if not run.complaints else "NOT exact")
    return not run.complaints
