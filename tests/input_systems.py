"""Systems in memory that tests share with the containers that they run: by name and address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from s4node.systems.memory import MemorySystem

_made: dict[str, MemorySystem] = {}


def memory(name: str, address: str) -> MemorySystem:
    """The system of this address, always the same; what the settings of a container name."""
    return _made.setdefault(address, MemorySystem(name, address))


def fresh(address: str) -> MemorySystem:
    """A new system of this address."""
    _made.pop(address, None)
    return memory("memory", address)


@contextmanager
def dies(error: type[Exception], match: str | None = None) -> Iterator[None]:
    """What is inside ends by this error, whenever that comes."""
    with pytest.raises(error, match=match):
        yield
