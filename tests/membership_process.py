"""A member in a process of its own: ``FOLDER NAME EXPECTED TIMEOUT``.

Prints each view as a line ``epoch owners-by-name epochs mine``, ``lost`` when it lost its session,
and ``left`` when it was told by SIGTERM to leave.
"""

from __future__ import annotations

import signal
import sys

import trio

from s4node.cluster.coordination.membership import Membership, View
from s4node.cluster.tree.folder import FolderCoordination
from s4node.errors import SessionLost


def show(view: View) -> None:
    owners = ",".join(owner.removeprefix("tcp://") or "." for owner in view.owners)
    epochs = ",".join(map(str, view.epochs))
    mine = ",".join(map(str, sorted(view.mine))) or "-"
    print(view.epoch, owners, epochs, mine, flush=True)


async def main(folder: str, name: str, expected: str, timeout: str) -> None:
    coordination = FolderCoordination(folder, session_timeout=float(timeout))
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with coordination.session(name) as session, trio.open_nursery() as nursery:
            membership = Membership(
                session,
                cluster="east",
                app="count",
                member=name,
                address=f"tcp://{name}",
                partitions=4,
                expected=int(expected),
            )

            async def leave() -> None:
                async for _ in signals:
                    await membership.leave()
                    print("left", flush=True)
                    return

            nursery.start_soon(leave)
            try:
                await membership.run(show)
            except SessionLost:
                print("lost", flush=True)
                nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
