"""The kinds of values that configuration keys take. Pure.

Rules
- A parser raises ValueError with the text that follows ``key = 'text'`` in a message.
- Texts have milliseconds, values have seconds.
"""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_MOST_OF_A_FILE_NAME = 200
"""In bytes: file systems allow 255, and endings are added to names."""

ZOOKEEPER_SCHEME = "zk://"
"""The beginning of a URL of ZooKeeper."""

PART_BYTES = 255
"""The most bytes of a part of a path."""
_FOLDER_BYTES = 3072
"""The most bytes of a folder's path: Linux's limit, less what is added below a folder."""


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of value: ``noun`` describes it for people, ``parse`` checks and converts a text."""

    noun: str
    parse: Callable[[str], T]


def whole(least: int, most: int | None = None, what: str = "whole number") -> Kind[int]:
    """Whole numbers from ``least`` to ``most``, inclusive."""
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
    return whole(least, most, "bytes")


def milliseconds(least: float) -> Kind[float]:
    """A number of milliseconds, with fractions, which is converted to seconds."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):  # no clock can hold a deadline of "inf"
            raise ValueError("is not a number of milliseconds")
        if value < least:
            raise ValueError(f"is out of bounds ({least:g} or more)")
        return value / 1000

    return Kind(f"milliseconds, {least:g} or more", parse)


def choice(*choices: str) -> Kind[str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"is not one of {', '.join(choices)}")
        return text

    return Kind(f"one of {', '.join(choices)}", parse)


def is_unicode(text: str) -> bool:
    """Return True if a text can be encoded, unlike arguments that are not UTF-8."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _parse_folder(text: str) -> str:
    for part in text.split("/"):
        if len(part.encode()) > PART_BYTES:
            raise ValueError(
                f"has a part of {len(part.encode())} bytes, but a file system allows at most "
                f"{PART_BYTES}"
            )
    if len(text.encode()) > _FOLDER_BYTES:
        raise ValueError(f"has {len(text.encode())} bytes, but at most {_FOLDER_BYTES} are allowed")
    return text


def is_name(text: str) -> bool:
    """Return True for a name that can be in a key and a comma list; its dotted parts have text."""
    return re.fullmatch(r"[^\s,=<>.]+(\.[^\s,=<>.]+)*", text) is not None


def is_file_name(text: str) -> bool:
    """Return True for a name that is also a safe file name: not a path, and not too long.

    The letters of any alphabet are allowed, with their marks.
    """
    return (
        re.match(r"\w", text) is not None
        and all(c.isalnum() or c in "_.-" or unicodedata.category(c)[0] == "M" for c in text)
        and len(text.encode()) <= _MOST_OF_A_FILE_NAME
    )


def _parse_name(text: str) -> str:
    if not is_name(text):
        raise ValueError("is not a name (without spaces and commas)")
    return text


def _parse_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    for name in names:
        if not is_name(name):
            raise ValueError(f"has {name!r} in it, which is not a name")
        if names.count(name) > 1:
            raise ValueError(f"names {name!r} twice")
    return names


def own(*names: str, example: str = "package.module:Class") -> Kind[str]:
    """One of these names, or the import path of the app author's own class."""

    def parse(text: str) -> str:
        module, _, name = text.partition(":")
        if text not in names and not all(p.isidentifier() for p in (*module.split("."), name)):
            if not names:
                raise ValueError(f"is not {example}")
            raise ValueError(f"is neither {', '.join(names)} nor {example}")
        return text

    return Kind(f"one of {', '.join(names)}, or {example}" if names else example, parse)


def each(kind: Kind[T]) -> Kind[tuple[T, ...]]:
    """A comma-separated list of values of a kind, each once; may be empty."""

    def parse(text: str) -> tuple[T, ...]:
        names = [name.strip() for name in text.split(",")] if text else []
        values: list[T] = []
        for name in names:
            try:
                value = kind.parse(name)
            except ValueError as error:
                raise ValueError(f"has {name!r} in it, which {error}") from None
            if value in values:
                raise ValueError(f"names {name!r} twice")
            values.append(value)
        return tuple(values)

    return Kind(f"comma-separated list, each {kind.noun}", parse)


def optional(kind: Kind[str]) -> Kind[str]:
    return Kind(f"{kind.noun}, or empty", lambda text: kind.parse(text) if text else "")


class PartitionRange(NamedTuple):
    """Partitions ``first`` to ``last``, inclusive, of a stream of a system."""

    system: str
    stream: str
    first: int
    last: int

    def __str__(self) -> str:
        numbers = f"{self.first}" if self.first == self.last else f"[{self.first}-{self.last}]"
        return f"{self.system}.{self.stream}#{numbers}"


