"""A forwarder of TCP connections that holds what clients send for some milliseconds.

``python -m s4node.bench.delay_line PORT MILLISECONDS`` forwards to a server of this machine, and
prints the port at which it does so. Answers are not held.
"""

from __future__ import annotations

import math
import sys
from functools import partial

import trio


async def _forward(port: int, seconds: float, client: trio.SocketStream) -> None:
    try:
        async with (
            client,
            await trio.open_tcp_stream("127.0.0.1", port) as server,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_copy, client, server, seconds)
            await _copy(server, client, 0.0)
            nursery.cancel_scope.cancel()
    except* (OSError, trio.BrokenResourceError):
        pass  # one of the two has gone


async def _copy(source: trio.SocketStream, target: trio.SocketStream, seconds: float) -> None:
    """Send on what comes from ``source``, each piece after so many seconds, to its end."""
    held, due = trio.open_memory_channel[tuple[float, bytes]](math.inf)

    async def read() -> None:
        async with held:
            async for data in source:
                held.send_nowait((trio.current_time() + seconds, bytes(data)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        async for at, data in due:
            await trio.sleep_until(at)
            await target.send_all(data)


async def _serve(port: int, seconds: float) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    print(listener.socket.getsockname()[1], flush=True)
    await trio.serve_listeners(partial(_forward, port, seconds), [listener])


if __name__ == "__main__":
    trio.run(_serve, int(sys.argv[1]), float(sys.argv[2]) / 1000)
