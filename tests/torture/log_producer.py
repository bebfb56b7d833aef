"""A producer of a log in a process of its own: ``ADDRESS NAME NOTES PARTITIONS``.

It appends the events 0, 1, 2... of its name, which are the same in each of its lives, and goes on
where the log says that the last one stopped. It notes ``below N`` when all events below N are
acknowledged, and ``refused ...``. SIGTERM ends it after a flush. A name with "texts" in it sends
what the log has to take apart.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import trio

from s4node import Client
from s4node.events.keys import Partitioner
from s4node.events.schema import JsonText
from s4node.process import log_setup
from torture.apps import GROUPS, USERS, Tap


def tap(name: str, number: int) -> Tap:
    """An event of a producer."""
    return Tap(name, f"u{number * 7919 % USERS}", f"g{number * 31 % GROUPS}", number)


async def main(address: str, name: str, notes: str, partitions: str) -> None:
    file = os.open(Path(notes), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(text: str) -> None:
        os.write(file, (text + "\n").encode())

    texts = "texts" in name
    partition_of = Partitioner(1 if texts else int(partitions)).partition_of
    chance = random.Random(os.getpid())
    over = False

    async with Client(address, producer=name, timeout=60) as client, trio.open_nursery() as nursery:

        async def signals() -> None:
            nonlocal over
            with trio.open_signal_receiver(signal.SIGTERM) as received:
                async for _ in received:
                    over = True

        nursery.start_soon(signals)
        taps = await client.stream("taps")
        if texts:
            taps.read_as()
        there = {n: lane.start for n, lane in enumerate(taps._outbox.lanes)}
        if texts:  # which all go the same way
            there = {0: sum(there.values())}
        note(f"begins {there}")
        number = 0

        async def flush() -> None:
            refused = await taps.flush()
            for refusal in refused:
                note(f"refused {refusal}")
            if not refused:
                note(f"below {number}")

        while not over:
            batch: list[Any] = []
            while len(batch) < chance.choice([1, 1, 5, 40]):
                one = tap(name, number)
                number += 1
                partition = partition_of(one.user)
                if there.get(partition, 0) > 0:
                    there[partition] -= 1
                    continue
                batch.append(
                    JsonText(msgspec.json.encode(msgspec.structs.asdict(one))) if texts else one
                )
            await taps.send_many(batch)
            await trio.sleep(chance.choice([0.002, 0.01, 0.05]))
            if chance.random() < 0.03:
                await flush()
        await flush()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    log_setup.configure("warning")
    trio.run(main, *sys.argv[1:])
