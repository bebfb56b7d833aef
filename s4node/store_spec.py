"""How a key-value store of tasks is declared. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from s4node.events.keys import Key

K = TypeVar("K", bound=Key)
V = TypeVar("V")


@dataclass(frozen=True)
class StoreSpec(Generic[K, V]):
    """A store as it is declared: its name, the types of keys and values, seconds to live or 0."""

    name: str
    key: type[K]
    value: type[V] | Any
    ttl: float = 0.0