_RANGE = re.compile(r"(?P<one>[0-9]+)|\[(?P<first>[0-9]+)-(?P<last>[0-9]+)\]", re.ASCII)


def _parse_range(text: str) -> PartitionRange:
    name, mark, numbers = text.rpartition("#")
    if not mark:
        raise ValueError("has no # with a partition, such as #2 or #[0-1]")
    system, dot, stream = name.partition(".")
    if not (dot and is_name(system) and is_name(stream)):
        raise ValueError("does not begin with system.stream")
    match = _RANGE.fullmatch(numbers)
    if match is None:
        raise ValueError("does not end with a partition such as #2, or a range such as #[0-1]")
    first, last = int(match["one"] or match["first"]), int(match["one"] or match["last"])
    if first > last:
        raise ValueError(f"is a range that ends before it begins ({first} is above {last})")
    return PartitionRange(system, stream, first, last)


def _parse_switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return text == "true"


def address(least_port: int) -> Kind[str]:
    """An address ``tcp://host:port``, or ``tls+tcp://``; with ``least_port`` 0, port 0 means any
    free port."""
    shape = re.compile(r"(?:tls\+)?tcp://(?:\[[0-9A-Fa-f:.]+\]|[\w.-]+):([0-9]{1,5})", re.ASCII)

    def parse(text: str) -> str:
        match = shape.fullmatch(text)
        if match is None:
            raise ValueError("is not an address tcp://host:port or tls+tcp://host:port")
        if not least_port <= int(match[1]) <= 65535:
            raise ValueError(f"has a port out of bounds ({least_port} to 65535)")
        return text

    return Kind(f"address tcp://host:port, port {least_port} to 65535", parse)


def _parse_host(text: str) -> str:
    shape = r"(?:\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::([0-9]{1,5}))?"
    match = re.fullmatch(shape, text, re.ASCII)
    if text and match is None:
        raise ValueError("is not a host name or an IP address ([...] for IPv6)")
    if match is not None and match[1] and not 1 <= int(match[1]) <= 65535:
        raise ValueError("has a port out of bounds (1 to 65535)")
    return text


def _parse_ports(text: str) -> tuple[int, ...]:
    if not text:
        return ()
    match = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", text, re.ASCII)
    if match is None or not 1 <= int(match[1]) <= int(match[2]) <= 65535:
        raise ValueError("is not a range of ports, such as 12001-12099")
    return tuple(range(int(match[1]), int(match[2]) + 1))


def _parse_zookeeper(text: str) -> str:
    if not text:
        return text
    host = r"(?:\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::[0-9]{1,5})?"
    shape = rf"{re.escape(ZOOKEEPER_SCHEME)}{host}(?:,{host})*(?:/[\w.%-]+)+"
    if re.fullmatch(shape, text, re.ASCII) is None:
        raise ValueError(f"is not {ZOOKEEPER_SCHEME}host:port,host:port/root")
    return text


_PASSWORD = re.compile(r"(?<=://)([^/:]*):[^/]*@")


def without_password(text: str) -> str:
    """A text for messages: the password of a URL is left out."""
    return _PASSWORD.sub(r"\1:***@", text)


def _parse_url(text: str) -> str:
    if _PASSWORD.search(text):
        raise ValueError(
            "has a password, which messages would show; give it to fsspec in the environment of "
            "each node, as FSSPEC_SFTP_PASSWORD, and leave it out here"
        )
    return text


def _parse_classes(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    for name in names:
        if name != "*" and not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"has {name!r} in it, which is not the name of a class")
    return names


TEXT = Kind("text", str)
FOLDER = Kind("folder; its full path is UTF-8", _parse_folder)
ZOOKEEPER = Kind(f"{ZOOKEEPER_SCHEME}host:port,host:port/root, or empty", _parse_zookeeper)
URL = Kind("URL without a password, or empty", _parse_url)
CLASSES = Kind("comma-separated list of names of classes, or *", _parse_classes)
HOST = Kind("host name or IP address, perhaps with :port, or empty", _parse_host)
PORTS = Kind("range of ports, first-last, or empty", _parse_ports)
NAME = Kind("name", _parse_name)
NAMES = Kind("comma-separated list of names", _parse_names)
EXECUTOR = own("block", "shed", "throttle")
HASHER = own("crc32m", "s4", "kafka", example="package.module:function")
OFFSET = choice("oldest", "newest", "upcoming")
SWITCH = Kind("true or false", _parse_switch)
PARTITIONS: Kind[tuple[PartitionRange, ...]] = each(
    Kind("system.stream#2 or system.stream#[0-1]", _parse_range)
)
