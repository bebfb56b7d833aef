"""What may happen to the machines of a cluster, and how it is undone.

Rules
- A fault has a victim among the nodes, but for those of ZooKeeper. It ends with its cause undone,
  and whatever died of it started again.
- A deploy, a savepoint, or the drain of a node, may be refused while something else is wrong. What
  it must not do is to leave the cluster unwell. A repartition that failed is repeated.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import trio

from torture.machines import STORE

if TYPE_CHECKING:
    from torture.machines_run import Cluster

SESSION_SECONDS = 3.0
HOLD_SECONDS = 1.5 * SESSION_SECONDS
FAR_SECONDS = 0.1
REPEAT_SECONDS = 240.0
"""How long a repartition may be refused: a deployment beside it may last as long."""

Fault = Callable[["Cluster", str], Awaitable[None]]


async def _kill_container(run: Cluster, victim: str) -> None:
    await run.kill(victim, node=False, containers=True)


async def _kill_node(run: Cluster, victim: str) -> None:
    await run.kill(victim, node=True, containers=False)
    await trio.sleep(1)
    await run.start_node(victim)


async def _kill_both(run: Cluster, victim: str) -> None:
    await run.kill(victim, node=True, containers=True)
    await trio.sleep(HOLD_SECONDS)
    await run.start_node(victim)


async def _lose_disk(run: Cluster, victim: str) -> None:
    await run.kill(victim, node=True, containers=True)
    run.machines[victim].wipe()
    await run.start_node(victim)


async def _pause(run: Cluster, victim: str) -> None:
    await run.stop_for(victim, 0.5 * SESSION_SECONDS)


async def _freeze(run: Cluster, victim: str) -> None:
    await run.stop_for(victim, 2.5 * SESSION_SECONDS)


async def _unplug(run: Cluster, victim: str) -> None:
    run.machines[victim].unplug()
    await trio.sleep(HOLD_SECONDS)
    run.machines[victim].plug_in()


async def _cut_zookeeper(run: Cluster, victim: str) -> None:
    there = run.machines["zookeeper"].ip
    run.machines[victim].cut(there)
    await trio.sleep(HOLD_SECONDS)
    run.machines[victim].join(there)


async def _deafen(run: Cluster, victim: str) -> None:
    run.machines[victim].deafen(run.machines["zookeeper"].ip)
    await trio.sleep(HOLD_SECONDS)
    run.machines[victim].hear()


async def _cut_nodes(run: Cluster, victim: str) -> None:
    other = run.machines["one" if victim != "one" else "two"].ip
    run.machines[victim].cut(other)
    await trio.sleep(HOLD_SECONDS)
    run.machines[victim].join(other)


async def _lose(run: Cluster, victim: str) -> None:
    run.machines[victim].lose(0.05)
    await trio.sleep(HOLD_SECONDS)
    run.machines[victim].hear()


async def _far_away(run: Cluster, victim: str) -> None:
    async with run.machines[victim].far_away(FAR_SECONDS):
        await trio.sleep(HOLD_SECONDS)


async def _kill_leader(run: Cluster, _: str) -> None:
    leader = await trio.to_thread.run_sync(run.zookeeper.leader)
    leader.kill()
    await trio.sleep(HOLD_SECONDS)
    await trio.to_thread.run_sync(run.zookeeper.start)


async def _kill_most(run: Cluster, _: str) -> None:
    for server in run.zookeeper.servers[1:]:
        server.kill()
    await trio.sleep(HOLD_SECONDS)
    await trio.to_thread.run_sync(run.zookeeper.start)


async def _kill_zookeeper(run: Cluster, _: str) -> None:
    run.zookeeper.kill()
    await trio.sleep(HOLD_SECONDS)
    await trio.to_thread.run_sync(run.zookeeper.start)


async def _stop_zookeeper(run: Cluster, _: str) -> None:
    run.zookeeper.signal(signal.SIGSTOP)
    await trio.sleep(HOLD_SECONDS)
    run.zookeeper.signal(signal.SIGCONT)


async def _store(run: Cluster, victim: str, fault: str) -> None:
    run.forwarder.faults[run.machines[victim].ip] = fault
    await trio.sleep(HOLD_SECONDS)
    del run.forwarder.faults[run.machines[victim].ip]


async def _kill_store(run: Cluster, _: str) -> None:
    run.s3.kill()
    await trio.sleep(HOLD_SECONDS)
    await trio.to_thread.run_sync(run.s3.start)


async def _cut_store(run: Cluster, victim: str) -> None:
    run.machines[victim].cut(STORE)
    await trio.sleep(HOLD_SECONDS)
    run.machines[victim].join(STORE)


async def _remove_folders(run: Cluster, victim: str) -> None:
    run.machines[victim].wipe()


async def _fill_disk(run: Cluster, victim: str) -> None:
    run.machines[victim].fill()
    await trio.sleep(HOLD_SECONDS)
    run.machines[victim].make_room()


async def _deploy(run: Cluster, _: str) -> None:
    if told := await run.deploy():
        run.log(f"   not deployed: {told.strip()}")


async def _savepoint(run: Cluster, _: str) -> None:
    if told := await run.savepoint():
        run.log(f"   no savepoint: {told.strip()}")


async def _repartition(run: Cluster, _: str) -> None:
    until = trio.current_time() + REPEAT_SECONDS
    while told := await run.repartition():
        run.log(f"   not repartitioned: {told.strip()}")
        if trio.current_time() > until:
            raise AssertionError(f"a repartition was refused for {REPEAT_SECONDS:g} s")
        await trio.sleep(1)


async def _update(run: Cluster, victim: str) -> None:
    if told := await run.drain(victim):
        run.log(f"   not drained: {told.strip()}")
    await run.restart(victim)


FAULTS: dict[str, Fault] = {
    "kill container": _kill_container,
    "kill node": _kill_node,
    "kill both": _kill_both,
    "lose disk": _lose_disk,
    "pause": _pause,
    "freeze": _freeze,
    "unplug": _unplug,
    "cut from ZooKeeper": _cut_zookeeper,
    "deaf to ZooKeeper": _deafen,
    "cut from another": _cut_nodes,
    "lose packets": _lose,
    "far away": _far_away,
    "kill the leader": _kill_leader,
    "kill most ZooKeepers": _kill_most,
    "kill ZooKeeper": _kill_zookeeper,
    "stop ZooKeeper": _stop_zookeeper,
    "store refuses": partial(_store, fault="refuse"),
    "store is slow": partial(_store, fault="slow"),
    "store spoils answers": partial(_store, fault="spoil"),
    "kill the store": _kill_store,
    "cut from the store": _cut_store,
    "fill disk": _fill_disk,
    "remove folders": _remove_folders,
    "deploy": _deploy,
    "savepoint": _savepoint,
    "repartition": _repartition,
    "update node": _update,
}

OF_ZOOKEEPER = ("kill the leader", "kill most ZooKeepers", "kill ZooKeeper", "stop ZooKeeper")
"""The faults of the ensemble, of which there is one."""

OF_STORE = ("store refuses", "store is slow", "store spoils answers", "cut from the store")
"""The faults of an S3 server."""

OF_KEPT_STORE = ("kill the store",)
"""The fault of an S3 server that keeps its objects."""

COMMANDS = ("deploy", "savepoint", "repartition", "update node")
"""What an operator does, amid which other faults happen."""
