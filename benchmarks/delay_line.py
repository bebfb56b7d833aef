"""A forwarder of TCP connections that holds what clients send, and answers at a limited rate.

``python -m benchmarks.delay_line PORT MILLISECONDS BYTES_PER_SECOND`` forwards to a server of
this machine, and prints the port at which it does so. What clients send is held for so many
milliseconds. All connections together get so many bytes of answers in a second; ``inf`` is no
limit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import trio

_PIECES = 64
"""The pieces that are held of a connection, each way; then the forwarder reads no more."""


Due = Callable[[float, int], float]
"""The time at which a piece is sent on, from the time at which it came and its size."""


class _Rate:
    """Pieces are due one after the other, so many bytes in a second."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0

    def sends_at(self, came: float, size: int) -> float:
        self._free_at = max(self._free_at, came) + size / self._bytes_per_second
        return self._free_at


async def _forward(port: int, delay: Due, rate: Due, client: trio.SocketStream) -> None:
    try:
        async with (
            client,
            await trio.open_tcp_stream("127.0.0.1", port) as server,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_copy, client, server, delay)
            await _copy(server, client, rate)
            nursery.cancel_scope.cancel()
    except* (OSError, trio.BrokenResourceError):
        pass  # one of the two has gone


async def _copy(source: trio.SocketStream, target: trio.SocketStream, due: Due) -> None:
    """Send on what comes from ``source``, each piece once it is due, to its end."""
    held, pieces = trio.open_memory_channel[tuple[float, bytes]](_PIECES)

    async def read() -> None:
        async with held:
            async for data in source:
                await held.send((due(trio.current_time(), len(data)), bytes(data)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        async for at, data in pieces:
            await trio.sleep_until(at)
            await target.send_all(data)


async def _serve(port: int, seconds: float, bytes_per_second: float) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    print(listener.socket.getsockname()[1], flush=True)

    def delayed(came: float, _: int) -> float:
        return came + seconds

    forward = partial(_forward, port, delayed, _Rate(bytes_per_second).sends_at)
    await trio.serve_listeners(forward, [listener])


if __name__ == "__main__":
    trio.run(_serve, int(sys.argv[1]), float(sys.argv[2]) / 1000, float(sys.argv[3]))
