"""A forwarder of frames between two network interfaces, which holds each of them for a while.

The kernel leaves checksums and the cutting of large frames to the next device. So each frame is
read and written with the header that says what is left to do.
"""

from __future__ import annotations

import socket

import trio

_ALL_PROTOCOLS = socket.htons(0x0003)
_OF_PACKETS, _WITH_HEADER, _IGNORE_OUTGOING = 263, 15, 23
_MOST_BYTES = 1 << 17


async def carry(one: str, other: str, seconds: float) -> None:
    """Carry all frames between two interfaces, each ``seconds`` late and in order, until
    cancelled."""
    with _of(one) as first, _of(other) as second:
        async with trio.open_nursery() as nursery:
            for source, to in ((first, second), (second, first)):
                late, due = trio.open_memory_channel[tuple[float, bytes]](10_000)
                nursery.start_soon(_take, source, late, seconds)
                nursery.start_soon(_bring, due, to)


def _of(interface: str) -> socket.socket:
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, _ALL_PROTOCOLS)
    for option in (_WITH_HEADER, _IGNORE_OUTGOING):
        found.setsockopt(_OF_PACKETS, option, 1)
    found.bind((interface, 0))
    found.setblocking(False)
    return found


async def _take(
    source: socket.socket, late: trio.MemorySendChannel[tuple[float, bytes]], seconds: float
) -> None:
    while True:
        await trio.lowlevel.wait_readable(source)
        frame = source.recv(_MOST_BYTES)
        await late.send((trio.current_time() + seconds, frame))


async def _bring(due: trio.MemoryReceiveChannel[tuple[float, bytes]], to: socket.socket) -> None:
    async for at, frame in due:
        await trio.sleep_until(at)
        await trio.lowlevel.wait_writable(to)
        to.send(frame)
