"""Containers that are killed while programs send: what was sent over sockets counts once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from random import Random

import pytest
import trio
from durable_lives import Lives
from harness import NodeProcess, children, until


@pytest.mark.slow
async def test_events_count_once_when_containers_of_several_are_killed_and_taken_over(
    tmp_path: Path,
) -> None:
    random = Random(3)
    lives = Lives(tmp_path, {"s4.session.timeout": "1000", "s4.container.restartDelay": "50"})
    sent = {"one": 10_000, "json": 8_000}
    enough = trio.Event()
    with trio.fail_after(150):
        async with lives.node("--nodes", "2") as process:
            async with trio.open_nursery() as nursery:
                for name in sent:
                    nursery.start_soon(lives.send, name, sent[name], Random(name), enough)
                for _ in range(2):
                    await until(lambda: len(children(process.pid)) == 2)
                    before = lives.epochs()
                    os.kill(random.choice(children(process.pid)), signal.SIGKILL)
                    await until(lambda b=before: lives.epochs() != b)
                enough.set()
            await stop(process)
    lives.check(sent)


# -- set-up ---------------------------------------------------------------------------------------


async def stop(process: NodeProcess) -> None:
    process.signal(signal.SIGTERM)
    assert await process.wait() == 0, process.errors
