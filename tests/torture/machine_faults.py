"""What may happen to the machines of a cluster, and how it is undone.

Rules
- A fault has a victim among the nodes, but for those of ZooKeeper. It ends with its cause undone,
  and whatever died of it started again.
- A deploy, or the drain of a node, may be refused while something else is wrong. What it must not
  do is to leave the cluster unwell.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from torture.machines_run import Cluster

SESSION_SECONDS = 3.0
HOLD_SECONDS = 1.5 * SESSION_SECONDS

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


async def _kill_zookeeper(run: Cluster, _: str) -> None:
    run.zookeeper.kill()
    await trio.sleep(HOLD_SECONDS)
    await trio.to_thread.run_sync(run.zookeeper.start)


async def _stop_zookeeper(run: Cluster, _: str) -> None:
    run.zookeeper.signal(signal.SIGSTOP)
    await trio.sleep(HOLD_SECONDS)
    run.zookeeper.signal(signal.SIGCONT)


async def _refuse(run: Cluster, victim: str) -> None:
    run.machines[victim].refuse()
    await trio.sleep(HOLD_SECONDS)
    run.machines[victim].accept()


async def _fill_disk(run: Cluster, victim: str) -> None:
    run.machines[victim].fill()
    await trio.sleep(HOLD_SECONDS)
    run.machines[victim].make_room()


async def _deploy(run: Cluster, _: str) -> None:
    if told := await run.deploy():
        run.log(f"   not deployed: {told.strip()}")


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
    "kill ZooKeeper": _kill_zookeeper,
    "stop ZooKeeper": _stop_zookeeper,
    "store refuses": _refuse,
    "fill disk": _fill_disk,
    "deploy": _deploy,
    "update node": _update,
}
