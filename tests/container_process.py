"""A container of an app in a process of its own: ``FOLDER NAME EXPECTED APP SETTING=VALUE...``.

It finds the others through the folder, and stops in order when it is told to by SIGTERM.
"""

from __future__ import annotations

import signal
import sys

import trio

from s4node import Config, Container
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.cluster.tree.folder import FolderCoordination
from s4node.deploy.load_app import load_app
from s4node.process import log_setup


async def main(folder: str, name: str, expected: str, target: str, *given: str) -> None:
    log_setup.configure("info", "json")
    app = load_app(target)
    config = Config.from_values(dict(each.split("=", 1) for each in given))
    coordination = FolderCoordination(folder, session_timeout=2)
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with coordination.session(name) as session, trio.open_nursery() as nursery:
            enrolment = Enrolment(session, "default", app.name, name, int(expected))
            container = Container(app, config, node=name, enrolment=enrolment)

            async def stop() -> None:
                async for _ in signals:
                    container.stop()
                    return

            nursery.start_soon(stop)
            await container.run()
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
