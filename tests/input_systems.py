"""Systems in memory that tests share with the containers that they run: by name and address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from s4node.config.config import Config
from s4node.errors import S4Error, leaves
from s4node.offsets.input_progress import InputReceipt
from s4node.systems.memory import MemorySystem

_made: dict[str, MemorySystem] = {}


def memory(name: str, config: Config) -> MemorySystem:
    """The system of this address, always the same; what the settings of a container name."""
    made = MemorySystem(name, config)
    found = _made.setdefault(made.address, made)
    found.config = config
    return found


def shared(address: str) -> MemorySystem:
    return memory("memory", Config.from_values({"systems.memory.address": address}))


def fresh(address: str) -> MemorySystem:
    _made.pop(address, None)
    return shared(address)


@contextmanager
def dies(error: type[Exception], match: str = "") -> Iterator[None]:
    """The body ends by this error, whenever that comes.

    Several parts may find out at the same moment; then each of them raises one of our errors.
    """
    try:
        yield
    except Exception as raised:
        found = leaves(raised)
        if not all(isinstance(leaf, (S4Error, error)) for leaf in found):
            raise
        if not any(isinstance(leaf, error) and re.search(match, str(leaf)) for leaf in found):
            raise
    else:
        pytest.fail(f"no {error.__name__} was raised")


class RefusalList:
    """A task that reads a partition; it lists the offsets and reasons of what it cannot process."""

    def __init__(self) -> None:
        self.refusals: list[tuple[int, str]] = []

    def reject(self, _receipt: InputReceipt, number: int, reason: str, _event: Any) -> None:
        self.refusals.append((number, reason))
