"""The kinds of values that configuration keys take.

Rules
- A parser raises ValueError with what follows ``key = 'text'`` in a message.
- Milliseconds outside, seconds inside.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@dataclass(frozen=True)
class Kind(Generic[T]):
    """What values a key takes: ``word`` says it to people, ``parse`` checks and converts."""

    word: str
    parse: Callable[[str], T]


def whole(least: int, most: int | None = None, what: str = "whole number") -> Kind[int]:
    """Whole numbers from ``least`` to ``most``, both included."""
    bounds = f"{least} or more" if most is None else f"{least} to {most}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("is not a whole number") from None
        if value < least or (most is not None and value > most):
            raise ValueError(f"is out of bounds ({bounds})")
        return value

    return Kind(f"{what}, {bounds}", parse)


def size(least: int, most: int) -> Kind[int]:
    """A number of bytes."""
    return whole(least, most, "bytes")


def milliseconds(least: float) -> Kind[float]:
    """A number of milliseconds, fractions allowed, which becomes seconds."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):  # "inf" would be a deadline that no clock can hold
            raise ValueError("is not a number of milliseconds")
        if value < least:
            raise ValueError(f"is out of bounds ({least:g} or more)")
        return value / 1000

    return Kind(f"milliseconds, {least:g} or more", parse)


def choice(*choices: str) -> Kind[str]:
    """One of these words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"is none of {', '.join(choices)}")
        return text

    return Kind(f"one of {', '.join(choices)}", parse)


def is_name(text: str) -> bool:
    """A name can stand inside a key and in a comma list; its dotted parts are not empty."""
    return re.fullmatch(r"[^\s,=<>.]+(\.[^\s,=<>.]+)*", text) is not None


def _parse_name(text: str) -> str:
    if not is_name(text):
        raise ValueError("is not a name (one word without commas)")
    return text


def _parse_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    for name in names:
        if not is_name(name):
            raise ValueError(f"has {name!r} in it, which is not a name")
        if names.count(name) > 1:
            raise ValueError(f"names {name!r} twice")
    return names


def _parse_executor(text: str) -> str:
    module, _, name = text.partition(":")
    parts = (*module.split("."), name)
    if text not in ("block", "shed", "throttle") and not all(p.isidentifier() for p in parts):
        raise ValueError("is neither block, shed, throttle nor package.module:Class")
    return text


def _parse_hasher(text: str) -> str:
    module, _, function = text.partition(":")
    parts = (*module.split("."), function)
    if text not in ("crc32", "s4") and not all(part.isidentifier() for part in parts):
        raise ValueError("is neither crc32, s4 nor package.module:function")
    return text


def address(least_port: int) -> Kind[str]:
    """An address ``tcp://host:port``; ``least_port`` 0 allows any free port."""
    shape = re.compile(r"tcp://(?:\[[0-9A-Fa-f:.]+\]|[\w.-]+):([0-9]{1,5})", re.ASCII)

    def parse(text: str) -> str:
        match = shape.fullmatch(text)
        if match is None:
            raise ValueError("is not an address tcp://host:port")
        if not least_port <= int(match[1]) <= 65535:
            raise ValueError(f"has a port out of bounds ({least_port} to 65535)")
        return text

    return Kind(f"address tcp://host:port, port {least_port} to 65535", parse)


def _parse_host(text: str) -> str:
    if text and re.fullmatch(r"\[[0-9A-Fa-f:.]+\]|[\w.-]+", text, re.ASCII) is None:
        raise ValueError("is not a host name or an IP address ([...] for IPv6)")
    return text


def _parse_classes(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    for name in names:
        if name != "*" and not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"has {name!r} in it, which names no class")
    return names


TEXT = Kind("text", str)
CLASSES = Kind("comma-separated list of names of classes, or *", _parse_classes)
HOST = Kind("host name or IP address, or empty", _parse_host)
NAME = Kind("name", _parse_name)
NAMES = Kind("comma-separated list of names", _parse_names)
EXECUTOR = Kind("one of block, shed, throttle, or package.module:Class", _parse_executor)
HASHER = Kind("one of crc32, s4, or package.module:function", _parse_hasher)
