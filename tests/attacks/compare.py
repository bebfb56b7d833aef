"""A healthy sender beside attackers, and beside honest peers that send as many frames."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import trio
from harness import NodeProcess, environment, node_process, raw_peer, until
from shared_apps import VICTIM

from attacks.rows import Click
from s4node import Client
from s4node.net.client.client_stream import ClientStream
from s4node.net.wire import frame as wire

MB = 1 << 20

MEMORY = 256 * MB
"""The bytes that attackers may add to the memory of a node."""

LOG = MB
"""The bytes of log that they may cause."""

P99 = 0.050
TIMES = 2.0
_QUIET = 0.010  # a p99 below this is as good as the control's
_PAUSE = 0.004
_BEGINNING = 0.5  # seconds that attackers have to begin


class Seen(NamedTuple):
    """The 99th percentile of the seconds until a healthy sender's acknowledgement."""

    p99: float
    sent: int
    counted: int
    frames: float  # of the others, a second
    memory: int
    log: int


class Compared(NamedTuple):
    """Beside attackers, and beside honest peers."""

    attacked: Seen
    control: Seen

    def told(self) -> str:
        a, c = self.attacked, self.control
        return (
            f"p99 {a.p99 * 1000:.1f} ms (honest peers: {c.p99 * 1000:.1f}), "
            f"{a.counted} of {a.sent} counted, {a.frames:.0f} frames/s (honest: {c.frames:.0f}), "
            f"{a.memory / MB:+.0f} MB, {a.log} bytes of log; {self.complaints() or 'within bounds'}"
        )

    def complaints(self, *, busy: bool = False) -> list[str]:
        """The bounds that do not hold; on a ``busy`` machine, one bound of the p99 is enough."""
        a, c = self.attacked, self.control
        slow = a.p99 >= P99
        slower = a.p99 > max(_QUIET, TIMES * c.p99)
        found = {
            "p99 over 50 ms": slow and (slower or not busy),
            "p99 over twice the control's": slower and (slow or not busy),
            "events are missing": a.counted != a.sent or c.counted != c.sent,
            "memory": a.memory > MEMORY,
            "log": a.log > LOG,
        }
        return [what for what, true in found.items() if true]


async def compare(folder: Path, row: str, seconds: float) -> Compared:
    """Measure beside attackers, then beside as many honest frames."""
    attacked = await _measured(folder / "attacked", row, seconds, 0.0)
    control = await _measured(folder / "control", row, seconds, max(1.0, attacked.frames))
    return Compared(attacked, control)


async def _measured(folder: Path, row: str, seconds: float, rate: float) -> Seen:
    folder.mkdir(parents=True)  # noqa: ASYNC240
    (folder / "app.py").write_text(VICTIM)
    options = ("-p", "s4.cluster.partitions=2", "-p", f"s4.log.folder={folder / 'log'}")
    async with node_process("app.py", *options, cwd=folder) as node:
        await _create(node, "pages", 1, "")
        await _create(node, "keyed", 4, "user")
        async with Client(node.address, producer="healthy") as client:
            clicks = await client.stream("clicks")
            healthy = _Healthy(clicks)
            await healthy.send_for(0.5)
            healthy.seconds.clear()
            memory, log = memory_of(node), len(node.errors)
            command = [sys.executable, "-m", "attacks", node.address, row, str(seconds)]
            if rate:
                command += ["--rate", str(rate)]
            peak = memory
            async with trio.open_nursery() as nursery:
                done: list[subprocess.CompletedProcess[bytes]] = []

                async def attack() -> None:
                    path = str(Path(__file__).parent.parent)
                    env = environment()
                    env["PYTHONPATH"] += f":{path}"
                    done.append(
                        await trio.run_process(command, capture_stdout=True, env=env, check=True)
                    )

                async def watch() -> None:
                    nonlocal peak
                    while True:
                        peak = max(peak, memory_of(node))
                        await trio.sleep(0.05)

                nursery.start_soon(watch)
                nursery.start_soon(attack)
                await trio.sleep(_BEGINNING)
                await healthy.send_for(math.inf, lambda: bool(done))
                nursery.cancel_scope.cancel()
            await healthy.send(-1)
            counted = await _counted(node)
    told = json.loads(done[0].stdout)
    times = sorted(healthy.seconds)
    return Seen(
        times[len(times) * 99 // 100],
        healthy.sent,
        counted,
        told["frames"] / told["seconds"],
        peak - memory,
        len(node.errors) - log,
    )


class _Healthy:
    """Sends an event every few milliseconds; ``seconds`` until each was acknowledged."""

    def __init__(self, stream: ClientStream) -> None:
        self.seconds: list[float] = []
        self.sent = 0
        self._stream = stream

    async def send_for(self, seconds: float, over: Callable[[], bool] = lambda: False) -> None:
        until_then = trio.current_time() + seconds
        while trio.current_time() < until_then and not over():
            await self.send(self.sent)
            await trio.sleep(_PAUSE)

    async def send(self, n: int) -> None:
        began = trio.current_time()
        await self._stream.send(Click("healthy", n))
        assert await self._stream.flush() == []
        self.seconds.append(trio.current_time() - began)
        self.sent += 1


async def _counted(node: NodeProcess) -> int:
    await until(lambda: any(line.startswith("counted") for line in node.stdout), "it is counted")
    return int(next(line for line in node.stdout if line.startswith("counted")).split()[1])


async def _create(node: NodeProcess, stream: str, partitions: int, key: str) -> None:
    arguments = {"stream": stream, "partitions": partitions, "key": key}
    async with raw_peer(node.address) as peer:
        await peer.send_frames(wire.Query(1, "create", arguments))
        answer = await peer.receive_until(lambda header: isinstance(header, wire.Answer))
    assert isinstance(answer, wire.Answer)
    assert not answer.error


def memory_of(node: NodeProcess) -> int:
    """The resident memory of the node's process, in bytes."""
    for line in Path(f"/proc/{node.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")
