"""The output of commands: results on standard output, messages on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import trio

_QUIET_SECONDS = 1.0


def report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@asynccontextmanager
async def connecting(addresses: Sequence[str], timeout: float) -> AsyncIterator[Callable[[], None]]:
    """Print what the block waits for, unless it calls the function soon."""
    scope = trio.CancelScope()

    async def report_later() -> None:
        with scope:
            await trio.sleep(_QUIET_SECONDS)
            report(f"{', '.join(addresses)} does not answer yet; waiting {timeout:g} s for it")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(report_later)
        yield scope.cancel
        scope.cancel()


def give(outcome: Any, text: str, *, as_json: bool) -> None:
    """Print the outcome of a command as JSON, or as a sentence."""
    if as_json:
        print(json.dumps(outcome))
    else:
        report(text)


def report_progress(what: str, done: int, tasks: int) -> None:
    """Show on a terminal how far a command is."""
    if sys.stderr.isatty():
        print(f"\r{what}: {done} of {tasks} tasks", end="", file=sys.stderr)
        if done == tasks:
            print(file=sys.stderr)


def counted(count: int, thing: str) -> str:
    """``1 task``, ``2 tasks``."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def moment(millis: int) -> str:
    """A time for people, in UTC."""
    return f"{datetime.fromtimestamp(millis / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
