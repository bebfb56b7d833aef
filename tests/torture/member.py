"""A container in a process of its own: ``FOLDER APP NAME EXPECTED NOTES SETTING=VALUE...``.

Prints its address when it runs. SIGTERM stops it in order; on SIGUSR1 it loses about half of its
TCP connections, as by a network that cuts them.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path

import trio

from s4node import Config, Container
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.cluster.tree.folder import FolderCoordination
from s4node.config import settings
from s4node.errors import leaves
from s4node.process import log_setup
from torture.apps import make


def cut(chance: random.Random) -> None:
    """Cut about half of the connections of this process."""
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as one:
            if one.family == socket.AF_INET and one.getpeername() and chance.random() < 0.5:
                one.shutdown(socket.SHUT_RDWR)


async def main(folder: str, app: str, name: str, expected: str, notes: str, *more: str) -> None:
    values = dict(setting.split("=", 1) for setting in more)
    config = Config.from_values({"s4.listener.address": "tcp://127.0.0.1:0", **values})
    log_setup.configure("info", config[settings.LOGGER_FORMAT])
    coordination = FolderCoordination(
        Path(folder), session_timeout=config[settings.SESSION_TIMEOUT]
    )
    chance = random.Random(name)
    async with coordination.session(name) as session, trio.open_nursery() as nursery:
        enrolment = Enrolment(session, "default", app, name, int(expected))
        container = Container(make(app, Path(notes)), config, node=name, enrolment=enrolment)

        async def signals() -> None:
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGUSR1) as received:
                async for number in received:
                    if number == signal.SIGTERM:
                        container.stop()
                    else:
                        cut(chance)

        async def say() -> None:
            await container.ready.wait()
            print(container.address, flush=True)

        nursery.start_soon(signals)
        nursery.start_soon(say)
        await container.run()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    try:
        trio.run(main, *sys.argv[1:])
    except BaseException as error:
        for leaf in leaves(error):
            print(f"ended by {type(leaf).__name__}: {leaf}", file=sys.stderr, flush=True)
            traceback.print_tb(leaf.__traceback__)
            if leaf.__cause__ is not None:
                traceback.print_exception(leaf.__cause__)
        os._exit(1)
