"""Why nobody answers: looked up when a wait for an answer has ended without one.

A connection that never comes about leaves no trace in nng, so one more is made that tells.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from s4node.net.transport import network

_PROBE_SECONDS = 1.0
_PAUSE_SECONDS = 0.1


async def why_silent(address: str, stranger: str) -> str:
    """Why nobody may have answered there, to end a sentence; empty if a node answers by now.

    ``stranger`` is what is known of the peer's answers (see
    :mod:`s4node.net.transport.peer_answers`). It takes a second or two at most.
    """
    if stranger:
        return stranger
    try:
        problem = await network.current.probe(address, _PROBE_SECONDS)
    except TimeoutError:
        return "a connection made to see why was not answered either; is the node running?"
    except OSError:
        return "is the node running?"
    return f"what listens there {problem}" if problem else ""


async def why_all_silent(addresses: Sequence[str], stranger: str) -> str:
    """As :func:`why_silent`, of several addresses: empty if a node answers at one by now."""
    reasons: dict[str, str] = {}

    async def ask(address: str) -> None:
        reasons[address] = await why_silent(address, stranger)

    async with trio.open_nursery() as nursery:
        for address in addresses:
            nursery.start_soon(ask, address)
    return "" if "" in reasons.values() else reasons[addresses[0]]


async def first_answering(addresses: Sequence[str]) -> str:
    """The address at which a node answers first; waits until one does."""
    found = ""

    async def ask(address: str, scope: trio.CancelScope) -> None:
        nonlocal found
        if not await why_silent(address, ""):
            found = address
            scope.cancel()

    while not found:
        async with trio.open_nursery() as nursery:
            for address in addresses:
                nursery.start_soon(ask, address, nursery.cancel_scope)
        if not found:
            await trio.sleep(_PAUSE_SECONDS)
    return found
