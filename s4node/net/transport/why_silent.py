"""Why nobody answers: looked up when a wait for an answer has ended without one.

A connection that never comes about leaves no trace in nng, so one more is made that tells.
"""

from __future__ import annotations

import trio

from s4node.net.transport.probe import look

_PROBE_SECONDS = 1.0


async def why_silent(address: str, stranger: str) -> str:
    """Why nobody may have answered there, to end a sentence; empty if a node answers by now.

    ``stranger`` is what is known of the peer's answers (see :mod:`s4node.net.transport.peer_answers`). It takes
    a second or two at most.
    """
    if stranger:
        return stranger
    try:
        problem = await trio.to_thread.run_sync(
            look, address, _PROBE_SECONDS, abandon_on_cancel=True
        )
    except TimeoutError:
        return "a connection made to see why was not answered either; is the node running?"
    except OSError:
        return "is the node running?"
    return f"what listens there {problem}" if problem else ""
