"""A producer of orders in a process of its own: ``ADDRESSES STREAM NAME NOTES PAUSE``.

It sends the orders 0, 1, 2... of its name, all of them again in each of its lives, and notes how
far it may have come. After a while it goes to another address, for the first may be nobody's now.
SIGTERM ends it after a flush; then it notes ``sent N``. What is refused it notes, too. It ends when
another process has its name.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from itertools import cycle
from pathlib import Path

import trio

from s4node import Client
from s4node.errors import ConnectionRefused, EventError, StageBroken
from s4node.process import log_setup
from torture.exact import Order, order

PATIENCE_SECONDS = 6.0
REPLACED_STATUS = 3
"""The exit status of a process that is not the last one of its name."""

REPLACED = ("has connected again", "a program that was started later")
"""The errors of a process that is not the last one of its name."""

FLUSH_SECONDS = 60.0  # what has been sent may have to wait for many others


def farthest(notes: Path) -> int:
    lines = notes.read_text().splitlines()
    return max((int(line.split()[1]) for line in lines if line.startswith("to ")), default=0)


async def main(addresses: str, stream: str, name: str, notes: str, pause: str) -> None:
    file = os.open(Path(notes), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    chance = random.Random(os.getpid())
    with trio.open_signal_receiver(signal.SIGTERM) as received:
        os.write(file, b"begins\n")
        async with trio.open_nursery() as nursery:
            over = trio.Event()

            async def wait_term() -> None:
                async for _ in received:
                    over.set()

            nursery.start_soon(wait_term)
            places = addresses.split(",")
            for address in cycle(chance.sample(places, len(places))):
                scope = trio.CancelScope(deadline=trio.current_time() + PATIENCE_SECONDS)
                try:
                    with scope:
                        sent = await produce(
                            scope,
                            address,
                            stream,
                            name,
                            Path(notes),
                            chance,
                            over,
                            file,
                            float(pause),
                        )
                    if not scope.cancelled_caught:
                        break
                except EventError as error:
                    if not any(word in str(error) for word in REPLACED):
                        raise
                    os.write(file, b"shut out\n")  # another process has our name
                    os._exit(REPLACED_STATUS)
                except (ConnectionRefused, StageBroken) as error:  # that one may be down
                    os.write(file, f"again: {error}\n".encode())
            os.write(file, f"sent {sent}\n".encode())
            nursery.cancel_scope.cancel()


async def produce(
    scope: trio.CancelScope,
    address: str,
    stream: str,
    name: str,
    notes: Path,
    chance: random.Random,
    over: trio.Event,
    file: int,
    pause: float,
) -> int:
    """Send until it is over, as many as earlier lives at the least; returns how many. It pauses so
    many seconds at most behind a batch.

    ``scope`` ends it where nothing moves on for too long.
    """
    async with Client(address, producer=name, timeout=10) as client:
        out = await client.stream(stream, types=Order, again=True)
        number, least = 0, farthest(notes)
        # another may have gone on meanwhile; reading the notes for each batch would take minutes
        while not over.is_set() or number < least or number < farthest(notes):
            end = number + chance.choice([1, 5, 40, 300])
            if end > least:
                os.write(file, f"to {end}\n".encode())  # before any of them is sent
            await out.send_many([order(name, n) for n in range(number, end)])
            number = end
            scope.deadline = trio.current_time() + PATIENCE_SECONDS
            if number > least:
                await trio.sleep(pause * chance.choice([0.04, 0.2, 1.0]))
        scope.deadline = trio.current_time() + FLUSH_SECONDS
        for refusal in await out.flush():
            os.write(file, f"refused {refusal}\n".encode())
    return number


if __name__ == "__main__":
    log_setup.configure("warning")
    trio.run(main, *sys.argv[1:])
