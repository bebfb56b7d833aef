"""Finds out why a peer does not answer, after a wait has ended without an answer.

A failed connection leaves no trace in nng, so another connection is made to see the error.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from s4node.net.certificates.credentials import Credentials
from s4node.net.transport import network

_PROBE_SECONDS = 1.0
_PAUSE_SECONDS = 0.1

_UNREACHED = "is the node running, and is its s4.listener.advertise reached from this machine?"


async def why_silent(address: str, stranger: str, credentials: Credentials | None) -> str:
    """The reason for no answer, as the end of a sentence; empty if a node answers now.

    ``stranger`` is from the peer's answers (see :mod:`s4node.net.transport.dialled_peer`). Takes at
    most two seconds.
    """
    if stranger:
        return stranger
    try:
        problem = await network.current.probe(address, _PROBE_SECONDS, credentials)
    except TimeoutError:
        return f"another connection was not answered either; {_UNREACHED}"
    except ConnectionRefusedError:
        return "is the node running?"
    except OSError:
        return _UNREACHED
    return f"the program there {problem}" if problem else ""


async def why_all_silent(
    addresses: Sequence[str], stranger: str, credentials: Credentials | None
) -> str:
    """As :func:`why_silent`, for several addresses; empty if a node answers at one of them now."""
    reasons: dict[str, str] = {}

    async def ask(address: str) -> None:
        reasons[address] = await why_silent(address, stranger, credentials)

    async with trio.open_nursery() as nursery:
        for address in addresses:
            nursery.start_soon(ask, address)
    return "" if "" in reasons.values() else reasons[addresses[0]]


async def first_answering(addresses: Sequence[str], credentials: Credentials | None) -> str:
    """Wait for a node to answer at one of the addresses; return that address.

    The only address is returned at once.
    """
    found = addresses[0] if len(addresses) == 1 else ""

    async def ask(address: str, scope: trio.CancelScope) -> None:
        nonlocal found
        if not await why_silent(address, "", credentials):
            found = address
            scope.cancel()

    while not found:
        async with trio.open_nursery() as nursery:
            for address in addresses:
                nursery.start_soon(ask, address, nursery.cancel_scope)
        if not found:
            await trio.sleep(_PAUSE_SECONDS)
    return found
