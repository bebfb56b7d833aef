"""The declaration of a key-value store. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from s4node.events.keys import Key

K = TypeVar("K", bound=Key)
V = TypeVar("V")


@dataclass(frozen=True)
class StoreSpec(Generic[K, V]):
    """A declared store: its name, the types of keys and values, and seconds to live (0: no end)."""

    name: str
    key: type[K]
    value: type[V] | Any
    ttl: float = 0.0
