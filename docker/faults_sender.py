"""Sends lines of words to ``demo`` in rounds; runs inside the adapter's container.

A line on stdin begins a round, the next one ends it: it sends each word once more, flushes, and
prints how often it has sent each word so far, as JSON. What is refused is an error.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter

import trio

from s4node import Client, Credentials, GenericEvent

WORDS = [f"w{number}" for number in range(60)]
NODES = [f"tls+tcp://node{number}:12000" for number in (1, 2, 3)]
PAUSE_SECONDS = 0.01
FLUSH_SECONDS = 90.0


async def main() -> None:
    """Send in rounds until stdin ends."""
    sent: Counter[str] = Counter()
    told = trio.wrap_file(sys.stdin)
    files = (f"/certs/{name}.pem" for name in ("certificate", "key", "authority"))
    async with Client(NODES, timeout=FLUSH_SECONDS, credentials=Credentials(*files)) as client:
        lines = await client.stream("lines", types=GenericEvent)

        async def send(words: list[str]) -> None:
            await lines.send(GenericEvent(line=" ".join(words)))
            sent.update(words)

        while await told.readline():
            async with trio.open_nursery() as nursery:
                over = trio.Event()

                async def hear(over: trio.Event = over) -> None:
                    await told.readline()
                    over.set()

                nursery.start_soon(hear)
                while not over.is_set():
                    await send(random.choices(WORDS, k=8))  # noqa: S311
                    await trio.sleep(PAUSE_SECONDS)
            await send(WORDS)
            refused = await lines.flush()
            if refused:
                raise SystemExit(f"refused: {refused[:3]}")
            print(json.dumps(sent), flush=True)


trio.run(main)
