"""Unique names, such as that of a process's life."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from s4node import clocks

fresh: Callable[[int], str] = secrets.token_hex
"""Random bytes as hexadecimal digits, given their number; in a test they depend on its seed."""


def later() -> str:
    """A name that sorts after earlier ones, by the clock."""
    return f"{int(clocks.wall() * 1000):011x}{fresh(2)}"


@contextmanager
def replaced(other: Callable[[int], str]) -> Iterator[None]:
    """Take names from ``other`` during the block."""
    global fresh
    before, fresh = fresh, other
    try:
        yield
    finally:
        fresh = before
