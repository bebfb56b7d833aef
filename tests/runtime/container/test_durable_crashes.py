"""Nodes and producers that are killed at any time: what was sent over sockets counts once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from random import Random

import pytest
import trio
from durable_lives import Lives
from harness import NodeProcess, children, until

pytestmark = pytest.mark.long


@pytest.mark.slow
@pytest.mark.parametrize("paused", [pytest.param(False, marks=pytest.mark.short), True])
async def test_events_count_once_when_containers_of_several_are_killed_and_taken_over(
    tmp_path: Path, *, paused: bool
) -> None:
    """A paused one is taken over as well, and then wakes up."""
    random = Random(3)
    lives = Lives(tmp_path, {"s4.session.timeout": "1000", "s4.container.restartDelay": "50"})
    sent = {"one": 25_000, "json": 20_000}
    done: list[str] = []
    kills = taken_over = 0
    enough = trio.Event()
    with trio.fail_after(150):
        async with lives.node("--nodes", "2") as process, trio.open_nursery() as nursery:

            async def send(name: str) -> None:
                await lives.send(name, sent[name], Random(name), enough)
                done.append(name)

            for name in sent:
                nursery.start_soon(send, name)
            while len(done) < len(sent):
                await trio.sleep(0.3 + random.random())
                containers = children(process.pid)
                if containers and (kills < 8 or not enough.is_set()):
                    # the oldest surely has some; one that was just started may have none
                    victim = min(containers) if paused else random.choice(containers)
                    if paused:
                        before = lives.epochs()
                        os.kill(victim, signal.SIGSTOP)
                        with trio.move_on_after(5):
                            await until(lambda b=before: lives.epochs() != b)
                            taken_over += 1
                        os.kill(victim, signal.SIGCONT)
                    else:
                        os.kill(victim, signal.SIGKILL)
                    kills += 1
                    if taken_over >= 2 if paused else kills >= 6:
                        enough.set()
            await stop(process)
    lives.check(sent)


# -- set-up ---------------------------------------------------------------------------------------


async def stop(process: NodeProcess) -> None:
    process.signal(signal.SIGTERM)
    assert await process.wait() == 0, process.errors
