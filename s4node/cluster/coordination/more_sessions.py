"""Work that outlives its session: it goes on in another one, and finds what it has begun."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from s4node.errors import SessionLost

T = TypeVar("T")
R = TypeVar("R")

_MORE_SESSIONS = 4
"""The sessions that may be opened after the first one."""


async def in_sessions(
    opened: Callable[[], AbstractAsyncContextManager[T]],
    work: Callable[[T], Awaitable[R]],
    what: str,
    report: Callable[[str], object],
) -> R:
    """The result of ``work`` on what a session has ``opened``.

    If the session is lost, the work begins again in another one. ``report`` gets a line that says
    so, in which the work is called ``what``.
    """
    for _ in range(_MORE_SESSIONS):
        try:
            async with opened() as first:
                return await work(first)
        except SessionLost as lost:
            report(f"{lost}; the {what} goes on in another one")
    try:
        async with opened() as last:
            return await work(last)
    except SessionLost as lost:
        raise SessionLost(
            f"{lost}, for the {_MORE_SESSIONS + 1}th time, so the {what} may be left undone; see "
            f"s4 status, and run the command again"
        ) from lost
