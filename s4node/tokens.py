"""Unique names, such as that of a process's life."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from s4node import clocks

fresh: Callable[[int], str] = secrets.token_hex
"""So many bytes as hexadecimal digits, by chance; in a test by its seed."""


def later() -> str:
    """A name that sorts behind those that were made before, by the clock."""
    return f"{int(clocks.wall() * 1000):011x}{fresh(2)}"


@contextmanager
def replaced(other: Callable[[int], str]) -> Iterator[None]:
    """Have names from elsewhere inside of the block."""
    global fresh
    before, fresh = fresh, other
    try:
        yield
    finally:
        fresh = before
