"""A process with a session of its own, for the conformance kit: ``WHERE ROLE ARGUMENT...``.

``count PATH N`` adds 1 to the number at PATH by compare-and-set, N times; ``claim PATH`` tries to
create PATH, and lives on; ``hold PATH TIMEOUT`` keeps an ephemeral entry until the session is lost,
or ``end`` is written there. ``hang PATH TIMEOUT`` keeps one, and blocks its loop until SIGUSR1;
``write PATH TIMEOUT`` does so while it writes beside it; ``tell PATH TIMEOUT`` keeps
one, and prints the key of its session.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import signal
import sys

import trio

from s4node.cluster.tree.contract import Coordination, Session
from s4node.errors import BadVersion, CoordinationError, EntryExists, SessionLost


def reach(where: str, timeout: float) -> Coordination:
    """The coordination at ``module:function:argument``."""
    module, function, argument = where.split(":", 2)
    coordination: Coordination = getattr(importlib.import_module(module), function)(
        argument, timeout
    )
    return coordination


async def count(session: Session, path: str, times: str) -> None:
    with contextlib.suppress(EntryExists):
        await session.create(path, b"0")
    for _ in range(int(times)):
        while True:
            entry = await session.get(path)
            assert entry is not None
            try:
                await session.set(path, b"%d" % (int(entry.data) + 1), entry.version)
            except BadVersion:
                continue
            break
    print("done", flush=True)


async def claim(session: Session, path: str) -> None:
    try:
        await session.create(path, ephemeral=True)
    except CoordinationError as error:
        print(type(error).__name__, flush=True)
    else:
        print("mine", flush=True)
    await trio.sleep_forever()


async def told(session: Session, path: str) -> str:
    try:
        await session.set(path, b"late")
    except SessionLost as error:
        return type(error).__name__
    return "written"


async def hold(session: Session, path: str, _timeout: str) -> None:
    await session.create(path, ephemeral=True)
    print("holds", flush=True)
    try:
        while True:
            seen = await session.change(path)
            entry = await session.get(path)
            if entry is not None and entry.data == b"end":
                print("end", flush=True)
                return
            await session.wait_change(path, seen)
    except SessionLost as error:
        await session.lost.wait()
        print("lost", flush=True)
        print(type(error).__name__, await told(session, path), flush=True)


async def hang(session: Session, path: str, _timeout: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    await session.create(path, ephemeral=True)
    print("hangs", flush=True)
    signal.sigwait([signal.SIGUSR1])
    print(await told(session, path), flush=True)


async def write(session: Session, path: str, _timeout: str) -> None:
    await session.create(path, ephemeral=True)
    number = f"{path.rpartition('/')[0]}/number"
    await session.create(number)
    begun = trio.Event()

    async def go_on() -> None:
        try:
            for each in itertools.count():
                await session.set(number, b"%d" % each)
                begun.set()
        except SessionLost as error:
            print(type(error).__name__, flush=True)

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(go_on)
        await begun.wait()
        print("writes", flush=True)
        signal.sigwait([signal.SIGUSR1])


async def tell(session: Session, path: str, _timeout: str) -> None:
    await session.create(path, ephemeral=True)
    print(session.key, flush=True)
    await trio.sleep_forever()


ROLES = {each.__name__: each for each in (count, claim, hold, hang, write, tell)}
WITH_TIMEOUT = ("hold", "hang", "write", "tell")


async def main(where: str, role: str, *arguments: str) -> None:
    timeout = float(arguments[1]) if role in WITH_TIMEOUT else 10.0
    async with reach(where, timeout).session(f"{role}r") as session:
        await ROLES[role](session, *arguments)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
