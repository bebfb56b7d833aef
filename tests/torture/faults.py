"""The faults of a cluster, and how each is undone: one table of all kinds.

Rules
- A fault has a victim among the nodes, but for those of ZooKeeper, of the log and of programs. It
  ends with its cause undone, and whatever died of it started again.
- A deploy, a savepoint, or the drain of a node, may be refused while something else is wrong. What
  it must not do is to leave the cluster unwell. A command that has been killed is repeated.
- ``needs`` are the features of a scene without which there is no such fault. Of two faults that
  happen at a time, no two touch the same; a fault that touches nothing happens alone.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import trio
from harness import children

from s4node.failpoints import POINTS
from torture.machines import STORE

if TYPE_CHECKING:
    from torture.cluster import Cluster

SESSION_SECONDS = 3.0
HOLD_SECONDS = 1.5 * SESSION_SECONDS
FAR_SECONDS = 0.1
REPEAT_SECONDS = 240.0
"""How long a repartition may be refused: a deployment beside it may last as long."""

AWAY_SECONDS = 3.0
"""Longer than a program is remembered that is away."""

VISIT_SECONDS = 2.0
POINT_SECONDS = 20.0
"""So long a process has to reach the point at which it is to die."""

IN_A_ROW = 4
"""The number of containers killed one after the other, as soon as they run."""

FEW = 3
"""So often at most a process passes a point before it dies there."""

Do = Callable[["Cluster", str], Awaitable[None]]


class Fault(NamedTuple):
    """A kind of faults."""

    do: Do
    touches: str = "node"
    needs: frozenset[str] = frozenset()


def _points(*rooms: str) -> list[str]:
    return [point for point in POINTS if point.split(".")[0] in rooms]


OF_CONTAINERS = _points("claim", "commit", "pieces", "outbox", "checkpoint")
OF_SHIPPED, OF_STANDBY = _points("ship"), _points("standby")
OF_LOG = _points("log")
OF_SAVEPOINT = {
    True: ["savepoint.asked", "savepoint.cuts", "savepoint.manifest", "savepoint.named"],
    False: ["savepoint.due", "savepoint.cut", "savepoint.kept"],
}
"""The points of a savepoint: of the command, and of containers."""

OF_RESTORE = _points("restore")
OF_REPARTITION = _points("repartition", "deploy")


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
    run.machine(victim).unplug()
    await trio.sleep(HOLD_SECONDS)
    run.machine(victim).plug_in()


async def _cut_zookeeper(run: Cluster, victim: str) -> None:
    there = run.machine("zookeeper").ip
    run.machine(victim).cut(there)
    await trio.sleep(HOLD_SECONDS)
    run.machine(victim).join(there)


async def _deafen(run: Cluster, victim: str) -> None:
    run.machine(victim).deafen(run.machine("zookeeper").ip)
    await trio.sleep(HOLD_SECONDS)
    run.machine(victim).hear()


async def _cut_nodes(run: Cluster, victim: str) -> None:
    other = run.machine("one" if victim != "one" else "two").ip
    run.machine(victim).cut(other)
    await trio.sleep(HOLD_SECONDS)
    run.machine(victim).join(other)


async def _lose(run: Cluster, victim: str) -> None:
    run.machine(victim).lose(0.05)
    await trio.sleep(HOLD_SECONDS)
    run.machine(victim).hear()


async def _far_away(run: Cluster, victim: str) -> None:
    async with run.machine(victim).far_away(FAR_SECONDS):
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
    run.forwarder.faults[run.machine(victim).ip] = fault
    await trio.sleep(HOLD_SECONDS)
    del run.forwarder.faults[run.machine(victim).ip]


async def _kill_store(run: Cluster, _: str) -> None:
    run.s3.kill()
    await trio.sleep(HOLD_SECONDS)
    await trio.to_thread.run_sync(run.s3.start)


async def _cut_store(run: Cluster, victim: str) -> None:
    run.machine(victim).cut(STORE)
    await trio.sleep(HOLD_SECONDS)
    run.machine(victim).join(STORE)


async def _remove_folders(run: Cluster, victim: str) -> None:
    run.machines[victim].wipe()


async def _fill_disk(run: Cluster, victim: str) -> None:
    run.machines[victim].fill()
    await trio.sleep(HOLD_SECONDS)
    run.machines[victim].make_room()


# -- points at which processes die ----------------------------------------------------------------


async def _die_at(run: Cluster, victim: str, point: str) -> None:
    """Have a container of a node die at a point, once; what it starts after that lives."""
    mark = run.folder / f"died-{len(run.done)}-{point}"
    await run.restart(victim, f"{point}:{run.chance.randint(1, FEW)}@{mark}")
    with trio.move_on_after(POINT_SECONDS):
        while not mark.exists():
            await trio.sleep(0.05)
    if not mark.exists():
        run.missed.append(point)


async def _log_dies_at(run: Cluster, _: str, point: str) -> None:
    await _kill_log(run, "", f"{point}:{run.chance.randint(1, FEW)}")
    if await run.returned(run.processes["log"], POINT_SECONDS) is None:
        run.missed.append(point)
    await _kill_log(run, "")


async def _kill_in_a_row(run: Cluster, victim: str) -> None:
    """Kill containers as soon as they run: what they process then is not to blame."""
    for _ in range(IN_A_ROW):
        with trio.move_on_after(POINT_SECONDS):
            while not children(run.processes[victim].pid):
                await trio.sleep(0.02)
        await run.kill(victim, node=False, containers=True)


# -- the log and programs -------------------------------------------------------------------------


async def _kill_log(run: Cluster, _: str, fault: str = "") -> None:
    run.processes["log"].kill()
    await run.processes["log"].wait()
    await run.start_log(fault)


async def _pause_log(run: Cluster, _: str) -> None:
    await run.stop_for("log", HOLD_SECONDS)


def _program(run: Cluster) -> str:
    return run.chance.choice([name for name in run.processes if "-" in name])


async def _kill_program(run: Cluster, _: str, pause: float) -> None:
    name = _program(run)
    run.processes[name].kill()
    await run.processes[name].wait()
    await trio.sleep(pause)
    await run.start_producer(name)


async def _wake_program(run: Cluster, _: str) -> None:
    """Stop a program, start another process of its name, and have the first go on."""
    name = _program(run)
    first = run.processes[name]
    first.send_signal(signal.SIGSTOP)
    await trio.sleep(0.2)
    await run.start_producer(name)
    second = run.processes[name]
    await trio.sleep(1)
    first.send_signal(signal.SIGCONT)
    await run.returned(first, AWAY_SECONDS)
    first.kill()
    await first.wait()
    if await run.returned(second, AWAY_SECONDS) is not None:  # the first has connected last
        await run.start_producer(name)


async def _visit(run: Cluster, _: str) -> None:
    """Have a node come for a while that has not the state of the others: it gets no task."""
    await run.start_visitor()
    await trio.sleep(VISIT_SECONDS)
    if "visitor" in await run.owners():
        run.complaints.append("a node with another folder of state has got a task")
    await run.kill("visitor", node=True, containers=True)


async def _cut_power(run: Cluster, _: str) -> None:
    await run.cut_power()


# -- commands -------------------------------------------------------------------------------------


async def _deploy(run: Cluster, _: str) -> None:
    if told := await run.deploy():
        run.log(f"   not deployed: {told.strip()}")


async def _savepoint(run: Cluster, _: str) -> None:
    if told := await run.take_savepoint():
        run.log(f"   no savepoint: {told.strip()}")


async def _savepoint_dies(run: Cluster, victim: str, of_command: bool) -> None:
    """Take a savepoint while its command dies at a point, or a container does."""
    point = run.chance.choice(OF_SAVEPOINT[of_command])
    if not of_command:
        await run.restart(victim, f"{point}@{run.folder / f'died-{len(run.done)}'}")
    told = await run.take_savepoint(point if of_command else "")
    run.log(f"   {point}: {told.strip() or 'taken'}")


async def _go_back(run: Cluster, _: str, dies: bool) -> None:
    """Go back to a savepoint, mostly one of a time before others."""
    async with trio.open_nursery() as waiting:
        waiting.start_soon(_repeat, run, run.take_savepoint, "a savepoint")
    await trio.sleep(1)
    name = run.chance.choice(run.savepoints)
    async with run.without_programs():
        if dies:
            point = run.chance.choice(OF_RESTORE)
            run.log(f"   {point}: {(await run.go_back(name, point)).strip()}")
        await _repeat(run, partial(run.go_back, name), f"going back to {name}")


async def _repartition(run: Cluster, _: str, dies: bool) -> None:
    if dies:
        point = run.chance.choice(OF_REPARTITION)
        run.log(f"   {point}: {(await run.repartition(point)).strip()}")
    await _repeat(run, run.repartition, "a repartition")


async def _repeat(run: Cluster, command: Callable[[], Awaitable[str]], what: str) -> None:
    until = trio.current_time() + REPEAT_SECONDS
    while told := await command():
        run.log(f"   {what}: {told.strip()}")
        if trio.current_time() > until:
            raise AssertionError(f"{what} was refused for {REPEAT_SECONDS:g} s")
        await trio.sleep(1)


async def _update(run: Cluster, victim: str) -> None:
    if told := await run.s4("drain", victim):
        run.log(f"   not drained: {told.strip()}")
    await run.restart(victim)


def _of(touches: str, needs: str, **faults: Do) -> dict[str, Fault]:
    """Faults by name, of what they touch; ``needs`` are features with spaces between."""
    features = frozenset(needs.split())
    return {name.replace("_", " "): Fault(do, touches, features) for name, do in faults.items()}


FAULTS: dict[str, Fault] = {
    **_of(
        "node",
        "",
        kill_container=_kill_container,
        kill_node=_kill_node,
        kill_both=_kill_both,
        kill_in_a_row=_kill_in_a_row,
        pause=_pause,
        freeze=_freeze,
    ),
    **_of("node", "url points", lose_disk=_lose_disk, remove_folders=_remove_folders),
    **_of("node", "disk", fill_disk=_fill_disk),
    **_of("node", "folder", visit=_visit),
    **_of(
        "node",
        "machines",
        unplug=_unplug,
        cut_from_ZooKeeper=_cut_zookeeper,
        deaf_to_ZooKeeper=_deafen,
        cut_from_another=_cut_nodes,
        lose_packets=_lose,
        far_away=_far_away,
    ),
    **_of(
        "ZooKeeper",
        "machines",
        kill_the_leader=_kill_leader,
        kill_most_ZooKeepers=_kill_most,
        kill_ZooKeeper=_kill_zookeeper,
        stop_ZooKeeper=_stop_zookeeper,
    ),
    **_of(
        "store",
        "store",
        store_refuses=partial(_store, fault="refuse"),
        store_is_slow=partial(_store, fault="slow"),
        store_spoils_answers=partial(_store, fault="spoil"),
        cut_from_the_store=_cut_store,
    ),
    **_of("store", "store kept", kill_the_store=_kill_store),
    **_of("log", "", kill_the_log=_kill_log, pause_the_log=_pause_log),
    **_of(
        "program",
        "",
        kill_a_program=partial(_kill_program, pause=0.1),
        program_is_away=partial(_kill_program, pause=AWAY_SECONDS),
        program_wakes_up=_wake_program,
    ),
    **_of("", "power", cut_power=_cut_power),
    **_of("command", "", deploy=_deploy, savepoint=_savepoint, update_node=_update),
    **_of("command", "", repartition=partial(_repartition, dies=False)),
    **_of("", "", go_back=partial(_go_back, dies=False)),
    **_of(
        "",
        "points",
        repartition_dies=partial(_repartition, dies=True),
        savepoint_command_dies=partial(_savepoint_dies, of_command=True),
        savepoint_dies=partial(_savepoint_dies, of_command=False),
        go_back_dies=partial(_go_back, dies=True),
    ),
    **{
        f"die at {point}": Fault(partial(_die_at, point=point), needs=frozenset(needs.split()))
        for points, needs in (
            (OF_CONTAINERS, "points"),
            (OF_SHIPPED, "points url"),
            (OF_STANDBY, "points standby"),
        )
        for point in points
    },
    **{
        f"die at {point}": Fault(partial(_log_dies_at, point=point), "log", frozenset({"points"}))
        for point in OF_LOG
    },
}

COMMANDS = ("deploy", "savepoint", "repartition", "update node")
"""An operator's work, amid which other faults happen."""
