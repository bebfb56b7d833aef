"""The output of commands: results on standard output, messages on standard error."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Any


def tell(text: str) -> None:
    """Print a message."""
    print(text, file=sys.stderr, flush=True)


def give(outcome: Any, text: str, *, as_json: bool) -> None:
    """Print the outcome of a command as JSON, or tell it in words."""
    if as_json:
        print(json.dumps(outcome))
    else:
        tell(text)


def tell_progress(what: str, done: int, tasks: int) -> None:
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
