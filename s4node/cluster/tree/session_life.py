"""The life of a session: what it does beside its calls, and its end.

Rules
- An error of the block comes out as it is, not in a group.
- A session is closed however its block ends, also if it is cancelled; that takes a bounded time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

_CLOSING_SECONDS = 2.0


@asynccontextmanager
async def living(
    close: Callable[[], Awaitable[None]], *beside: Callable[[], Awaitable[None]]
) -> AsyncIterator[None]:
    """Run ``beside`` during the block, and then ``close``."""
    failure: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            for function in beside:
                nursery.start_soon(function)
            try:
                yield
            except Exception as error:
                failure = error
            nursery.cancel_scope.cancel()
    finally:
        with trio.move_on_after(_CLOSING_SECONDS, shield=True):
            await close()
    if failure is not None:
        raise failure
